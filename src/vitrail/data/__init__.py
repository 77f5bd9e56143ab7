"""Files to batches: sources, decoding, augmentation and loading. This room never imports models."""
