"""Reading files of weights, without ever running code that a file brings."""

import argparse
import pickle
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

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
        return read_safetensors(path, label)
    if start.startswith((b"PK\x03\x04", b"\x80")):
        return Weights(tensors_of(read_pickle(path, label), label), label)
    raise ValueError(
        f"{label}: not a file of weights; vitrail reads .safetensors and PyTorch's {', '.join(SUFFIXES[1:])}"
    )


def read_safetensors(path: Path, label: str) -> Weights:
    try:
        with safe_open(path, framework="pt") as file:
            grid = parse_grid((file.metadata() or {}).get(GRID_KEY, ""))
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
    except SafetensorError as error:
        raise ValueError(f"{label}: damaged, or not a safetensors file ({error})") from None
    return Weights(tensors_of(state, label), label, grid)


def read_pickle(path: Path, label: str) -> Any:
    """What torch.save wrote: tensors, plain containers and, as official files have one, a command line's Namespace."""
    try:
        with warnings.catch_warnings(), torch.serialization.safe_globals([argparse.Namespace]):
            warnings.simplefilter("ignore")  # about pickles that it refuses in the next moment
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        unsafe = re.search(r"GLOBAL ([\w.]+)|Unsupported operand", str(error))
        if unsafe is None:
            raise ValueError(f"{label}: damaged, or not a file of torch.save") from None
        name = unsafe[1] or "a pickle not of torch.save"
        raise ValueError(
            f"{label}: refused, it holds more than tensors ({name}) and loading that could run code.\n"
            "Nothing of it was run; ask for its state dict, best as .safetensors"
        ) from None
    except Exception as error:  # a damaged archive or pickle can raise almost anything
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"{label}: damaged, or not a file of torch.save ({reason[:120]})") from None


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
