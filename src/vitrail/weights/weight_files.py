"""Reading files of weights, without ever running code that a file brings."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from vitrail.storage.pickles import read_pickle
from vitrail.storage.tensors import read_tensors

SUFFIXES = (".safetensors", ".pth", ".pt", ".bin")
GRID_KEY = "grid"  # in the metadata of a safetensors file we wrote: "rows x columns" of its patches
# What training scripts put around a state dict, plain weights before their moving average; and before its names.
WRAPPERS = ("model", "state_dict", "model_ema", "state_dict_ema")
PREFIXES = ("module.", "_orig_mod.", "model.")


@dataclass(frozen=True)
class Weights:
    """Tensors by name, as the source has them."""

    state: dict[str, Tensor]
    label: str  # what to call the source in an error
    grid: tuple[int, int] | None = None  # rows and columns of patches, where the source says it


def read_file(path: Path, *, label: str) -> Weights:
    """The weights of one file; its first bytes, not its name, say of which kind it is."""
    try:
        with path.open("rb") as file:
            start = file.read(9)
    except OSError as error:
        raise ValueError(f"{label}: can't be read ({error.strerror})") from None
    if not start:
        raise ValueError(f"{label}: the file is empty")
    if start[8:9] == b"{":
        state, metadata = read_tensors(path, label=label)
        return Weights(tensors_of(state, label), label, parse_grid(metadata.get(GRID_KEY, "")))
    if start.startswith((b"PK\x03\x04", b"\x80")):
        return Weights(tensors_of(read_pickle(path, label=label), label), label)
    raise ValueError(
        f"{label}: not a file of weights; vitrail reads .safetensors and PyTorch's {', '.join(SUFFIXES[1:])}"
    )


def tensors_of(content: Any, label: str) -> dict[str, Tensor]:
    """The state dict inside what a file holds, without the prefixes that wrappers of models add to all names."""
    while isinstance(content, Mapping):
        inner = next((content[key] for key in WRAPPERS if isinstance(content.get(key), Mapping)), None)
        if inner is None:
            break
        content = inner
    if not isinstance(content, Mapping) or not content:
        kind = "nothing" if isinstance(content, Mapping) else f"a {type(content).__name__}"
        raise ValueError(f"{label}: holds {kind} where tensors by name were expected")
    strangers = [name for name, value in content.items() if not (isinstance(name, str) and isinstance(value, Tensor))]
    if strangers:
        shown = ", ".join(map(repr, strangers[:5])) + (", ..." if len(strangers) > 5 else "")
        raise ValueError(f"{label}: expected tensors by name, but these entries are none: {shown}")
    state = dict(content)
    while prefix := next((prefix for prefix in PREFIXES if all(name.startswith(prefix) for name in state)), None):
        state = {name.removeprefix(prefix): value for name, value in state.items()}
    return state


def parse_grid(text: str) -> tuple[int, int] | None:
    match = re.fullmatch(r"(\d+)x(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None


def format_grid(grid: tuple[int, int]) -> str:
    return f"{grid[0]}x{grid[1]}"
