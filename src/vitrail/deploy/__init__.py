"""Making a trained model ready to serve."""

from vitrail.deploy.folding import fold

__all__ = ["fold"]
