"""Making a trained model ready to serve."""

from vitrail.deploy.fold import fold

__all__ = ["fold"]
