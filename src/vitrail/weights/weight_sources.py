"""Where weights come from: a file, a folder, the hub, a name of published weights, or a state dict."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitrail.models.published import read_model_text
from vitrail.storage import settle
from vitrail.weights.hub import HUB_PREFIX, WEIGHT_FILES, HubAddress, fetch
from vitrail.weights.published_files import find_places
from vitrail.weights.weight_files import SUFFIXES, Weights, read_file, tensors_of

WeightSource = str | os.PathLike[str] | Mapping[str, Any]


def read_weights(source: WeightSource) -> Weights:
    """The weights of a path, a folder, `hf://owner/name`, a name such as `cait_s24@384`, or a state dict."""
    if isinstance(source, Mapping):
        return Weights(tensors_of(source, "the state dict"), "the state dict")
    if not isinstance(source, (str, os.PathLike)):
        raise ValueError(
            f"weights come from a path, a folder, hf://owner/name, a name or a state dict, not {type(source).__name__}"
        )
    return read_file(locate(source), label=str(source))


def locate(source: str | os.PathLike[str]) -> Path:
    """The one file of weights that a path, a folder, a hub address or a name stands for; a path that is there first."""
    text = os.fspath(source)
    if text.startswith(HUB_PREFIX):
        return fetch(HubAddress.parse(text))
    path = Path(text).expanduser()
    if path.is_dir():
        settle(path)
        return choose_file(path)
    if path.is_file():
        return path
    named = read_model_text(text)
    if named is None:
        raise ValueError(
            f"{text}: no such file or folder, and no model with published weights (those on the hub are written "
            "hf://owner/name)"
        )
    if named.init is not None:
        return locate(named.init)
    return find_places(text).fetch()


def choose_file(folder: Path) -> Path:
    """The folder's model.safetensors or pytorch_model.bin, else its only file of weights."""
    for name in WEIGHT_FILES:
        if (folder / name).is_file():
            return folder / name
    found = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES and path.is_file())
    if not found:
        raise ValueError(f"{folder}: no weights in this folder (model.safetensors, or one {', '.join(SUFFIXES)} file)")
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:5]) + (", ..." if len(found) > 5 else "")
        raise ValueError(f"{folder}: {len(found)} files of weights ({names}): name one of them")
    return found[0]
