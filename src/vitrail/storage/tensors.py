"""Tensors by name: files of them, with a checksum, and the fingerprint of their every byte."""

import hashlib
import json
import math
import os
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from vitrail.storage.reading import parse_json

_CHECKSUM_KEY = "checksum"  # in the metadata of a file
_METADATA = "__metadata__"  # safetensors' own key of its header
_LENGTH_BYTES = 8  # of the number in front of the header
_NAMES = {torch.float32: "F32", torch.float16: "F16", torch.int64: "I64", torch.int32: "I32"}  # what rows are joined of
# Of each tensor what it was when it was last hashed, and the digest: hashing a trunk for every swap of tasks would take
# longer than the swap.
Remembered = dict[str, tuple[tuple[Any, ...], bytes]]


class UnreadableFileError(ValueError):
    """A file that the system does not give us, of whose content nothing is known."""


def write_tensors(tensors: dict[str, Tensor], path: Path, *, metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file with a checksum, and with the rights that the umask gives.

    The same tensors and metadata give the same bytes. safetensors itself writes metadata in any order, and lets nobody
    else read the file. What the disk refuses is an OSError, as everywhere else.
    """
    path.touch()
    mode = path.stat().st_mode
    kept = dict(metadata or {})
    try:
        save_file(tensors, path, metadata={**kept, _CHECKSUM_KEY: sum_tensors(tensors, kept)})
    except SafetensorError as error:
        found = re.search(r"os error (\d+)", str(error))
        if found is None:
            raise
        raise OSError(int(found[1]), os.strerror(int(found[1])), str(path)) from None
    _sort_metadata(path)
    path.chmod(mode)


def join_tensors(files: Sequence[Path], path: Path, *, metadata: Mapping[str, str] | None = None) -> None:
    """Write a file of tensors whose rows are those of several files one after the other, as `write_tensors` would.

    The files must be of `write_tensors`, with the same names. One of them at a time is in memory. One without rows may
    say nothing about the shape of a row.
    """
    dtypes: dict[str, torch.dtype] = {}
    shapes: dict[str, list[int]] = {}
    sums: dict[str, int] = {}
    for file in files:
        for name, value in read_tensors(file, label=str(file))[0].items():
            known = shapes.get(name)
            if known is not None and known[0] and len(value) and known[1:] != list(value.shape[1:]):
                raise ValueError(f"{file}: rows of {name} are {list(value.shape[1:])}, and {known[1:]} in others")
            num_rows = known[0] if known else 0
            row = list(value.shape[1:]) if known is None or not num_rows else known[1:]
            shapes[name] = [num_rows + len(value), *row]
            dtypes[name] = value.dtype
            sums[name] = zlib.crc32(as_bytes(value).numpy().data, sums.get(name, 0))
    kept = dict(metadata or {})
    header: dict[str, Any] = {
        _METADATA: dict(sorted({**kept, _CHECKSUM_KEY: _sum_of(dtypes, shapes, sums, kept)}.items()))
    }
    end = 0
    for name in sorted(shapes, key=lambda name: (-dtypes[name].itemsize, name)):  # wide ones first: all are aligned
        begin, end = end, end + math.prod(shapes[name]) * dtypes[name].itemsize
        header[name] = {"dtype": _NAMES[dtypes[name]], "shape": shapes[name], "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text = text.ljust(-(-len(text) // _LENGTH_BYTES) * _LENGTH_BYTES)
    with path.open("wb") as joined:
        joined.write(len(text).to_bytes(_LENGTH_BYTES, "little") + text)
        for name in list(header)[1:]:
            for file in files:
                joined.write(as_bytes(read_tensors(file, label=str(file))[0][name]).numpy().data)


def read_tensors(path: Path, *, label: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a safetensors file; one of ours must be what was written, bit by bit.

    The tensors read the file's memory: what is kept beyond a moment is to be copied.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
    except (SafetensorError, ValueError, TypeError, RuntimeError, MemoryError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{label}: damaged, or not a safetensors file ({reason})") from None
    except OSError as error:
        raise UnreadableFileError(f"{label}: can't be read ({error.strerror or error})") from None
    written = metadata.pop(_CHECKSUM_KEY, None)
    if written is not None and written != sum_tensors(tensors, metadata):
        raise ValueError(f"{label}: damaged, its checksum is not that of what was written: get it anew or from a copy")
    return tensors, metadata


def sum_tensors(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """A checksum of names, dtypes, shapes, bytes and metadata, against accidents.

    It is made of a CRC-32 of each tensor, as zip archives have, which takes half the time of a sha256.
    """
    dtypes = {name: value.dtype for name, value in tensors.items()}
    shapes = {name: list(value.shape) for name, value in tensors.items()}
    sums = {name: zlib.crc32(as_bytes(value).numpy().data) for name, value in tensors.items()}
    return _sum_of(dtypes, shapes, sums, metadata)


def _sum_of(
    dtypes: Mapping[str, torch.dtype],
    shapes: Mapping[str, list[int]],
    sums: Mapping[str, int],
    metadata: Mapping[str, str],
) -> str:
    rows = [(name, str(dtypes[name]), shapes[name], sums[name]) for name in sorted(sums)]
    return hashlib.sha256(json.dumps([rows, sorted(metadata.items())]).encode()).hexdigest()[:32]


def _sort_metadata(path: Path) -> None:
    """Bring the metadata of a file into the order of its keys; all else stays where it is."""
    with path.open("r+b") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        header = parse_json(file.read(length))
        header = {_METADATA: dict(sorted(header.pop(_METADATA).items())), **header}
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        assert len(text) <= length, "the same keys and values are as long as before"
        file.seek(_LENGTH_BYTES)
        file.write(text.ljust(length))


def hash_tensors(tensors: Mapping[str, Tensor], *, known: Remembered | None = None) -> str:
    """One hash over names, dtypes, shapes and bytes; of tensors in `known` that have not changed nothing is read."""
    total = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        # The counter of changes in place, which a tensor made in inference mode has not.
        now = None if value.is_inference() else (value.data_ptr(), value._version, value.dtype, value.shape)
        if known is None or now is None or known.get(name, (None,))[0] != now:
            digest = _hash_tensor(name, value)
            if known is not None and now is not None:
                known[name] = (now, digest)
        else:
            digest = known[name][1]
        total.update(digest)
    return total.hexdigest()


def as_bytes(value: Tensor) -> Tensor:
    """The memory of a tensor, in the order of its elements, as uint8 on the CPU."""
    return value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def _hash_tensor(name: str, value: Tensor) -> bytes:
    header = json.dumps([name, str(value.dtype).removeprefix("torch."), list(value.shape)])
    digest = hashlib.sha256(header.encode() + b"\n")
    digest.update(as_bytes(value).numpy().data)
    return digest.digest()
