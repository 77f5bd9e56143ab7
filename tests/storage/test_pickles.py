"""Files of torch.save that would unfold to far more than they are long."""

import zipfile
from pathlib import Path

import pytest
import torch

from vitrail.storage.pickles import is_whole_archive, read_pickle


def pack_again(path: Path, *, compression: int, padding: int = 0) -> None:
    """Write the entries of an archive anew, each with zeros behind it."""
    with zipfile.ZipFile(path) as old:
        parts = {name: old.read(name) + bytes(padding) for name in old.namelist()}
    with zipfile.ZipFile(path, "w", compression) as new:
        for name, content in parts.items():
            new.writestr(name, content)


def test_a_compressed_archive_is_refused_before_it_is_unfolded(tmp_path: Path) -> None:
    path = tmp_path / "bomb.pt"
    torch.save({"model": torch.zeros(4)}, path)
    assert is_whole_archive(path)
    pack_again(path, compression=zipfile.ZIP_DEFLATED, padding=1 << 22)
    assert path.stat().st_size < 1 << 18
    with pytest.raises(ValueError, match=r"^it: refused, its entries are compressed, which torch\.save never does$"):
        read_pickle(path, label="it")
    assert not is_whole_archive(path)


def test_entries_that_lie_over_each_other_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.pt"
    torch.save({"model": torch.zeros(1 << 16)}, path)
    with zipfile.ZipFile(path, "a") as archive:
        (large,) = (entry for entry in archive.infolist() if entry.file_size == 1 << 18)
        archive.filelist.extend([large] * 100)
        archive._didModify = True  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"^it: refused, its entries are longer than the file$"):
        read_pickle(path, label="it")


def test_a_tensor_that_repeats_one_number_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "wide.pt"
    torch.save({"model": {"a": torch.zeros(1).expand(10**9)}}, path)
    with pytest.raises(ValueError, match=r"^it: refused, its tensors unfold to 4,000,000,000 bytes, far more"):
        read_pickle(path, label="it")
    torch.save({"model": {"a": torch.zeros(100).expand(4, 100)}}, path)
    assert read_pickle(path, label="it")["model"]["a"].shape == (4, 100)
