"""Images with masks and boxes: where they lie, how both move with the image, and the batches that hold them."""
