"""Tensors by name: files of them, and the fingerprint of their every byte."""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

# Of each tensor what it was when it was last hashed, and the digest: hashing a trunk for every swap of tasks would take
# longer than the swap.
Remembered = dict[str, tuple[tuple[Any, ...], bytes]]


def write_tensors(tensors: dict[str, Tensor], path: Path, *, metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file with the rights that the umask gives; safetensors itself lets nobody else read it.

    What the disk refuses is an OSError, as everywhere else.
    """
    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(tensors, path, metadata=None if metadata is None else dict(metadata))
    except SafetensorError as error:
        found = re.search(r"os error (\d+)", str(error))
        if found is None:
            raise
        raise OSError(int(found[1]), os.strerror(int(found[1])), str(path)) from None
    path.chmod(mode)


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
