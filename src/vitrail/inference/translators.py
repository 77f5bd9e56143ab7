"""Loading a model that translates."""

import os

from vitrail.inference.trained import Loaded, Trained, load_whatever
from vitrail.translation.translator import Translator


def load_translator(source: str | os.PathLike[str], *, device: str = "cpu") -> Translator:
    """The translator of a run's folder, of a folder that `save_model` wrote, or of `hf://owner/name`."""
    found: Trained | Loaded = load_whatever(source)
    description = found.description if isinstance(found, Loaded) else None
    return Translator.of(found.model, description, label=os.fspath(source), device=device)
