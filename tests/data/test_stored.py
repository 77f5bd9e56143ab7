"""The plain kinds of data set."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from vitrail.data.contract import Level
from vitrail.data.stored import ArrayDataset, FileDataset, OpenedSource, PackedStrings, Subset

LEVELS = {"label": Level(classes=("a", "b"), labels=np.array([0, 1, 0]))}


def test_packed_strings_behave_like_a_list() -> None:
    texts = ["a.jpg", "", "straße/é.png", "caf\udce9.jpg"]
    packed = PackedStrings(texts)
    assert list(packed) == texts
    assert packed[-1] == texts[-1]
    assert packed[1:3] == texts[1:3]
    assert "a.jpg" in packed
    assert list(pickle.loads(pickle.dumps(packed))) == texts
    assert list(PackedStrings([])) == []
    with pytest.raises(IndexError):
        packed[4]


def test_files_are_named_by_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "b.jpg").write_bytes(b"content")
    paths = ["a.jpg", "b.jpg", "caf\udce9.jpg"]
    dataset = FileDataset(name="files", split="train", root=Path(), paths=paths, levels=LEVELS)
    monkeypatch.chdir("/")
    assert dataset.read(1) == b"content"
    assert dataset.locate(1) == str(tmp_path / "b.jpg")
    assert dataset.locate(2).endswith(r"caf\udce9.jpg")
    assert len(dataset) == 3


def test_a_subset_keeps_images_labels_and_places() -> None:
    images = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)
    whole = ArrayDataset(name="pixels", split="val", images=images, levels=LEVELS)
    subset = Subset(whole, np.array([2, 1]))
    assert len(subset) == 2
    assert np.array_equal(subset.read(0), images[2])
    assert subset.locate(1) == whole.locate(1) == "pixels/val/1"
    assert subset.level().labels.tolist() == [0, 1]
    assert subset.level().classes == ("a", "b")


def test_splits_come_in_the_usual_order() -> None:
    images = np.zeros((3, 2, 2), dtype=np.uint8)
    names = ("more", "extra", "test", "train", "val")
    source = OpenedSource([ArrayDataset(name="x", split=name, images=images, levels=LEVELS) for name in names])
    assert source.splits == ("train", "val", "test", "extra", "more")
    assert source.open("val").split == "val"
