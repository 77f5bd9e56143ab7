"""What a recipe says: typed sections, their YAML, and the changes of single keys."""
