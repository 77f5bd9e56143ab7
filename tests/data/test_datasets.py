import csv
import errno
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from vitrail.data.contract import Dataset, Level, Source
from vitrail.data.datasets import KINDS, open_dataset, open_source
from vitrail.data.exclusion import leave_out
from vitrail.data.sources.names import NAMED
from vitrail.data.stored import ArrayDataset, OpenedSource
from vitrail.settings.data import DataSettings


def fill(root: Path, *paths: str) -> Path:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(path)
    return root


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """A folder of two classes, with train and val."""
    names = [
        f"{split}/{name}/{number}.jpg" for split in ("train", "val") for name in ("cat", "dog") for number in range(3)
    ]
    return fill(tmp_path / "pets", *names)


def tiny_source(name: str = "tiny") -> Source:
    level = Level(classes=("a", "b"), labels=np.array([0, 1, 1]))
    images = np.zeros((3, 2, 2), dtype=np.uint8)
    return OpenedSource(
        [ArrayDataset(name=name, split=split, images=images, levels={"class": level}) for split in ("train", "test")]
    )


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The calls that reach the openers of all kinds but folders and manifests."""
    received: list[tuple[Any, ...]] = []

    def stand_in(module: str, function: str) -> None:
        def opener(*arguments: Any, **settings: Any) -> Source:
            received.append((function, *arguments, settings))
            return tiny_source()

        replacement = ModuleType(module)
        setattr(replacement, function, opener)
        monkeypatch.setitem(sys.modules, f"vitrail.data.sources.{module}", replacement)

    for module in ("named", "huggingface", "shards", "fashion", "shapes"):
        stand_in(module, f"open_{module}")
    return received


NAMED_OPENING = {"download": True, "val_share": 0.2, "seed": 3, "protocol": "paper"}


@pytest.mark.parametrize(
    ("spec", "call"),
    [
        ("cifar100", ("open_named", "cifar100", None, NAMED_OPENING)),
        (
            "imagenet:/data/imagenet",
            ("open_named", "imagenet", Path("/data/imagenet"), NAMED_OPENING),
        ),
        ("hf://owner/name", ("open_huggingface", "owner/name", {"val_share": 0.2, "seed": 3})),
        ("hf://owner/name:config", ("open_huggingface", "owner/name:config", {"val_share": 0.2, "seed": 3})),
        (
            "shards:/d/t-{00..12}.tar",
            ("open_shards", "/d/t-{00..12}.tar", {"val_share": 0.2, "seed": 3, "labels": "required"}),
        ),
        ("fashion", ("open_fashion", {})),
        ("shapes", ("open_shapes", "", {})),
        ("shapes:size=64,count=1000", ("open_shapes", "size=64,count=1000", {})),
    ],
)
def test_names_reach_their_reader(spec: str, call: tuple[Any, ...], calls: list[tuple[Any, ...]]) -> None:
    assert open_source(spec, val_share=0.2, seed=3, download=True).name == "tiny"
    assert calls == [call]


def test_every_named_set_is_in_the_table() -> None:
    assert set(NAMED) | {"fashion", "shapes", "hf", "shards"} <= set(KINDS)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("hf:owner/name", r"is written hf://OWNER/NAME, not hf:owner/name"),
        ("hf://", r"is written hf://OWNER/NAME"),
        ("shards", r"shards need the pattern of their files"),
        ("fashion:size=3", r"fashion takes no settings, not 'size=3'"),
        ("", r"named by an empty text: give a folder"),
        ("nowhere.csv", r"no file nowhere\.csv"),
    ],
)
def test_specs_that_are_incomplete(spec: str, message: str, calls: list[tuple[Any, ...]]) -> None:
    with pytest.raises(ValueError, match=message):
        open_source(spec)
    assert calls == []


def test_unknown_name_is_answered_with_the_nearest_and_all_kinds() -> None:
    with pytest.raises(ValueError, match=r"no folder or file 'CIFAR_100', and no data set of that name") as caught:
        open_source("CIFAR_100")
    assert "(is 'cifar100' meant?)" in str(caught.value)
    assert "\n" not in str(caught.value)
    for kind in ("a folder of class folders", ".csv", "hf://", "shards:", "fashion", "shapes", "imagenet_real"):
        assert kind in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "offered"),
    [
        ("pet", "(is 'pets' meant?)"),
        ("lba", "(is 'lab' meant?)"),
        ("Pets2", "(is 'pets' meant?)"),
        ("./pet/train", "(is 'pets/train' meant?)"),
        ("fashons", "(is 'fashion' or 'my_fashions' meant?)"),
        ("petz.csv", "no file petz.csv (is 'pets.csv' meant?)"),
    ],
)
def test_unknown_name_is_answered_with_what_is_there(
    pets: Path, spec: str, offered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(pets.parent)
    (pets.parent / "my_fashions").mkdir()
    (pets.parent / "lab").mkdir()
    (pets.parent / "pets.csv").write_text("path,label\n")
    (pets.parent / "petals.txt").write_text("")
    with pytest.raises(ValueError, match="no f") as caught:
        open_source(spec)
    assert offered in str(caught.value)


@pytest.mark.parametrize("as_text", [True, False])
def test_folder(pets: Path, as_text: bool) -> None:
    dataset = open_dataset(str(pets) if as_text else pets, "val")
    assert (dataset.name, dataset.split, len(dataset)) == ("pets", "val", 6)


def test_folder_is_named_even_when_it_is_the_working_folder(pets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(pets)
    assert open_source(".").name == "pets"


@pytest.mark.parametrize(("name", "delimiter"), [("list.csv", ","), ("list.tsv", "\t")])
def test_manifest(pets: Path, name: str, delimiter: str) -> None:
    (pets / name).write_text("path,label\ntrain/cat/1.jpg,cat\ntrain/dog/1.jpg,dog\n".replace(",", delimiter))
    dataset = open_dataset(pets / name)
    assert (dataset.name, len(dataset)) == ("list", 2)


def test_name_goes_before_a_folder_unless_that_is_written_as_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: list[tuple[Any, ...]]
) -> None:
    fill(tmp_path / "fashion", "shoes/1.jpg", "shoes/2.jpg")
    monkeypatch.chdir(tmp_path)
    source = open_source("fashion")
    assert source.name == "tiny"
    assert len(calls) == 1
    (note,) = source.notes
    assert note.detail.endswith("there is also a folder of that name: write ./fashion for it")
    assert (note.place, note.is_serious) == ("fashion", False)
    for spec in ("./fashion", "fashion/", str(tmp_path / "fashion"), Path("fashion")):
        assert open_source(spec).name == "fashion"
    assert len(calls) == 1


def test_error_of_a_name_mentions_the_folder_that_is_called_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: list[tuple[Any, ...]]
) -> None:
    fill(tmp_path / "shards", "cat/1.jpg")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"need the pattern .*; there is also a folder of that name: write \./shards"):
        open_source("shards")
    assert open_source("shapes").notes == ()


@pytest.mark.parametrize("name", ["pets", "list.csv"])
def test_path_in_a_locked_folder_is_an_error_of_one_line(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def refuse(path: Path, **settings: object) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    with monkeypatch.context() as locked:
        locked.setattr(Path, "stat", refuse)
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            open_source(f"locked/{name}")
    assert str(caught.value) == f"cannot look at locked/{name}: Permission denied"


def test_named_set_in_a_locked_folder_is_an_error_of_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, root: Path, **settings: object) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied", str(root / "val"))

    monkeypatch.setattr("vitrail.data.sources.named.open_named", refuse)
    with pytest.raises(ValueError, match=r"^imagenet could not be read: .*Permission denied: 'locked/val'$"):
        open_source("imagenet:locked")


@pytest.mark.parametrize("spec", ["a\0b", "~nobody-of-this-name/pets"])
def test_path_that_can_not_be(spec: str) -> None:
    with pytest.raises(ValueError, match="no folder or file"):
        open_source(spec)


def test_folder_whose_name_is_no_data_set_needs_no_separator(pets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(pets.parent)
    assert open_source("pets").splits == ("train", "val")


def test_files_that_are_no_manifests(tmp_path: Path) -> None:
    fill(tmp_path, "train.tar", "list.xlsx")
    with pytest.raises(ValueError, match=r"train\.tar is an archive: unpack it, or write shards:.*train\.tar"):
        open_source(tmp_path / "train.tar")
    with pytest.raises(ValueError, match=r"list\.xlsx is neither a folder nor a manifest"):
        open_source(tmp_path / "list.xlsx")


def test_settings_of_the_automatic_split_arrive(tmp_path: Path) -> None:
    fill(tmp_path / "data", *(f"cat/{number}.jpg" for number in range(20)))
    assert len(open_dataset(tmp_path / "data", "val", val_share=0.25)) == 5
    places = [open_dataset(tmp_path / "data", "val", seed=seed).locate(0) for seed in range(8)]
    assert len(set(places)) > 1


@pytest.mark.parametrize("split", ["valid", "Validation", "dev", "val"])
def test_other_names_of_splits(pets: Path, split: str) -> None:
    assert open_dataset(pets, split).split == "val"


def test_split_that_is_not_there(pets: Path) -> None:
    with pytest.raises(ValueError, match=r"pets has no split 'test'; it has: train, val"):
        open_dataset(pets, "test")


def write_listing(path: Path, *places: object, split: str = "train") -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "split", "problem", "detail"])
        writer.writerows([place, split, "broken", "cut off, at the end"] for place in places)
    return path


def places_of(dataset: Dataset) -> set[str]:
    return {dataset.locate(index) for index in range(len(dataset))}


@pytest.mark.parametrize("form", ["as located", "below the data folder", "below the working folder", "through a link"])
def test_listed_samples_are_left_out(pets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(pets, target_is_directory=True)
    form_of = {
        "as located": lambda path: pets / path,
        "below the data folder": lambda path: path,
        "below the working folder": lambda path: f"pets/{path}",
        "through a link": lambda path: tmp_path / "link" / path,
    }[form]
    listing = write_listing(tmp_path / "quarantine.csv", form_of("train/cat/1.jpg"), form_of("train/dog/9.jpg"))
    whole = open_dataset(pets)
    dataset = open_dataset(pets, exclude=listing)
    assert places_of(whole) - places_of(dataset) == {str(pets / "train/cat/1.jpg")}
    assert dataset.level().labels.tolist() == [0, 0, 1, 1, 1]
    assert dataset.read(1) == b"train/cat/2.jpg"


def test_data_that_is_opened_by_a_relative_path(pets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    listing = write_listing(tmp_path / "quarantine.csv", pets / "train/cat/1.jpg")
    assert len(open_dataset("pets", exclude=listing)) == 5


def test_link_to_a_file_is_another_sample(pets: Path, tmp_path: Path) -> None:
    (pets / "train/cat/copy.jpg").symlink_to(pets / "train/cat/1.jpg")
    listing = write_listing(tmp_path / "quarantine.csv", pets / "train/cat/copy.jpg")
    whole = open_dataset(pets)
    assert places_of(whole) - places_of(open_dataset(pets, exclude=listing)) == {str(pets / "train/cat/copy.jpg")}


def test_listing_of_the_other_split_changes_nothing(pets: Path, tmp_path: Path) -> None:
    listing = write_listing(tmp_path / "quarantine.csv", pets / "train/cat/1.jpg")
    assert len(open_dataset(pets, "val", exclude=listing)) == 6


def test_listing_without_rows_changes_nothing(pets: Path, tmp_path: Path) -> None:
    assert len(open_dataset(pets, exclude=write_listing(tmp_path / "quarantine.csv"))) == 6


def test_listing_of_other_data_is_an_error(pets: Path, tmp_path: Path) -> None:
    listing = write_listing(tmp_path / "quarantine.csv", "cars/train/1.jpg", "/elsewhere/cat/1.jpg")
    with pytest.raises(ValueError, match=r"none of the 2 paths in .*quarantine\.csv is in pets: is it of other data\?"):
        open_dataset(pets, exclude=listing)


@pytest.mark.parametrize("is_absolute", [True, False])
def test_listing_whose_files_were_all_deleted_changes_nothing(pets: Path, tmp_path: Path, is_absolute: bool) -> None:
    listed = ["train/cat/1.jpg", "train/dog/2.jpg"]
    listing = write_listing(tmp_path / "quarantine.csv", *(pets / path if is_absolute else path for path in listed))
    for path in listed:
        (pets / path).unlink()
    assert len(open_dataset(pets, exclude=listing)) == 4
    assert len(open_dataset(pets, "val", exclude=listing)) == 6


def test_listing_of_other_files_in_the_data_folder_is_an_error(pets: Path, tmp_path: Path) -> None:
    listing = write_listing(tmp_path / "quarantine.csv", fill(pets, "train/notes.txt") / "train/notes.txt")
    with pytest.raises(ValueError, match=r"is it of other data\?"):
        open_dataset(pets, exclude=listing)


def test_listing_may_be_named_by_a_text(pets: Path, tmp_path: Path) -> None:
    listing = write_listing(tmp_path / "quarantine.csv", pets / "train/cat/1.jpg")
    assert len(open_dataset(pets, exclude=str(listing))) == 5


def test_listing_with_a_huge_cell_is_an_error_of_one_line(pets: Path, tmp_path: Path) -> None:
    listing = write_listing(tmp_path / "quarantine.csv", "x" * 200_000)
    with pytest.raises(ValueError, match=r"quarantine\.csv cannot be read as CSV: field larger"):
        open_dataset(pets, exclude=listing)


def test_listing_that_leaves_nothing_is_an_error(pets: Path, tmp_path: Path) -> None:
    listing = write_listing(tmp_path / "quarantine.csv", *places_of(open_dataset(pets)))
    with pytest.raises(ValueError, match=r"quarantine\.csv leaves nothing of the split train of pets"):
        open_dataset(pets, exclude=listing)


def test_listing_that_is_none(pets: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot read .*nothing\.csv: No such file"):
        open_dataset(pets, exclude=tmp_path / "nothing.csv")
    (tmp_path / "other.csv").write_text("file,label\n1.jpg,cat\n")
    with pytest.raises(ValueError, match=r"other\.csv has no column 'path': is it a quarantine\.csv\?"):
        open_dataset(pets, exclude=tmp_path / "other.csv")


def test_samples_that_are_no_files_are_left_out_by_their_place(tmp_path: Path) -> None:
    dataset = tiny_source().open("train")
    shorter = leave_out(dataset, write_listing(tmp_path / "quarantine.csv", "tiny/train/1"))
    assert places_of(shorter) == {"tiny/train/0", "tiny/train/2"}
    again = leave_out(shorter, write_listing(tmp_path / "more.csv", "tiny/train/0"))
    assert places_of(again) == {"tiny/train/2"}


def test_a_data_set_may_be_opened_without_labels(tmp_path: Path, pets: Path) -> None:
    flat = fill(tmp_path / "photos_flat", *(f"{number}.jpg" for number in range(20)))
    assert open_dataset(flat, "train", labels="optional").levels == {}
    assert len(open_dataset(flat, "val", labels="ignored")) == 2
    with pytest.raises(ValueError, match="found 20 images but no class folders in"):
        open_dataset(flat, "train")
    assert open_dataset(pets, "val", labels="optional").level().classes == ("cat", "dog")
    assert open_dataset(pets, "val", labels="ignored").levels == {}
    drawn, bare = (open_dataset("shapes:count=5,size=16", labels=labels) for labels in ("required", "ignored"))
    assert (len(bare), bare.levels) == (5, {})
    assert np.array_equal(drawn.read(3), bare.read(3))
    with pytest.raises(ValueError, match="unknown choice of labels 'none'; known are: required, optional, ignored"):
        open_dataset(flat, labels="none")  # type: ignore[arg-type]
    listing = tmp_path / "quarantine.csv"
    listing.write_text(f"path\n{flat / '3.jpg'}\n")
    parts = [open_dataset(flat, split, labels="ignored", exclude=listing) for split in ("train", "val")]
    assert sum(map(len, parts)) == 19


def test_other_data_to_evaluate_on_is_taken_whole(tmp_path: Path, pets: Path) -> None:
    fill(tmp_path / "train", *(f"{name}/{number}.jpg" for name in ("cat", "dog") for number in range(6)))
    fill(tmp_path / "other", *(f"{name}/{number}.jpg" for name in ("cat", "dog") for number in range(5)))
    train, val = DataSettings(spec=str(tmp_path / "train"), val=str(tmp_path / "other")).open()
    assert (len(train), len(val), val.split) == (12, 10, "val")
    assert len(DataSettings(spec=str(tmp_path / "train"), val=str(pets)).open()[1]) == 6
