"""Making a trained model ready to serve."""

from vitrail.inference.folding import fold

__all__ = ["fold"]
