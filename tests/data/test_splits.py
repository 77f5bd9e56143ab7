import numpy as np
import pytest

from vitrail.data.splits import canonical, complete, in_order, stratify


def numbered(count: int) -> list[str]:
    return [f"class/{number}.jpg" for number in range(count)]


def test_each_class_gives_its_share_to_val() -> None:
    labels = np.repeat([0, 1, 2], [100, 40, 5])
    is_val = stratify(numbered(145), labels, share=0.2, seed=0)
    assert is_val.dtype == bool
    assert [int(is_val[labels == label].sum()) for label in range(3)] == [20, 8, 1]


@pytest.mark.parametrize(
    ("size", "share", "num_val"), [(1, 0.9, 0), (2, 0.01, 1), (2, 0.99, 1), (3, 0.99, 2), (10, 0.26, 3)]
)
def test_small_classes_keep_an_image_on_both_sides_where_they_can(size: int, share: float, num_val: int) -> None:
    assert stratify(numbered(size), np.zeros(size, dtype=np.int64), share=share).sum() == num_val


def test_split_does_not_depend_on_the_order_of_samples() -> None:
    names = numbered(60)
    labels = np.arange(60) % 4
    order = np.random.RandomState(0).permutation(60)
    shuffled = stratify([names[place] for place in order], labels[order], share=0.3, seed=5)
    np.testing.assert_array_equal(shuffled, stratify(names, labels, share=0.3, seed=5)[order])


def test_split_is_the_same_in_every_version() -> None:
    """A changed split would move images from val into the train of a run that is resumed."""
    is_val = stratify(numbered(12), np.zeros(12, dtype=np.int64), share=0.25, seed=0)
    assert np.flatnonzero(is_val).tolist() == [2, 7, 10]


def test_other_seed_gives_another_split() -> None:
    labels = np.zeros(100, dtype=np.int64)
    assert (stratify(numbered(100), labels, seed=0) != stratify(numbered(100), labels, seed=1)).any()


def test_added_files_move_few_others() -> None:
    before = stratify(numbered(1000), np.zeros(1000, dtype=np.int64))
    after = stratify(numbered(1010), np.zeros(1010, dtype=np.int64))[:1000]
    assert (before != after).sum() <= 10


def test_names_need_not_be_valid_text() -> None:
    assert stratify(["a/\udcff.jpg", "a/1.jpg"], np.zeros(2, dtype=np.int64)).sum() == 1


@pytest.mark.parametrize("share", [0.0, 1.0, 10.0, -0.1, float("nan")])
def test_share_outside_of_zero_and_one_is_an_error(share: float) -> None:
    with pytest.raises(ValueError, match=r"share of val must lie between 0 and 1, not .*: try 0\.1"):
        stratify(numbered(4), np.zeros(4, dtype=np.int64), share=share)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("Valid", "val"),
        ("validation", "val"),
        ("dev", "val"),
        ("TRAINING", "train"),
        (" testing ", "test"),
        ("Extra", "Extra"),
    ],
)
def test_usual_names_of_splits_are_understood(given: str, meant: str) -> None:
    assert canonical(given) == meant


def test_splits_are_ordered() -> None:
    assert in_order(["test", "extra", "val", "train", "val"]) == ["train", "val", "test", "extra"]


def test_val_that_is_there_is_left_alone() -> None:
    splits = np.array(["train", "val", "train"])
    completed, notes = complete(splits, names=numbered(3), labels=np.zeros(3, dtype=np.int64), share=0.5, seed=0)
    assert completed.tolist() == ["train", "val", "train"]
    assert notes == []


def test_val_comes_from_train_and_never_from_test() -> None:
    splits = np.array(["test", "train"] * 10)
    completed, notes = complete(splits, names=numbered(20), labels=np.zeros(20, dtype=np.int64), share=0.3, seed=0)
    assert completed[::2].tolist() == ["test"] * 10
    assert sorted(completed[1::2]) == ["train"] * 7 + ["val"] * 3
    assert notes[0].detail == "no val given: 3 of 10 images of train were set aside as val"
    assert not notes[0].is_serious


def test_classes_too_small_to_split_are_noted() -> None:
    _, notes = complete(None, names=numbered(5), labels=np.array([0, 0, 0, 1, 2]), share=0.1, seed=0)
    assert notes[0].detail == (
        "no splits given: 1 of 5 images of train were set aside as val; "
        "classes with a single image, which stays in train: 2"
    )
