"""Backbones: from an image to its Features. Importing this package does not import torch."""
