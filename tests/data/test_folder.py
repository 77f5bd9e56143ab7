import os
import sys
from pathlib import Path

import numpy as np
import pytest

from vitrail.data.contract import Dataset, Note, Source
from vitrail.data.sources.folder import open_folder
from vitrail.data.stored import FileDataset

BYTES_AS_NAMES = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets file names be any bytes")


def fill(root: Path, *paths: str) -> Path:
    """Files that hold their own path; nothing here decodes them."""
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(os.fsencode(path))
    return root


def opened(root: Path, *, val_share: float = 0.1, seed: int = 0) -> Source:
    return open_folder(root, name="pets", val_share=val_share, seed=seed)


def paths_of(dataset: Dataset) -> list[str]:
    assert isinstance(dataset, FileDataset)
    return list(dataset.paths)


def notes_of(source: Source, problem: str) -> list[Note]:
    return [note for note in source.notes if note.problem == problem]


def test_train_val_and_test_folders(tmp_path: Path) -> None:
    fill(tmp_path, "train/dog/2.jpg", "train/cat/1.png", "train/dog/10.jpg", "val/cat/3.jpg", "val/dog/4.jpg")
    fill(tmp_path, "test/dog/5.jpg", "test/cat/5.jpg")
    source = opened(tmp_path)
    assert (source.name, source.splits, source.notes) == ("pets", ("train", "val", "test"), ())
    train = source.open("train")
    assert train.split == "train"
    assert paths_of(train) == ["train/cat/1.png", "train/dog/10.jpg", "train/dog/2.jpg"]
    assert list(train.levels) == ["label"]
    assert train.level().classes == ("cat", "dog")
    assert train.level().labels.tolist() == [0, 1, 1]
    assert train.level().labels.dtype == np.int64
    assert train.read(1) == b"train/dog/10.jpg"
    assert train.locate(1) == str(tmp_path / "train/dog/10.jpg")
    assert len(source.open("val")) == len(source.open("test")) == 2


@pytest.mark.parametrize("val", ["valid", "Validation", "dev"])
def test_other_names_of_splits(tmp_path: Path, val: str) -> None:
    source = opened(fill(tmp_path, "Training/cat/1.jpg", f"{val}/cat/2.jpg", "testing/cat/3.jpg"))
    assert source.splits == ("train", "val", "test")
    assert paths_of(source.open("val")) == [f"{val}/cat/2.jpg"]


def test_two_folders_of_one_split_are_an_error(tmp_path: Path) -> None:
    fill(tmp_path, "train/cat/1.jpg", "val/cat/2.jpg", "valid/cat/3.jpg")
    with pytest.raises(ValueError, match=r"the folders val and valid in .* all mean val: keep one of them"):
        opened(tmp_path)


def test_class_folders_alone_are_split_by_class(tmp_path: Path) -> None:
    fill(tmp_path, *(f"{name}/{number}.jpg" for name in ("cat", "dog") for number in range(20)))
    source = opened(tmp_path, val_share=0.25)
    assert source.splits == ("train", "val")
    train, val = source.open("train"), source.open("val")
    assert np.bincount(val.level().labels).tolist() == [5, 5]
    assert np.bincount(train.level().labels).tolist() == [15, 15]
    assert set(paths_of(train)).isdisjoint(paths_of(val))
    assert paths_of(train) == sorted(paths_of(train))
    (note,) = source.notes
    assert (note.problem, note.is_serious) == ("automatic split", False)


def test_split_does_not_depend_on_where_the_folder_lies(tmp_path: Path) -> None:
    names = [f"cat/{number}.jpg" for number in range(30)]
    here = opened(fill(tmp_path / "here", *names)).open("val")
    there = opened(fill(tmp_path / "there/deeper", *reversed(names))).open("val")
    below_train = opened(fill(tmp_path / "third", *(f"train/{name}" for name in names))).open("val")
    assert paths_of(here) == paths_of(there) == [path.removeprefix("train/") for path in paths_of(below_train)]


def test_train_and_test_without_val(tmp_path: Path) -> None:
    fill(tmp_path, *(f"train/cat/{number}.jpg" for number in range(10)), "test/cat/1.jpg")
    source = opened(tmp_path)
    assert source.splits == ("train", "val", "test")
    assert [len(source.open(split)) for split in source.splits] == [9, 1, 1]
    (note,) = notes_of(source, "automatic split")
    assert note.detail == "no val given: 1 of 10 images of train were set aside as val"
    assert not note.is_serious


def test_val_alone_stays_val(tmp_path: Path) -> None:
    assert opened(fill(tmp_path, "val/cat/1.jpg", "val/dog/1.jpg")).splits == ("val",)


def test_hidden_things_are_ignored_at_any_depth(tmp_path: Path) -> None:
    fill(tmp_path, "train/cat/1.jpg", "val/cat/2.jpg")
    before = opened(tmp_path)
    fill(tmp_path, ".ipynb_checkpoints/1.jpg", "train/.ipynb_checkpoints/1.jpg", "train/cat/.ipynb_checkpoints/1.jpg")
    fill(tmp_path, "__MACOSX/cat/1.jpg", "val/__MACOSX/1.jpg", "val/cat/._2.jpg", ".git/train/1.jpg")
    fill(tmp_path, "train/cat/Thumbs.db", "train/cat/desktop.ini", "train/cat/.DS_Store", "val/Thumbs.db")
    after = opened(tmp_path)
    assert after.notes == before.notes
    assert after.splits == before.splits
    for split in after.splits:
        assert paths_of(after.open(split)) == paths_of(before.open(split))
        assert after.open(split).level().classes == before.open(split).level().classes


def test_images_are_found_at_any_depth_and_with_any_extension(tmp_path: Path) -> None:
    endings = ["jpg", "JPEG", "Png", "webp", "bmp", "gif", "tif", "tiff", "ppm", "pgm", "jp2", "avif"]
    fill(tmp_path, *(f"train/cat/deep/{ending}/x.{ending}" for ending in endings), "val/cat/a.b.jpg")
    source = opened(tmp_path)
    assert len(source.open("train")) == len(endings)
    assert source.open("train").level().classes == ("cat",)
    assert paths_of(source.open("val")) == ["val/cat/a.b.jpg"]


def test_classes_are_one_list_and_a_missing_one_keeps_its_index(tmp_path: Path) -> None:
    fill(tmp_path, "train/ant/1.jpg", "train/cow/1.jpg", "val/bee/1.jpg", "val/cow/1.jpg")
    source = opened(tmp_path)
    assert source.open("train").level().classes == source.open("val").level().classes == ("ant", "bee", "cow")
    assert source.open("train").level().labels.tolist() == [0, 2]
    assert source.open("val").level().labels.tolist() == [1, 2]
    assert notes_of(source, "class missing") == [
        Note("class missing", "train/ant", "in train but not in val", True),
        Note("class missing", "val/bee", "in val but not in train", True),
    ]


def test_misspelt_class_is_named_from_both_sides(tmp_path: Path) -> None:
    fill(tmp_path, "train/beagle/1.jpg", "train/boxer/1.jpg", "valid/beagel/1.jpg", "valid/boxer/1.jpg")
    assert notes_of(opened(tmp_path), "class missing") == [
        Note("class missing", "valid/beagel", "in val but not in train; train has 'beagle': is it misspelt?", True),
        Note("class missing", "train/beagle", "in train but not in val; val has 'beagel': is it misspelt?", True),
    ]


def test_empty_folder_counts_as_a_missing_class(tmp_path: Path) -> None:
    fill(tmp_path, "train/cat/1.jpg", "train/dog/1.jpg", "val/cat/1.jpg")
    (tmp_path / "val/dog").mkdir()
    source = opened(tmp_path)
    assert notes_of(source, "class missing") == [Note("class missing", "train/dog", "in train but not in val", True)]
    assert notes_of(source, "empty class") == [Note("empty class", "val/dog", "no images in it", False)]


def test_folder_that_is_empty_everywhere_is_no_class(tmp_path: Path) -> None:
    fill(tmp_path, "cat/1.jpg", "cat/2.jpg", "dog/1.jpg")
    (tmp_path / "bird").mkdir()
    source = opened(tmp_path)
    assert source.open("train").level().classes == ("cat", "dog")
    assert notes_of(source, "empty class") == [
        Note("empty class", "bird", "no images in it: not counted as a class", False)
    ]


def test_names_that_differ_in_capitals_only(tmp_path: Path) -> None:
    fill(tmp_path, "Cat/1.jpg", "Dog/1.jpg")
    fill(tmp_path, "cat/2.jpg")
    if len(list(tmp_path.iterdir())) < 3:
        pytest.skip("this file system does not tell capitals apart")
    (note,) = notes_of(opened(tmp_path), "class names alike")
    assert note.place == "Cat"
    assert note.detail.startswith("'Cat' and 'cat' are counted as 2 classes")
    assert note.is_serious


def test_strays_are_noted_and_not_read(tmp_path: Path) -> None:
    fill(tmp_path, "train/cat/1.jpg", "val/cat/1.jpg", "README.md", "cover.jpg", "labels/cat.txt")
    fill(tmp_path, "train/b.jpg", "train/a.jpg", "val/cat/notes.txt", "val/cat/deep/more.txt")
    source = opened(tmp_path)
    assert len(source.open("train")) == len(source.open("val")) == 1
    assert [note for note in source.notes if note.problem != "single class"] == [
        Note("stray images", "train", "images beside the class folders, and passed over: 2, such as a.jpg", False),
        Note(
            "other files",
            "val/cat",
            "not image files, and passed over: 2, such as val/cat/notes.txt",
            False,
        ),
        Note("stray images", ".", "images beside the class folders, and passed over: 1, such as cover.jpg", False),
        Note("stray folder", "labels", "a folder beside those of the splits: it was not read", False),
    ]


def test_class_may_be_called_train(tmp_path: Path) -> None:
    source = opened(fill(tmp_path, "car/1.jpg", "car/2.jpg", "ship/1.jpg", "train/1.jpg"))
    assert source.open("train").level().classes == ("car", "ship", "train")
    assert [(note.place, note.is_serious) for note in notes_of(source, "class named like a split")] == [
        ("train", False)
    ]


def test_flat_train_and_val_are_no_classes(tmp_path: Path) -> None:
    fill(tmp_path, "train/1.jpg", "train/2.jpg", "val/3.jpg")
    with pytest.raises(ValueError, match=r"found 2 images but no class folders in .*train.*or write a manifest"):
        opened(tmp_path)


def test_test_without_classes_is_left_out(tmp_path: Path) -> None:
    source = opened(fill(tmp_path, "train/cat/1.jpg", "val/cat/2.jpg", "test/3.jpg"))
    assert source.splits == ("train", "val")
    assert notes_of(source, "no classes") == [
        Note("no classes", "test", "no class folders in it, only images (1): it was left out", False)
    ]


def test_single_class_with_folders_inside_is_probably_a_wrapper(tmp_path: Path) -> None:
    source = opened(fill(tmp_path, "archive/cat/1.jpg", "archive/dog/1.jpg"))
    (note,) = notes_of(source, "single class")
    assert note.detail.endswith("if those are the classes, open the folder 'archive' instead")
    assert note.is_serious


def test_single_class_is_noted(tmp_path: Path) -> None:
    source = opened(fill(tmp_path, "train/cat/1.jpg", "val/cat/1.jpg"))
    assert source.notes == (Note("single class", "cat", "all images are of one class", False),)


def test_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no folder .*nowhere$"):
        opened(tmp_path / "nowhere")


def test_file_instead_of_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cat\.jpg is a file, not a folder of class folders"):
        opened(fill(tmp_path, "cat.jpg") / "cat.jpg")


def test_images_without_class_folders(tmp_path: Path) -> None:
    fill(tmp_path, *(f"{number}.jpg" for number in range(12)))
    with pytest.raises(
        ValueError, match=r"found 12 images but no class folders in .*: put each class in a folder of its"
    ):
        opened(tmp_path)


@pytest.mark.parametrize("paths", [[], ["readme.txt"], ["cat/readme.txt"], ["train/cat/1.txt", "val/cat/2.txt"]])
def test_folder_without_images(tmp_path: Path, paths: list[str]) -> None:
    with pytest.raises(ValueError, match=r"no images below .*: looked for \.jpg, \.jpeg"):
        opened(fill(tmp_path, *paths))


def test_links_are_followed(tmp_path: Path) -> None:
    fill(tmp_path / "store", "tabby/1.jpg", "2.jpg")
    fill(tmp_path / "data", "train/dog/1.jpg", "val/dog/1.jpg", "val/cat/1.jpg")
    (tmp_path / "data/train/cat").symlink_to(tmp_path / "store", target_is_directory=True)
    (tmp_path / "data/train/dog/3.jpg").symlink_to(tmp_path / "store/2.jpg")
    source = opened(tmp_path / "data")
    assert paths_of(source.open("train")) == [
        "train/cat/2.jpg",
        "train/cat/tabby/1.jpg",
        "train/dog/1.jpg",
        "train/dog/3.jpg",
    ]
    assert source.notes == ()


@pytest.mark.parametrize("target", [".", "train", "train/cat", "train/cat/deep"])
def test_loop_of_links_ends(tmp_path: Path, target: str) -> None:
    fill(tmp_path, "train/cat/1.jpg", "train/cat/deep/2.jpg", "val/cat/1.jpg")
    (tmp_path / "train/cat/deep/loop").symlink_to(tmp_path / target, target_is_directory=True)
    source = opened(tmp_path)
    assert paths_of(source.open("train")) == ["train/cat/1.jpg", "train/cat/deep/2.jpg"]
    assert [note.place for note in notes_of(source, "repeated folder")] == ["train/cat/deep/loop"]


def test_links_that_lead_nowhere(tmp_path: Path) -> None:
    """One with the name of an image is a sample: it is for the reader to find that it can't be read."""
    fill(tmp_path, "train/cat/1.jpg", "val/cat/1.jpg")
    (tmp_path / "train/cat/itself").symlink_to(tmp_path / "train/cat/itself")
    (tmp_path / "train/cat/gone.jpg").symlink_to(tmp_path / "gone.jpg")
    source = opened(tmp_path)
    assert paths_of(source.open("train")) == ["train/cat/1.jpg", "train/cat/gone.jpg"]
    assert [note.place for note in notes_of(source, "other files")] == ["train/cat"]


@BYTES_AS_NAMES
def test_names_in_another_encoding_can_be_read_and_printed(tmp_path: Path) -> None:
    latin = os.fsdecode("café".encode("latin-1"))
    fill(tmp_path, f"{latin}/b.jpg", f"{latin}/c.jpg", "dog/d.jpg", "dog/e.jpg", "cat/f.jpg", "cat/g.jpg")
    (tmp_path / "dog" / f"{latin}.jpg").write_bytes(b"named in Latin-1")
    (tmp_path / latin / f"{latin}.txt").touch()
    source = opened(tmp_path)
    text = ""
    contents = []
    for split in source.splits:
        dataset = source.open(split)
        contents += [dataset.read(index) for index in range(len(dataset))]
        text += "".join(dataset.locate(index) for index in range(len(dataset))) + "".join(dataset.level().classes)
    assert b"named in Latin-1" in contents
    assert "caf\\udce9" in text
    text += "".join(note.place + note.detail for note in source.notes)
    text.encode("utf-8")


def test_pipe_with_the_name_of_an_image_is_passed_over(tmp_path: Path) -> None:
    fill(tmp_path, "train/cat/1.jpg", "val/cat/1.jpg")
    os.mkfifo(tmp_path / "train/cat/2.jpg")
    (tmp_path / "train/cat/3.jpg").symlink_to(tmp_path / "train/cat/2.jpg")
    (tmp_path / "train/cat/4.jpg").symlink_to(tmp_path / "val/cat/1.jpg")
    source = opened(tmp_path)
    assert paths_of(source.open("train")) == ["train/cat/1.jpg", "train/cat/4.jpg"]
    (note,) = notes_of(source, "other files")
    assert note.detail == "not image files, and passed over: 2, such as train/cat/2.jpg"


def test_images_without_class_folders_open_where_no_labels_are_needed(tmp_path: Path) -> None:
    fill(tmp_path, *(f"{number}.jpg" for number in range(20)), "notes.txt", ".hidden.jpg")
    for labels in ("optional", "ignored"):
        source = open_folder(tmp_path, name="photos", val_share=0.2, labels=labels)
        train, val = source.open("train"), source.open("val")
        assert (train.levels, val.levels, len(train), len(val)) == ({}, {}, 16, 4)
        assert not set(paths_of(train)) & set(paths_of(val))
        assert [note.problem for note in source.notes] == ["other files", "automatic split"]
    fill(tmp_path, "20.jpg")
    again = open_folder(tmp_path, name="photos", val_share=0.2, labels="optional").open("val")
    assert len(set(paths_of(val)) - set(paths_of(again))) <= 1
    with pytest.raises(ValueError, match=r"^photos has no labels: put each class in a folder of its own"):
        train.level()


def test_labels_that_are_there_are_kept_where_they_are_optional_and_dropped_where_they_are_ignored(
    tmp_path: Path,
) -> None:
    fill(tmp_path, "stray.jpg", *(f"{name}/{number}.jpg" for name in ("cat", "dog") for number in range(10)))
    optional, required = (open_folder(tmp_path, name="pets", labels=labels) for labels in ("optional", "required"))
    assert paths_of(optional.open("val")) == paths_of(required.open("val"))
    assert optional.open("train").level().classes == ("cat", "dog")
    ignored = open_folder(tmp_path, name="pets", labels="ignored")
    paths = [path for split in ignored.splits for path in paths_of(ignored.open(split))]
    assert len(set(paths)) == len(paths) == 21
    assert ignored.open("train").levels == {}


def test_splits_of_unlabelled_images_are_found_by_their_folders(tmp_path: Path) -> None:
    fill(tmp_path, "train/1.jpg", "train/2.jpg", "train/2019/may/3.jpg", "val/4.jpg", "test/5.jpg", "other/6.jpg")
    source = open_folder(tmp_path, name="photos", labels="ignored")
    assert source.splits == ("train", "val", "test")
    assert paths_of(source.open("train")) == ["train/1.jpg", "train/2.jpg", "train/2019/may/3.jpg"]
    assert [note.problem for note in source.notes] == ["stray folder"]
    with pytest.raises(ValueError, match=r"^no images below .*: looked for \.jpg"):
        open_folder(fill(tmp_path / "none", "a.txt"), name="none", labels="ignored")


@pytest.mark.parametrize("prefixes", [("",), ("train/", "val/")])
@pytest.mark.parametrize(
    ("folder", "ending", "told"),
    [("masks", ".png", "task=segment"), ("labels", "_mask.png", "task=segment"), ("labels", ".txt", "task=detect")],
)
def test_images_beside_masks_or_boxes_are_no_classes(
    tmp_path: Path, prefixes: tuple[str, ...], folder: str, ending: str, told: str
) -> None:
    for prefix in prefixes:
        for number in range(3):
            for path in (f"{prefix}images/{number}.jpg", f"{prefix}{folder}/{number}{ending}"):
                (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / path).touch()
    with pytest.raises(ValueError, match=rf"with files of the same names: .* not two classes; {told}") as error:
        open_folder(tmp_path, name="data")
    assert "\n" not in str(error.value)


def test_two_classes_may_be_called_images_and_masks(tmp_path: Path) -> None:
    for path in ("images/a.jpg", "images/b.jpg", "masks/c.jpg", "masks/d.jpg"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).touch()
    assert open_folder(tmp_path, name="data", val_share=0.5).open("train").level().classes == ("images", "masks")
