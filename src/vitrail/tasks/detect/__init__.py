"""Detection: objects of images by boxes and masks."""
