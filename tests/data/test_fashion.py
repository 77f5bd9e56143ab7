import hashlib

import numpy as np
import pytest

from vitrail.data.sources.fashion import EMBEDDED, open_fashion
from vitrail.data.stored import ArrayDataset


def test_the_classes_are_balanced_and_shuffled() -> None:
    source = open_fashion()
    assert (source.name, source.splits) == ("fashion", ("train", "val"))
    for split, per_class in (("train", 600), ("val", 100)):
        dataset = source.open(split)
        labels = dataset.level().labels
        assert len(dataset) == 10 * per_class
        assert np.bincount(labels).tolist() == [per_class] * 10
        assert len(set(labels[:50].tolist())) == 10


def test_the_coarse_class_follows_from_the_class() -> None:
    dataset = open_fashion().open("val")
    fine, coarse = dataset.level("label"), dataset.level("coarse")
    pairs = {
        (fine.classes[label], coarse.classes[group]) for label, group in zip(fine.labels, coarse.labels, strict=True)
    }
    assert len(pairs) == 10
    groups = {group: {name for name, its in pairs if its == group} for group in coarse.classes}
    assert groups == {
        "tops": {"t-shirt", "pullover", "coat", "shirt"},
        "trousers": {"trouser"},
        "dresses": {"dress"},
        "shoes": {"sandal", "sneaker", "ankle boot"},
        "bags": {"bag"},
    }


@pytest.mark.parametrize(
    ("split", "digest"),
    [("train", "7301a32a1413c67d"), ("val", "3a6845f6ec24ad42")],
)
def test_the_samples_are_the_same_everywhere(split: str, digest: str) -> None:
    dataset = open_fashion().open(split)
    assert isinstance(dataset, ArrayDataset)
    content = hashlib.blake2b(dataset.images.tobytes(), digest_size=8)
    content.update(dataset.level().labels.astype(np.uint8).tobytes())
    assert content.hexdigest() == digest


def test_an_image_looks_like_its_class() -> None:
    # Trousers are narrow, bags are wide: the labels belong to the pictures.
    dataset = open_fashion().open("val")
    level = dataset.level()

    def mean_width(name: str) -> float:
        chosen = np.flatnonzero(level.labels == level.classes.index(name))
        return float(np.mean([(np.asarray(dataset.read(int(index))).max(axis=0) > 40).sum() for index in chosen]))

    assert mean_width("trouser") < 18 < 24 < mean_width("bag")


def test_no_image_is_in_both_splits_and_places_are_unique() -> None:
    source = open_fashion()
    datasets = [source.open(split) for split in source.splits]
    pictures = [{np.asarray(dataset.read(index)).tobytes() for index in range(len(dataset))} for dataset in datasets]
    assert not pictures[0] & pictures[1]
    places = [dataset.locate(index) for dataset in datasets for index in range(len(dataset))]
    assert len(set(places)) == len(places) == 7000


def test_the_files_are_read_once_and_cannot_be_written_to() -> None:
    dataset = open_fashion().open("val")
    assert open_fashion().open("val") is dataset
    image = dataset.read(0)
    assert isinstance(image, np.ndarray)
    assert image.shape == (28, 28)
    assert image.dtype == np.uint8
    with pytest.raises(ValueError, match="read-only"):
        image[0, 0] = 1


def test_the_licence_lies_beside_the_pictures_and_all_is_small() -> None:
    text = (EMBEDDED / "fashion.LICENSE").read_text(encoding="utf-8")
    assert "MIT License" in text
    assert "2017 Zalando SE" in text
    assert "github.com/zalandoresearch/fashion-mnist" in text
    assert sum(file.stat().st_size for file in EMBEDDED.glob("fashion*")) < 3_000_000
