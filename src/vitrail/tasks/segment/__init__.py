"""Semantic segmentation: a class for every pixel, by UperNet or a linear head on any trunk."""
