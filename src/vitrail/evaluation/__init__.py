"""How good a model is: evaluators yield `(name, number)` pairs."""
