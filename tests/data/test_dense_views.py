"""Masks and boxes move with their image, as torchvision's transforms move them, and by nothing but the draws."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import tv_tensors
from torchvision.transforms import v2

from vitrail.data.contract import Dataset, Sample
from vitrail.data.decode import open_image
from vitrail.data.dense.contract import IGNORED, PADDING_COLOUR, MaskWindow, WindowedObjects
from vitrail.data.dense.detection_view import DetectionView, fit, move_objects
from vitrail.data.dense.distortion import PhotometricDistortion, turn_colours
from vitrail.data.dense.drawn_shapes import open_shapes_masks, open_shapes_objects
from vitrail.data.dense.samples import MaskSamples, ObjectSamples
from vitrail.data.draws import Draws
from vitrail.data.geometry import Box, Crop
from vitrail.data.loader import Loader
from vitrail.data.sampler import Sampler
from vitrail.data.samples import SampleMaker
from vitrail.settings.dense import DetectAugmentationSettings, FitSettings, SegmentAugmentationSettings

NEAREST = v2.InterpolationMode.NEAREST_EXACT
SMALL = DetectAugmentationSettings(short_sides=(48, 64), max_side=100, crop_short_sides=(60, 80), crop_sides=(30, 50))


def noise(height: int, width: int) -> np.ndarray:
    return np.random.RandomState(height).randint(0, 256, (height, width, 3), dtype=np.uint8)


def a_few_objects(height: int, width: int) -> WindowedObjects:
    """Rectangles with noisy masks."""
    random = np.random.RandomState(width)
    edges = np.sort(np.stack([random.randint(0, width, (6, 2)), random.randint(0, height, (6, 2))], axis=2), axis=1)
    boxes = edges.reshape(6, 4) + np.array([0, 0, 1, 1])
    windows = tuple(
        MaskWindow(top, left, random.randint(0, 2, (bottom - top, right - left)).astype(np.uint8))
        for left, top, right, bottom in boxes.tolist()
    )
    areas = np.array([window.values.sum() for window in windows], dtype=np.float32)
    return WindowedObjects(boxes.astype(np.float32), np.arange(6), windows, np.zeros(6, dtype=bool), areas)


def test_the_mask_of_a_training_picture_is_torchvisions() -> None:
    mask = np.random.RandomState(0).randint(0, 5, (90, 140)).astype(np.uint8)
    view = SegmentAugmentationSettings(distortion=0.0).build(image_size=64)
    sizes = set()
    for key in range(40):
        crop, part = view.plan(mask, Draws(key))
        sizes.add(crop.resized)
        window = crop.window
        whole = v2.functional.resize(tv_tensors.Mask(mask), list(crop.resized), interpolation=NEAREST)
        expected = v2.functional.crop(whole, window.top, window.left, window.height, window.width)
        expected = v2.functional.horizontal_flip(expected) if crop.is_flipped else expected
        # Where a place lies on the border of two pixels, torchvision's rounding decides.
        rows, columns = (
            (2 * (start + np.arange(length)) + 1) * side % (2 * whole_side) != 0
            for start, length, side, whole_side in (
                (window.top, window.height, 90, crop.resized[0]),
                (window.left, window.width, 140, crop.resized[1]),
            )
        )
        chosen = np.ix_(rows, columns[::-1] if crop.is_flipped else columns)
        assert np.array_equal(part[chosen], expected.numpy()[chosen])
        pixels, again = view(open_image(noise(90, 140)), mask, Draws(key, "image"))
        assert pixels.shape[1:] == again.shape
    assert len(sizes) > 20  # the ratio is drawn anew
    short = [min(size) for size in sizes]
    assert min(short) >= 32
    assert max(short) <= 128


def test_the_short_and_the_long_side_before_the_ratio() -> None:
    plain = SegmentAugmentationSettings(ratio=(1.0, 1.0), distortion=0.0, flip=0.0)
    mask = np.zeros((100, 1000), dtype=np.uint8)
    assert plain.build(image_size=64).plan(mask, Draws(0))[0].resized == (26, 256)  # four times 64 at most
    assert plain.build(image_size=64).plan(mask[:, :200], Draws(0))[0].resized == (64, 128)
    given = plain.model_copy(update={"short_side": 50, "long_side": 80})
    assert given.build(image_size=64).plan(mask[:, :200], Draws(0))[0].resized == (40, 80)


def test_a_crop_that_one_class_fills_is_tried_again() -> None:
    mask = np.zeros((100, 100), dtype=np.uint8)
    mask[:, 90:] = 1
    mask[50:, :20] = IGNORED  # of which nothing is known, and which does not count

    def share_of_largest(settings: SegmentAugmentationSettings, key: int) -> float:
        _, part = settings.build(image_size=20).plan(mask, Draws(key))
        counts = np.bincount(part.reshape(-1), minlength=256)[:IGNORED]
        return float(counts.max() / max(1, counts.sum()))

    settings = SegmentAugmentationSettings(short_side=100, long_side=400, ratio=(1.0, 1.0), tries=200)
    assert all(share_of_largest(settings, key) < 0.75 for key in range(30))
    once = settings.model_copy(update={"tries": 1})
    assert any(share_of_largest(once, key) == 1.0 for key in range(30))


def test_what_is_smaller_than_the_picture_is_padded_and_ignored() -> None:
    data = open_shapes_masks("size=40,count=4,val=2").open("train")
    view = SegmentAugmentationSettings(ratio=(0.5, 0.5), short_side=40, distortion=0.0).build(image_size=(64, 48))
    loader = Loader(data, make=MaskSamples(view), sampler=Sampler(4, batch_size=4))
    [batch] = loader.epoch(0)
    assert batch.images.shape == (4, 3, 64, 48)
    assert batch.images.is_contiguous(memory_format=torch.channels_last)
    assert batch.sizes.tolist() == [[20, 20]] * 4
    assert (batch.masks[:, 20:] == IGNORED).all()
    assert (batch.masks[:, :, 20:] == IGNORED).all()
    assert (batch.masks[:, :20, :20] != IGNORED).all()
    assert batch.images[0, :, 30, 30].tolist() == list(PADDING_COLOUR)


def test_whole_images_are_as_they_are_stored() -> None:
    data = open_shapes_masks("size=40,count=4,val=2").open("val")
    [batch] = Loader(data, make=MaskSamples(), sampler=Sampler(2, batch_size=2, is_training=False)).epoch(0)
    assert np.array_equal(batch.images[1].permute(1, 2, 0).numpy(), data.read(1))
    assert np.array_equal(batch.masks[1].numpy(), data.read_mask(1))


@pytest.mark.parametrize("size", [(480, 640), (640, 427), (333, 1000), (1333, 333), (100, 100)])
def test_sizes_are_torchvisions(size: tuple[int, int]) -> None:
    for short in (480, 608, 800):
        expected = v2.functional.resize(torch.zeros(1, *size), [short], max_size=1333).shape[1:]
        assert fit(size, short_side=short, max_side=1333) == tuple(expected)


@pytest.mark.parametrize("is_flipped", [False, True])
@pytest.mark.parametrize("part", [Box(0, 0, 60, 90), Box(11, 20, 40, 33)])
def test_boxes_and_masks_move_as_torchvisions(part: Box, is_flipped: bool) -> None:
    objects = a_few_objects(60, 90)
    resized = (75, 55)
    moved = move_objects(objects, Crop(part, resized, Box(0, 0, *resized), is_flipped=is_flipped))
    boxes = tv_tensors.BoundingBoxes(objects.boxes, format="XYXY", canvas_size=(60, 90))
    masks = tv_tensors.Mask(objects.unfold((60, 90)).masks)
    boxes, masks = (
        v2.functional.resize(
            v2.functional.crop(item, part.top, part.left, part.height, part.width), list(resized), interpolation=NEAREST
        )
        for item in (boxes, masks)
    )
    if is_flipped:
        boxes, masks = v2.functional.horizontal_flip(boxes), v2.functional.horizontal_flip(masks)
    boxes = v2.functional.clamp_bounding_boxes(boxes)
    sides = boxes[:, 2:] - boxes[:, :2]
    is_kept = (sides >= 1).all(dim=1) & (masks.flatten(1).amax(dim=1) > 0)
    assert is_kept.sum() > 2
    assert moved.labels.tolist() == is_kept.nonzero()[:, 0].tolist()
    np.testing.assert_allclose(moved.boxes, boxes[is_kept].numpy(), atol=1e-4)
    assert np.array_equal(moved.masks, masks[is_kept].numpy())


def test_areas_follow_the_part_that_is_seen() -> None:
    box = np.array([[0.0, 0.0, 40.0, 20.0]], dtype=np.float32)
    objects = WindowedObjects(box, np.array([3]), None, np.array([True]), np.array([600.0], dtype=np.float32))
    moved = move_objects(objects, Crop(Box(0, 30, 20, 20), (40, 40), Box(0, 0, 40, 40)))
    assert moved.boxes.tolist() == [[0.0, 0.0, 20.0, 40.0]]
    assert moved.areas.tolist() == [600.0]  # a quarter of it, in four times the pixels
    assert moved.is_crowd.tolist() == [True]
    assert moved.masks is None


def test_parts_that_are_cut_out_first_have_the_sides_that_are_asked_for() -> None:
    always = SMALL.model_copy(update={"crop": 1.0}).build()
    never = SMALL.model_copy(update={"crop": 0.0}).build()
    for key in range(50):
        crop = always.plan((120, 200), Draws(key))
        assert min(crop.resized) in (48, 64) or max(crop.resized) == 100
        assert max(crop.resized) <= 100
        source = crop.source
        # Of the image resized to a short side of 60 or 80, or to 100 at most, 30 to 50 pixels.
        assert 30 * 120 / 60 - 1 <= source.height <= 120
        assert 30 * 200 / 100 - 1 <= source.width <= 50 * 200 / 100 + 1
        assert source.top + source.height <= 120
        assert source.left + source.width <= 200
        assert never.plan((120, 200), Draws(key)).source == Box(0, 0, 120, 200)


def test_strips_are_no_trouble() -> None:
    image = open_image(noise(1, 5000))
    objects = WindowedObjects(
        np.array([[10.0, 0.0, 900.0, 1.0]], dtype=np.float32), np.array([0]), None, np.array([False]), np.array([890.0])
    )
    for key in range(10):
        marked = DetectionView()(image, objects, Draws(key))
        assert min(marked.pixels.shape[1:]) >= 1
        assert max(marked.pixels.shape[1:]) <= 1333
    view = SegmentAugmentationSettings().build(image_size=512)
    masked = view(image, np.zeros((1, 5000), dtype=np.uint8), Draws(0))
    assert masked.pixels.shape[1:] == masked.mask.shape


def test_evaluation_resizes_the_whole_image() -> None:
    data = open_shapes_objects("size=50,count=2,val=3").open("val")
    view = FitSettings(short_side=75, max_side=100).build()
    sampler = Sampler(3, batch_size=3, is_training=False)
    [batch] = Loader(data, make=ObjectSamples(view), sampler=sampler).epoch(0)
    assert batch.images.shape == (3, 3, 96, 96)  # 75 made a multiple of 32
    assert batch.sizes.tolist() == [[75, 75]] * 3
    assert batch.original_sizes.tolist() == [[50, 50]] * 3
    stored = data.read_objects(0)
    torch.testing.assert_close(batch.objects[0].boxes, torch.from_numpy(stored.boxes * 1.5))
    assert batch.objects[0].masks.shape == (len(stored.labels), 75, 75)


@pytest.mark.parametrize("kind", ["masks", "objects"])
def test_batches_depend_on_seed_and_epoch_alone(kind: str) -> None:
    data: Dataset
    make: SampleMaker[Any, Any]
    if kind == "masks":
        data = open_shapes_masks("size=40,count=6,val=2").open("train")
        make = MaskSamples(SegmentAugmentationSettings().build(image_size=32))
    else:
        data = open_shapes_objects("size=40,count=6,val=2").open("train")
        make = ObjectSamples(SMALL.build())

    def batches(seed: int, epoch: int, *, start: int = 0, workers: int = 0) -> list[torch.Tensor]:
        sampler = Sampler(6, batch_size=2, seed=seed)
        loader: Loader[Any] = Loader(data, make=make, sampler=sampler, num_workers=workers)
        return [
            part
            for batch in loader.epoch(epoch, start_step=start)
            for part in (batch.images, *(batch[1:2] if kind == "masks" else [item.masks for item in batch.objects]))
        ]

    def are_equal(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
        return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))

    first = batches(0, 1)
    assert are_equal(first, batches(0, 1, workers=1))
    assert are_equal(first[-len(batches(0, 1, start=2)) :], batches(0, 1, start=2))
    assert not are_equal(first[:1], batches(0, 2)[:1])
    assert not are_equal(first[:1], batches(1, 1)[:1])


def test_distortion_by_hand() -> None:
    grey = torch.full((3, 2, 2), 100, dtype=torch.uint8)
    levels = set()
    for key in range(200):
        changed = PhotometricDistortion(probability=1.0, hue=0.0, saturation=0.0)(grey, Draws(key))
        assert len(changed.unique()) == 1
        levels.add(int(changed[0, 0, 0]))
    assert min(levels) >= 34  # (100 - 32) / 2
    assert max(levels) <= 198  # (100 + 32) * 1.5
    assert len(levels) > 60
    assert torch.equal(PhotometricDistortion(probability=0.0)(grey, Draws(0)), grey)


def test_saturation_and_hue_are_those_of_the_colour_circle() -> None:
    red = torch.tensor([200, 100, 100], dtype=torch.uint8).view(3, 1, 1).expand(3, 2, 2)
    for key in range(50):
        turned = PhotometricDistortion(probability=1.0, brightness=0.0, contrast=0.0, saturation=0.0)(red, Draws(key))
        value = turned[:, 0, 0].tolist()
        assert abs(max(value) - 200) <= 2  # the brightness stays
        assert abs(min(value) - 100) <= 2  # and the saturation
        grey = PhotometricDistortion(probability=1.0, brightness=0.0, contrast=0.0, hue=0.0)(red, Draws(key))
        low = grey[:, 0, 0].tolist()[1]
        assert 48 <= low <= 152  # 200 - 100 * 1.5 and 200 - 100 * 0.5


def test_colours_are_turned_as_pillow_turns_them() -> None:
    pixels = noise(40, 50)
    pixels[:3] = 77  # grey has no hue, and stays
    pixels[3:5] = 0
    for saturation, turn in ((1.0, 0.1), (0.5, -0.07), (1.5, 0.0), (1.4, 0.03)):
        turned = turn_colours(pixels, saturation=saturation, turn=turn)
        bands = Image.fromarray(pixels).convert("HSV").split()
        hue = bands[0].point([(level + round(256 * turn)) % 256 for level in range(256)])
        dense = bands[1].point([min(255, int(level * saturation)) for level in range(256)])
        expected = np.asarray(Image.merge("HSV", (hue, dense, bands[2])).convert("RGB"))
        difference = np.abs(turned.astype(int) - expected)
        assert difference.mean() < 1.5  # Pillow has whole numbers between
        assert difference.max() < 16
        assert np.array_equal(turned[:5], pixels[:5])
    assert np.array_equal(turn_colours(pixels, saturation=1.0, turn=0.0), pixels)


def test_samples_without_objects_have_empty_lists() -> None:
    nothing = WindowedObjects(
        np.zeros((0, 4), np.float32), np.zeros(0, np.int64), (), np.zeros(0, bool), np.zeros(0, np.float32)
    )
    marked = DetectionView(SMALL)(open_image(noise(50, 60)), nothing, Draws(0))
    assert marked.objects.boxes.shape == (0, 4)
    assert marked.objects.masks.shape == (0, *marked.pixels.shape[1:])


def test_a_sample_is_made_of_its_own_image() -> None:
    data = open_shapes_objects("size=64,count=4,val=2").open("train")
    made = ObjectSamples().make(data, Sample(0, 2, 0), [Draws(0)])
    assert np.array_equal(made.pixels.permute(1, 2, 0).numpy(), data.read(2))
    for box, mask in zip(made.objects.boxes.astype(int), made.objects.masks, strict=True):
        rows, columns = mask.nonzero()
        assert box.tolist() == [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
