"""Names and files of weights: vitrail's own, the official ones and timm's."""

from vitrail.weights.load import load_weights
from vitrail.weights.save import load_model, save_model
from vitrail.weights.timm_names import to_timm

__all__ = ["load_model", "load_weights", "save_model", "to_timm"]
