"""Trained models and galleries behind HTTP, and a page to try them on."""
