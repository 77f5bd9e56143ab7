"""What the answers of a classifier come to, as sections of a run's report."""
