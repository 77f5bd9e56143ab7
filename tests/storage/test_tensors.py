"""Files of tensors: the same bytes for the same content, and a checksum that every change of a bit breaks."""

import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from vitrail.storage.tensors import read_tensors, write_tensors

TENSORS = {"b.weight": torch.arange(12.0).reshape(3, 4), "a": torch.ones(2, dtype=torch.int64), "none": torch.zeros(0)}
METADATA = {name: f"{name} \u00e9 \"'\n" for name in ("format", "grid", "vitrail", "else", "\u00fc")}


def test_the_same_tensors_give_the_same_bytes(tmp_path: Path) -> None:
    contents = set()
    for number in range(8):  # safetensors alone orders metadata anew each time
        path = tmp_path / f"{number}.safetensors"
        shuffled = dict(random.Random(number).sample(sorted(METADATA.items()), len(METADATA)))
        write_tensors(dict(reversed(TENSORS.items())) if number % 2 else TENSORS, path, metadata=shuffled)
        contents.add(path.read_bytes())
    assert len(contents) == 1
    tensors, metadata = read_tensors(path, label="it")
    assert metadata == METADATA
    assert all(torch.equal(tensors[name], value) for name, value in TENSORS.items())


def test_no_flipped_bit_is_read_as_if_nothing_had_happened(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_tensors(TENSORS, path, metadata={"grid": "2x2"})
    content = path.read_bytes()
    messages = []
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        try:
            tensors, metadata = read_tensors(path, label="it")
        except ValueError as error:
            messages.append(str(error))
        else:  # the flip made another key of that of the checksum
            assert all(torch.equal(tensors[name], value) for name, value in TENSORS.items())
            assert metadata["grid"] == "2x2"
    assert len(messages) > 0.9 * len(content)
    assert all(message.startswith("it: damaged") and "\n" not in message for message in messages)


def test_files_without_a_checksum_are_read(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "old.safetensors", metadata={"grid": "2x2"})
    tensors, metadata = read_tensors(tmp_path / "old.safetensors", label="it")
    assert metadata == {"grid": "2x2"}
    assert torch.equal(tensors["a"], TENSORS["a"])
    with pytest.raises(ValueError, match=r"^it: can't be read \(No such file"):
        read_tensors(tmp_path / "missing.safetensors", label="it")
