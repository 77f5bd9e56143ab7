"""Distillation: labels and a teacher."""
