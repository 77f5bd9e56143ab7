"""What a batch costs: every training procedure is an objective, `objective(model, batch) -> Losses`."""
