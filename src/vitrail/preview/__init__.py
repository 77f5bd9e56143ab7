"""What a training run would see: crops, augmented views and mixed batches, as pictures and a page."""
