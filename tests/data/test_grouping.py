import json
from pathlib import Path

import numpy as np
import pytest

from vitrail.data.contract import Level
from vitrail.data.datasets import open_dataset, open_source
from vitrail.data.sources.grouping import GroupedSource
from vitrail.data.sources.imagenet import class_names
from vitrail.data.stored import ArrayDataset, OpenedSource


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    for name in ("beagle", "pug", "siamese"):
        for split in ("train", "val"):
            folder = tmp_path / "pets" / split / name
            folder.mkdir(parents=True)
            (folder / "1.png").write_bytes(b"")
    return tmp_path / "pets"


def write(folder: Path, text: str, *, name: str = "coarse.csv") -> Path:
    (folder / name).write_text(text)
    return folder / name


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("coarse.csv", "class,coarse\nbeagle,dog\n\npug,dog\nsiamese, cat\n"),
        ("coarse.tsv", "beagle\tdog\npug\tdog\nsiamese\tcat\n"),
        ("coarse.json", json.dumps({"beagle": "dog", "pug": "dog", "siamese": "cat"})),
    ],
)
def test_a_file_groups_the_classes_of_any_source(pets: Path, name: str, text: str) -> None:
    file = write(pets.parent, text, name=name)
    train = open_dataset(f"{pets},coarse={file}", "train")
    assert list(train.levels) == ["label", "coarse"]
    assert train.level("coarse").classes == ("cat", "dog")
    assert train.level("coarse").labels.tolist() == [1, 1, 0]
    assert open_dataset(f"{pets},coarse={file}", "train", labels="ignored").levels == {}


def test_a_level_of_that_name_that_is_there_already_is_an_error(tmp_path: Path) -> None:
    classes = open_dataset("shapes:count=24,size=16", "train").level().classes
    file = write(tmp_path, "\n".join(f"{name},shape" for name in classes))
    with pytest.raises(ValueError, match=r"shapes has labels 'coarse' of its own: leave coarse=.* out"):
        open_dataset(f"shapes:count=24,size=16,coarse={file}", "train")


def test_imagenet_is_grouped_by_wnids_or_by_words(tmp_path: Path) -> None:
    for split in ("train", "val"):
        (tmp_path / split / "n01440764").mkdir(parents=True)
        (tmp_path / split / "n01440764" / "ILSVRC2012_val_00000001.JPEG").write_bytes(b"")
    rows = {wnid: "fish" if wnid < "n01500000" else "other" for wnid in class_names()}
    rows["tench"] = rows.pop("n01440764")
    file = write(tmp_path, json.dumps(rows), name="coarse.json")
    val = open_dataset(f"imagenet:{tmp_path},coarse={file}", "val")
    assert val.level("coarse").classes == ("fish", "other")
    assert val.level("coarse").labels.tolist() == [0]
    rows["crane"] = rows.pop("n02012849")
    write(tmp_path, json.dumps(rows), name="coarse.json")
    with pytest.raises(ValueError, match="'crane' may be n02012849 or n03126707: write which"):
        open_dataset(f"imagenet:{tmp_path},coarse={file}", "val")


def test_images_of_several_classes_have_all_of_their_coarse_classes(tmp_path: Path) -> None:
    labels = np.array([[True, False, True], [False, False, False], [True, True, False]])
    images = np.zeros((3, 4, 4), dtype=np.uint8)
    dataset = ArrayDataset(name="few", split="val", images=images, levels={"label": Level(("a", "b", "c"), labels)})
    source = GroupedSource(OpenedSource([dataset]), write(tmp_path, "a,first\nb,first\nc,last\n"))
    assert source.open("val").level("coarse").labels.tolist() == [[True, True], [False, False], [True, False]]


def test_images_without_a_label_have_no_coarse_one(tmp_path: Path) -> None:
    levels = {"label": Level(("a", "b"), np.array([1, -1, 0]))}
    dataset = ArrayDataset(name="few", split="val", images=np.zeros((3, 4, 4), dtype=np.uint8), levels=levels)
    source = GroupedSource(OpenedSource([dataset]), write(tmp_path, "a,first\nb,last\n"))
    assert source.open("val").level("coarse").labels.tolist() == [1, -1, 0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("beagle,dog\npug,dog\n", r"coarse.csv gives no coarse class for 1 class \(siamese\) of pets"),
        ("beagle,dog\npug,dog\nsiamese,cat\nlynx,cat\n", r"names 1 class \(lynx\), which pets does not have"),
        ("beagle,dog\nbeagle,cat\n", "line 2: this class was in another coarse class before"),
        ("beagle\n", "line 1: a line is two cells, a class and its coarse class, not 1"),
        ("root:x:0,secret\n", "names none but classes, which pets does not have"),
        ("", r"gives no coarse class for 3 classes \(beagle, pug, siamese\)"),
    ],
)
def test_a_file_that_does_not_fit_is_an_error_of_one_line(pets: Path, text: str, message: str) -> None:
    file = write(pets.parent, text)
    with pytest.raises(ValueError, match=message) as caught:
        open_dataset(f"{pets},coarse={file}", "train")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_or_not_named_is_an_error(pets: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot read the coarse classes in none\.csv: No such file"):
        open_source(f"{pets},coarse=none.csv")
    with pytest.raises(ValueError, match="names no file: write coarse=FILE"):
        open_source(f"{pets},coarse=")


def test_a_folder_whose_name_looks_so_is_opened(pets: Path) -> None:
    odd = pets.rename(pets.parent / "pets,coarse=animals")
    assert len(open_dataset(str(odd), "train")) == 3
