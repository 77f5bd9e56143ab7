"""A task of its own in one folder: how far an image was turned, learnt without labels."""
