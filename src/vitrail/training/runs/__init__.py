"""What a run leaves and says: its folder, checkpoints, progress, trackers and report."""
