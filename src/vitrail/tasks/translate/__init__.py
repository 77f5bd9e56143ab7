"""Translation: recipe, objective, evaluator, and its part of the report."""
