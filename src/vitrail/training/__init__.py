"""How a run proceeds: optimizer, schedule, moving average, checkpoints and the loop over them."""
