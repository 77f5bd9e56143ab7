import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vitrail.data.datasets import open_dataset
from vitrail.data.sources.imagenet import (
    NUM_VALIDATION_IMAGES,
    class_names,
    open_imagenet,
    open_imagenet21k,
    open_imagenet_real,
    open_imagenet_v2,
)


def put(root: Path, *paths: str) -> None:
    """Files that hold their own path."""
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(path.encode())


def write_real(root: Path, valid: dict[int, Any]) -> None:
    labels: list[Any] = [[] for _ in range(NUM_VALIDATION_IMAGES)]
    for number, value in valid.items():
        labels[number - 1] = value
    (root / "real.json").write_text(json.dumps(labels))


def write_meta(root: Path, wnids: dict[int, str], *, count: int = NUM_VALIDATION_IMAGES) -> None:
    """What torchvision makes of the development kit."""
    listed = [wnids.get(number, "n01440764") for number in range(1, count + 1)]
    torch.save(({wnid: (wnid,) for wnid in listed}, listed), root / "meta.bin")


def test_a_subset_of_the_classes_keeps_the_numbers_of_all_thousand(tmp_path: Path) -> None:
    put(tmp_path, "train/n15075141/b.JPEG", "train/n01440764/a.JPEG", "val/n15075141/ILSVRC2012_val_00000007.JPEG")
    put(tmp_path, "train/.cache/c.JPEG", "train/n01440764/readme.txt")
    source = open_imagenet(tmp_path)
    train, val = source.open("train"), source.open("val")
    assert source.splits == ("train", "val")
    assert train.level().labels.tolist() == [0, 999]
    assert val.level().labels.tolist() == [999]
    assert train.level().classes == val.level().classes == class_names()
    assert train.read(1) == b"train/n15075141/b.JPEG"
    assert val.locate(0) == str(tmp_path / "val" / "n15075141" / "ILSVRC2012_val_00000007.JPEG")
    assert [(note.problem, note.place, note.is_serious) for note in source.notes] == [
        ("class missing", "train", False),
        ("class missing", "val", False),
    ]
    assert "998 of 1000" in source.notes[0].detail


def test_a_folder_that_is_no_class_is_noted_and_left_out(tmp_path: Path) -> None:
    put(tmp_path, "train/n01440764/a.JPEG", "train/n0144076/b.JPEG", "val/n01440764/ILSVRC2012_val_00000001.JPEG")
    source = open_imagenet(tmp_path)
    assert len(source.open("train")) == 1
    [note] = [note for note in source.notes if note.problem == "unknown class"]
    assert note.is_serious
    assert note.place == str(tmp_path / "train" / "n0144076")


def test_validation_images_side_by_side_get_their_labels_from_the_development_kit(tmp_path: Path) -> None:
    put(tmp_path, "val/ILSVRC2012_val_00000002.JPEG", "val/ILSVRC2012_val_00050000.JPEG")
    write_meta(tmp_path, {2: "n15075141", 50_000: "n01443537"})
    source = open_imagenet(tmp_path)
    assert source.splits == ("val",)
    assert source.open("val").level().labels.tolist() == [999, 1]


def test_validation_images_side_by_side_without_the_development_kit_are_an_error(tmp_path: Path) -> None:
    put(tmp_path, "val/ILSVRC2012_val_00000002.JPEG")
    with pytest.raises(ValueError, match=r"sort its images into <wnid> folders, or put ILSVRC2012_devkit_t12.tar.gz"):
        open_imagenet(tmp_path)


def test_a_development_kit_that_needs_scipy_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "val/ILSVRC2012_val_00000002.JPEG", "ILSVRC2012_devkit_t12.tar.gz")
    monkeypatch.setitem(sys.modules, "scipy", None)
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(ValueError, match=r"pip install 'vitrail\[scipy\]'"):
        open_imagenet(tmp_path)


def test_a_wrong_meta_file_is_an_error(tmp_path: Path) -> None:
    put(tmp_path, "val/ILSVRC2012_val_00000002.JPEG")
    write_meta(tmp_path, {}, count=3)
    with pytest.raises(ValueError, match=r"meta.bin lists 3 images, not 50000"):
        open_imagenet(tmp_path)


def test_archives_are_not_unpacked_unasked_and_a_damaged_one_is_an_error_of_one_line(tmp_path: Path) -> None:
    put(tmp_path, "ILSVRC2012_img_val.tar")
    with pytest.raises(ValueError, match=r"ILSVRC2012_img_val.tar must be unpacked, which download=True"):
        open_imagenet(tmp_path)
    write_meta(tmp_path, {})
    with pytest.raises(ValueError, match=r"could not be unpacked: The archive ILSVRC2012_img_val.tar") as caught:
        open_imagenet(tmp_path, download=True)
    assert "\n" not in str(caught.value)


def test_without_val_a_share_of_train_is_set_aside(tmp_path: Path) -> None:
    put(tmp_path, *(f"train/{wnid}/{number}.JPEG" for wnid in class_names()[:2] for number in range(10)))
    source = open_imagenet(tmp_path, val_share=0.2)
    train, val = source.open("train"), source.open("val")
    assert (train.split, val.split) == ("train", "val")
    assert np.bincount(val.level().labels).tolist() == [2, 2]
    places = [part.locate(index) for part in (train, val) for index in range(len(part))]
    assert len(set(places)) == 20
    assert "automatic split" in [note.problem for note in source.notes]


def test_the_folders_of_version_2_are_numbers_and_not_names(tmp_path: Path) -> None:
    put(tmp_path, *(f"imagenetv2-matched-frequency-format-val/{number}/a.jpeg" for number in (0, 2, 10, 100, 999)))
    source = open_imagenet_v2(tmp_path)
    val = source.open("val")
    assert source.splits == ("val",)
    assert val.level().labels.tolist() == [0, 2, 10, 100, 999]
    assert val.level().classes == class_names()
    assert val.read(2).endswith(b"/10/a.jpeg")  # type: ignore[union-attr]
    assert source.open("test") is val


def test_version_2_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"imagenet_v2 is not in .*: unpack imagenetv2-matched-frequency.tar.gz"):
        open_imagenet_v2(tmp_path / "nowhere")


def test_real_has_several_labels_or_none_for_an_image(tmp_path: Path) -> None:
    put(tmp_path, "val/n01440764/ILSVRC2012_val_00000003.JPEG", "val/n15075141/ILSVRC2012_val_00000001.JPEG")
    put(tmp_path, "val/n15075141/ILSVRC2012_val_00000002.JPEG")
    write_real(tmp_path, {1: [999, 5], 3: [0]})
    val = open_imagenet_real(tmp_path).open("val")
    assert list(val.levels) == ["label", "original"]
    assert val.level().is_multiple
    assert val.level().labels.shape == (3, 1000)
    assert [np.flatnonzero(row).tolist() for row in val.level().labels] == [[0], [5, 999], []]
    assert val.level("original").labels.tolist() == [0, 999, 999]


def test_real_needs_no_class_folders(tmp_path: Path) -> None:
    put(tmp_path, "val/ILSVRC2012_val_00000002.JPEG")
    write_real(tmp_path, {2: [7]})
    val = open_imagenet_real(tmp_path).open("test")
    assert list(val.levels) == ["label"]
    assert np.flatnonzero(val.level().labels[0]).tolist() == [7]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"real.json is missing: put real.json of https"),
        ("[[1], [2", r"real.json can't be read \(it is not JSON: .*\): get it anew"),
        ("{}", r"must be a list of 50000 lists of labels, and is no list"),
        ("[[1], [2]]", r"must be a list of 50000 lists of labels, and is a list of 2"),
        (json.dumps([[]] * 49_999 + [[1000]]), r"entry 50000 must be a list of labels from 0 to 999, and is \[1000\]"),
        (json.dumps([7] + [[]] * 49_999), r"entry 1 must be a list of labels from 0 to 999, and is 7"),
    ],
)
def test_a_wrong_real_json_is_an_error(tmp_path: Path, content: str | None, message: str) -> None:
    put(tmp_path, "val/n01440764/ILSVRC2012_val_00000003.JPEG")
    if content is not None:
        (tmp_path / "real.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        open_imagenet_real(tmp_path)


def test_real_can_not_number_images_that_were_renamed(tmp_path: Path) -> None:
    put(tmp_path, "val/n01440764/tench.JPEG")
    write_real(tmp_path, {})
    with pytest.raises(ValueError, match=r"val/n01440764/tench.JPEG is not called ILSVRC2012_val_00000001.JPEG"):
        open_imagenet_real(tmp_path)


def test_there_are_a_thousand_classes() -> None:
    assert len(class_names()) == 1000
    assert class_names()[0] == "n01440764"


def test_imagenet21k_says_which_val_it_makes_and_splits_as_the_folder_itself(tmp_path: Path) -> None:
    put(tmp_path, *[f"{wnid}/{wnid}_{number}.JPEG" for wnid in ("n00005787", "n01440764") for number in range(20)])
    source = open_imagenet21k(tmp_path, val_share=0.05)
    train, val = source.open("train"), source.open("val")
    assert train.level().classes == ("n00005787", "n01440764")
    assert (len(train), len(val)) == (38, 2)
    assert [note.detail for note in source.notes] == [
        "no splits given: 2 of 40 images of train were set aside as val",
    ]
    plain = open_dataset(tmp_path, "val", val_share=0.05)
    assert [plain.locate(index) for index in range(2)] == [val.locate(index) for index in range(2)]
    assert len(open_imagenet21k(tmp_path, val_share=0.0).open("train")) == 40


def test_imagenet21k_takes_the_val_that_is_there(tmp_path: Path) -> None:
    put(tmp_path, "train/n00005787/a.JPEG", "train/n01440764/b.JPEG", "val/n01440764/c.JPEG")
    source = open_dataset(f"imagenet21k:{tmp_path}", "val")
    assert source.level().labels.tolist() == [1]


def test_imagenet21k_that_is_none_is_an_error_of_one_line(tmp_path: Path) -> None:
    put(tmp_path, "n00005787/a.JPEG", "cats/b.JPEG")
    with pytest.raises(ValueError, match="WordNet ids such as n01440764, and cats is none"):
        open_imagenet21k(tmp_path)
