"""Looking inside a model: what its layers do, as numbers, pictures and one page."""
