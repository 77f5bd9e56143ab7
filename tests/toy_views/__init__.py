"""A task without labels of a few lines, as a subclass of the shared one: two views of an image are to be alike."""

from toy_views.task import Views

__all__ = ["Views"]
