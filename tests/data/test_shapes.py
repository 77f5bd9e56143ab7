import hashlib

import numpy as np
import pytest

from vitrail.data.sources.shapes import CLASSES, SHAPES, ShapesDataset, open_shapes


def open_split(settings: str = "", split: str = "train") -> ShapesDataset:
    dataset = open_shapes(settings).open(split)
    assert isinstance(dataset, ShapesDataset)
    return dataset


def test_settings_decide_size_and_counts() -> None:
    source = open_shapes("size=40, count=30,val=7")
    assert (source.name, source.splits) == ("shapes", ("train", "val"))
    assert [len(source.open(split)) for split in source.splits] == [30, 7]
    image = source.open("val").read(6)
    assert isinstance(image, np.ndarray)
    assert image.shape == (40, 40, 3)
    assert image.dtype == np.uint8
    assert len(open_split()) == 2000
    assert open_split().read(0).shape == (64, 64, 3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("sise=32", "no setting 'sise'; did you mean 'size'?"),
        ("objects=2", "did you mean 'max_objects'?"),
        ("size=big", "size=big is not a whole number"),
        ("size", "size= is not a whole number"),
        ("size=8", "size=8 is out of range; it must lie between 16 and"),
        ("count=0", "count=0 is out of range"),
        ("max_objects=0", "max_objects=0 is out of range"),
    ],
)
def test_wrong_settings_are_one_line_errors(settings: str, message: str) -> None:
    with pytest.raises(ValueError, match="shapes") as caught:
        open_shapes(settings)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_pictures_are_the_same_bytes_on_every_machine() -> None:
    content = hashlib.blake2b(digest_size=8)
    for settings in ("size=32,max_objects=3", "size=51,seed=5"):
        dataset = open_split(settings)
        for index in range(24):
            content.update(dataset.read(index).tobytes())
            content.update(dataset.annotation(index).mask.tobytes())
    assert content.hexdigest() == "6f5df1364c191a0f"


def test_a_picture_depends_on_nothing_but_seed_split_and_index() -> None:
    dataset, longer = open_split("count=50"), open_split("count=500,val=9")
    assert np.array_equal(dataset.level().labels, longer.level().labels[:50])
    longer.read(3)
    assert np.array_equal(dataset.read(17), longer.read(17))
    others = [open_split("seed=1").read(17), open_split(split="val").read(17), dataset.read(18)]
    assert not any(np.array_equal(dataset.read(17), other) for other in others)


def test_labels_are_balanced_and_coarse_is_the_shape() -> None:
    dataset = open_split("count=240")
    fine, coarse = dataset.level("label"), dataset.level("coarse")
    assert (len(fine.classes), coarse.classes) == (24, SHAPES)
    assert np.bincount(fine.labels).tolist() == [10] * 24
    for label, group in zip(fine.labels, coarse.labels, strict=True):
        assert fine.classes[label].split()[1] == coarse.classes[group]
    assert fine.labels[:24].tolist() != fine.labels[24:48].tolist()
    assert len({dataset.locate(index) for index in range(240)}) == 240


def test_mask_and_box_hold_the_object_that_gives_the_label() -> None:
    dataset = open_split("size=48")
    for index in range(72):
        mask, boxes, labels = dataset.annotation(index)
        assert (mask.shape, boxes.shape) == ((48, 48), (1, 4))
        assert mask.dtype == np.uint8
        assert labels.tolist() == [dataset.level("coarse").labels[index]]
        rows, columns = np.nonzero(mask)
        assert boxes[0].tolist() == [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        assert set(mask[rows, columns].tolist()) == {1 + labels[0]}
        # The whole object is in the picture: its outline never runs along a border.
        border = np.concatenate([mask[0], mask[-1], mask[:, 0], mask[:, -1]])
        assert np.count_nonzero(border) <= 6


def test_shapes_have_the_areas_of_their_geometry() -> None:
    # In radii: the outlines as the names say; the radius is known from the scene.
    areas = {
        "circle": np.pi * 0.88**2,
        "ring": np.pi * (0.98**2 - 0.46**2),
        "square": 1.4**2,
        "triangle": 0.75 * np.sqrt(3.0),
        "cross": 2.0 * (1.9 * 0.6) - 0.6**2,
        "star": 5.0 * 0.5 * np.sin(np.pi / 5.0),
    }
    dataset = open_split("size=200")
    for index in range(48):
        _, scene = dataset._scene(index)
        radius = 200.0 * scene.objects[0].radius
        name = SHAPES[dataset.level("coarse").labels[index]]
        area = np.count_nonzero(dataset.annotation(index).mask)
        assert area == pytest.approx(areas[name] * radius**2, rel=0.02), name


def test_object_and_background_differ_in_brightness() -> None:
    dataset = open_split("size=64")
    plain = [index for index in range(300) if CLASSES[dataset.level().labels[index]].startswith("plain")]
    for index in plain:
        mask = dataset.annotation(index).mask > 0
        brightness = dataset.read(index).astype(np.float64) @ [0.30, 0.59, 0.11]
        assert abs(brightness[mask].mean() - brightness[~mask].mean()) > 30.0


def test_textures_show_two_colours_and_plain_shows_one() -> None:
    dataset = open_split("size=64")
    for index in range(96):
        image, mask = dataset.read(index).astype(np.float64), dataset.annotation(index).mask > 0
        inner = mask.copy()  # without the softened edge
        for axis in (0, 1):
            for shift in (-1, 1):
                inner &= np.roll(mask, shift, axis=axis)
        spread = (image @ [0.30, 0.59, 0.11])[inner].std()
        assert (spread < 8.0) == CLASSES[dataset.level().labels[index]].startswith("plain")


def test_distractors_are_smaller_apart_and_leave_the_main_object_alone() -> None:
    alone, crowd = open_split("size=96"), open_split("size=96,max_objects=5")
    counts = set()
    for index in range(40):
        mask, boxes, labels = crowd.annotation(index)
        counts.add(len(boxes))
        assert np.array_equal(boxes[0], alone.annotation(index).boxes[0])
        sizes = (boxes[:, 2:] - boxes[:, :2]).max(axis=1)
        assert (sizes[1:] < 0.7 * sizes[0]).all()
        assert set(np.unique(mask)) == {0, *(1 + labels)}
    assert counts == {1, 2, 3, 4, 5}


def test_another_size_shows_the_same_scene() -> None:
    small, large = open_split("size=32"), open_split("size=128")
    for index in range(24):
        np.testing.assert_allclose(small.annotation(index).boxes * 4.0, large.annotation(index).boxes, atol=8.0)
        shrunk = large.read(index).reshape(32, 4, 32, 4, 3).mean(axis=(1, 3))
        assert abs(shrunk - small.read(index)).mean() < 12.0


def test_mean_colour_does_not_tell_the_shape() -> None:
    dataset = open_split("size=16,count=600")
    colors = np.array([dataset.read(index).mean(axis=(0, 1)) for index in range(600)])
    coarse = dataset.level("coarse").labels
    centers = np.array([colors[:300][coarse[:300] == shape].mean(axis=0) for shape in range(len(SHAPES))])
    guessed = ((colors[300:, None] - centers) ** 2).sum(axis=2).argmin(axis=1)
    assert np.mean(guessed == coarse[300:]) < 0.3
