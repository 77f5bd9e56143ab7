"""Limits of sizes, beyond which a number is a slip of the hand or takes all memory."""

MAX_SIDE = 8192  # pixels of an image that a model sees
MIN_CROP_RATIO = 0.01
