"""Files of torch.save: read without running code that a file brings, and without more memory than the file is long."""

import argparse
import pickle
import re
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.storage.reading import MAX_DEPTH

_MAX_UNFOLDING = 8  # bytes of tensors over bytes of the file: some share memory, and some models are stored expanded
_FREE_BYTES = 1 << 20
_BROKEN_ARCHIVE = (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError)


def read_pickle(path: Path, *, label: str, is_mapped: bool = False) -> Any:
    """What torch.save wrote: tensors, plain containers and, as official files have one, a command line's Namespace.

    With `is_mapped` tensors are the file's memory: what is never looked at is never read.
    """
    check_unfolded(path, label=label)
    try:
        with warnings.catch_warnings(), torch.serialization.safe_globals([argparse.Namespace]):
            warnings.simplefilter("ignore")  # about pickles that it refuses in the next moment
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=is_mapped or None)
    except pickle.UnpicklingError as error:
        unsafe = re.search(r"GLOBAL ([\w.]+)|Unsupported operand", str(error))
        if unsafe is None:
            raise ValueError(f"{label}: damaged, or not a file of torch.save") from None
        name = unsafe[1] or "a pickle not of torch.save"
        raise ValueError(
            f"{label}: refused, it holds more than tensors ({name}) and loading that could run code. "
            "Nothing of it was run; ask for its state dict, best as .safetensors"
        ) from None
    except Exception as error:  # a damaged archive or pickle can raise almost anything
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"{label}: damaged, or not a file of torch.save ({reason[:120]})") from None
    size = sum(value.numel() * value.element_size() for value in _tensors_in(content, label=label))
    if size > _MAX_UNFOLDING * path.stat().st_size + _FREE_BYTES:
        raise ValueError(f"{label}: refused, its tensors unfold to {size:,} bytes, far more than the file has")
    return content


def check_unfolded(path: Path, *, label: str) -> None:
    """Refuse an archive whose entries are compressed or lie over each other: it may unfold to any size."""
    if not zipfile.is_zipfile(path):
        return
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except _BROKEN_ARCHIVE:
        return  # what it is will be said by who reads it
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise ValueError(f"{label}: refused, its entries are compressed, which torch.save never does")
    if sum(entry.file_size for entry in entries) > path.stat().st_size:
        raise ValueError(f"{label}: refused, its entries are longer than the file")


def is_whole_archive(path: Path) -> bool:
    """Whether every byte of a file of torch.save is as it was written, by the sums in its archive."""
    try:
        check_unfolded(path, label=str(path))
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except _BROKEN_ARCHIVE:
        return False


def _tensors_in(content: Any, *, label: str) -> Iterator[Tensor]:
    """Every tensor of what was read; containers are looked into once, and not deeper than a file of ours has them."""
    found: list[tuple[Any, int]] = [(content, 0)]
    seen: set[int] = set()
    while found:
        value, depth = found.pop()
        if depth > MAX_DEPTH:
            raise ValueError(f"{label}: refused, its containers are nested too deeply")
        if id(value) in seen:
            continue
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (Mapping, list, tuple)):
            seen.add(id(value))
            found.extend((inner, depth + 1) for inner in (value.values() if isinstance(value, Mapping) else value))
