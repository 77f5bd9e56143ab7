import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import timm.data
import torch
import torch.nn.functional as F
from PIL import Image
from timm.data.transforms import RandomResizedCropAndInterpolation
from torch import Tensor

from vitrail.data.decode import OpenedImage, open_image
from vitrail.data.draws import Draws
from vitrail.data.geometry import PADDING, Box, Crop, plan_centre_crop, plan_resized_crop, plan_simple_crop


def make_array(height: int, width: int) -> np.ndarray:
    """A smooth picture with some noise: every place is different."""
    random = np.random.RandomState(height * 10_000 + width)
    rows, columns = np.mgrid[:height, :width]
    waves = [np.sin(rows / (7 + channel)) + np.cos(columns / (11 - channel)) for channel in range(3)]
    noise = random.normal(0, 10, (height, width, 3))
    return (127 + 50 * np.stack(waves, axis=2) + noise).clip(0, 255).astype(np.uint8)


def resize_then_cut(array: np.ndarray, crop: Crop) -> Tensor:
    """What a crop of a whole image means: resize all of it, mirror it at the border, cut the window."""
    batch = torch.from_numpy(array).permute(2, 0, 1)[None]
    resized = F.interpolate(batch, size=crop.resized, mode=crop.interpolation, antialias=True)[0]
    padded = np.pad(resized.numpy(), ((0, 0), (PADDING, PADDING), (PADDING, PADDING)), mode="reflect")
    top, left = crop.window.top + PADDING, crop.window.left + PADDING
    return torch.from_numpy(padded[:, top : top + crop.window.height, left : left + crop.window.width])


def difference(first: Tensor, second: Tensor) -> Tensor:
    return (first.int() - second.int()).abs().float()


class Recorder:
    """An image that notes how it was decoded and decodes as much smaller as it is allowed to."""

    def __init__(self, height: int, width: int) -> None:
        self.height, self.width = height, width
        self.shrinks: list[int] = []

    def pixels(self, *, shrink: int = 1) -> Tensor:
        self.shrinks.append(shrink)
        shape = (math.ceil(self.height / shrink), math.ceil(self.width / shrink), 3)
        return torch.zeros(shape, dtype=torch.uint8).permute(2, 0, 1)


# Evaluation


@pytest.mark.parametrize(
    ("size", "resized", "corner"),
    [
        ((375, 500), (256, 341), (16, 58)),  # 256 * 500 / 375 = 341.3; (341 - 224) / 2 = 58.5 goes to the even number
        ((500, 375), (341, 256), (58, 16)),
        ((256, 256), (256, 256), (16, 16)),
        ((100, 130), (256, 332), (16, 54)),
        ((1, 2000), (256, 512000), (16, 255888)),
    ],
)
def test_the_evaluation_crop_is_the_centre_of_the_resized_image(
    size: tuple[int, int], resized: tuple[int, int], corner: tuple[int, int]
) -> None:
    crop = plan_centre_crop(size, image_size=(224, 224), crop_ratio=0.875)
    assert crop.resized == resized
    assert crop.window == Box(*corner, 224, 224)
    assert crop.source == Box(0, 0, *size)


@pytest.mark.parametrize("crop_ratio", [1.0, 0.95, 0.9, 0.875])
@pytest.mark.parametrize("size", [(375, 500), (500, 333), (224, 224), (60, 90), (300, 1999), (3, 200)])
def test_evaluation_agrees_with_timm(size: tuple[int, int], crop_ratio: float) -> None:
    array = make_array(*size)
    transform = timm.data.create_transform(96, use_prefetcher=True, interpolation="bicubic", crop_pct=crop_ratio)
    theirs = transform(Image.fromarray(array))
    ours = plan_centre_crop(size, image_size=(96, 96), crop_ratio=crop_ratio).apply(open_image(array))
    assert ours.shape == theirs.shape == (3, 96, 96)
    assert difference(ours, theirs).max() <= 2
    assert difference(ours, theirs).mean() < 0.05


@pytest.mark.parametrize(
    ("size", "image_size", "crop_ratio"),
    [
        ((255, 340), 224, 0.875),
        ((340, 255), 224, 0.875),
        ((247, 330), 224, 0.9),
        ((383, 500), 384, 1.0),
        ((447, 600), 448, 1.0),
        ((253, 340), 224, 0.875),
    ],
)
def test_evaluation_agrees_with_timm_where_an_image_is_hardly_enlarged(
    size: tuple[int, int], image_size: int, crop_ratio: float
) -> None:
    array = make_array(*size)
    transform = timm.data.create_transform(
        image_size, use_prefetcher=True, interpolation="bicubic", crop_pct=crop_ratio
    )
    theirs = transform(Image.fromarray(array))
    ours = plan_centre_crop(size, image_size=(image_size, image_size), crop_ratio=crop_ratio).apply(open_image(array))
    assert difference(ours, theirs).max() <= 2
    assert difference(ours, theirs).mean() < 0.05


@pytest.mark.parametrize("size", [(375, 500), (500, 333), (64, 96), (70, 95)])
def test_evaluation_agrees_with_timm_for_pictures_that_are_not_square(size: tuple[int, int]) -> None:
    array = make_array(*size)
    # timm interpolates bilinearly here, whatever it is told.
    transform = timm.data.create_transform((3, 96, 64), use_prefetcher=True, interpolation="bicubic", crop_pct=0.9)
    theirs = transform(Image.fromarray(array))
    plan = plan_centre_crop(size, image_size=(96, 64), crop_ratio=0.9)
    crop = Crop(plan.source, plan.resized, plan.window, interpolation="bilinear", is_exact=True)
    ours = crop.apply(open_image(array))
    assert ours.shape == theirs.shape == (3, 96, 64)
    assert difference(ours, theirs).max() <= 2
    assert difference(ours, theirs).mean() < 0.05


def test_an_image_of_one_row_is_evaluated_without_making_a_picture_of_its_whole_length() -> None:
    array = make_array(1, 2000)
    picture = plan_centre_crop((1, 2000), image_size=(224, 224)).apply(open_image(array))
    # The centre of 512,000 columns is column 1,000 of the image, 256 times enlarged.
    expected = Image.fromarray(array[:, 990:1010]).resize((20 * 256, 256), Image.Resampling.BICUBIC)
    theirs = torch.from_numpy(np.array(expected)).permute(2, 0, 1)[:, 16:240, 2448:2672]
    assert difference(picture, theirs).max() <= 1


def test_a_trimmed_panorama_is_what_the_whole_one_gives() -> None:
    array = make_array(40, 9000)
    crop = plan_centre_crop((40, 9000), image_size=(64, 64), crop_ratio=1.0)
    whole = Image.fromarray(array).resize(crop.resized[::-1], Image.Resampling.BICUBIC)
    box = (crop.window.left, crop.window.top, crop.window.left + 64, crop.window.top + 64)
    theirs = torch.from_numpy(np.array(whole.crop(box))).permute(2, 0, 1)
    assert difference(crop.apply(open_image(array)), theirs).max() <= 2


def test_evaluation_decodes_in_full() -> None:
    image = Recorder(3000, 4000)
    plan_centre_crop((3000, 4000), image_size=(224, 224)).apply(image)  # type: ignore[arg-type]
    assert image.shrinks == [1]


# Random crops


class TimmRandom:
    """What timm's crop draws, taken from ours."""

    def __init__(self, draws: Draws) -> None:
        self.uniform = draws.uniform
        self.randint = lambda low, high: low + draws.integer(high - low + 1)


@pytest.mark.parametrize("size", [(300, 400), (500, 375), (64, 64), (20, 300)])
def test_resized_crops_are_timms_when_it_draws_the_same_numbers(
    size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    height, width = size
    image = Image.new("RGB", (width, height))
    for index in range(200):
        monkeypatch.setattr("timm.data.transforms.random", TimmRandom(Draws(index)))
        theirs = RandomResizedCropAndInterpolation.get_params(image, scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3))
        ours = plan_resized_crop(size, Draws(index), image_size=(64, 64)).source
        assert (ours.top, ours.left, ours.height, ours.width) == theirs


def test_resized_crops_have_the_area_and_ratio_asked_for() -> None:
    boxes = [plan_resized_crop((300, 400), Draws(index), image_size=(64, 64)).source for index in range(2000)]
    areas = [box.height * box.width / (300 * 400) for box in boxes]
    ratios = [box.width / box.height for box in boxes]
    assert 0.078 < min(areas) < 0.09
    assert 0.95 < max(areas) <= 1.0
    assert 0.74 < min(ratios) < 0.76
    assert 1.32 < max(ratios) < 1.35


def test_resized_crops_start_anywhere() -> None:
    boxes = [
        plan_resized_crop((8, 8), Draws(index), image_size=(4, 4), scale=(0.25, 0.25), ratio=(1.0, 1.0)).source
        for index in range(500)
    ]
    assert {(box.height, box.width) for box in boxes} == {(4, 4)}
    assert {box.top for box in boxes} == {box.left for box in boxes} == set(range(5))


def test_where_no_try_fits_the_centre_is_taken_with_the_nearest_ratio() -> None:
    wide = plan_resized_crop((30, 900), Draws(0), image_size=(64, 64), scale=(0.9, 1.0)).source
    assert wide == Box(0, 430, 30, 40)
    high = plan_resized_crop((900, 30), Draws(0), image_size=(64, 64), scale=(0.9, 1.0)).source
    assert high == Box(430, 0, 40, 30)


def test_a_simple_crop_is_a_window_of_the_covering_image_and_at_most_four_pixels_beyond() -> None:
    windows = [plan_simple_crop((50, 100), Draws(index), image_size=(32, 32)).window for index in range(3000)]
    assert {window.top for window in windows} == set(range(-4, 5))
    assert {window.left for window in windows} == set(range(-4, 37))
    assert all((window.height, window.width) == (32, 32) for window in windows)


def test_beyond_the_border_the_picture_is_mirrored() -> None:
    array = np.arange(25, dtype=np.uint8).reshape(5, 5)
    crop = Crop(Box(0, 0, 5, 5), resized=(5, 5), window=Box(-2, 1, 5, 5))
    rows = [2, 1, 0, 1, 2]
    columns = [1, 2, 3, 4, 3]
    expected = torch.from_numpy(array[rows][:, columns])
    assert torch.equal(crop.apply(open_image(array))[1], expected)
    assert torch.equal(crop.apply_to_mask(torch.from_numpy(array)), expected)


def test_a_simple_crop_agrees_with_padding_the_resized_image() -> None:
    array = make_array(90, 120)
    crop = plan_simple_crop((90, 120), Draws(3), image_size=(64, 64))
    resized = np.array(Image.fromarray(array).resize((85, 64), Image.Resampling.BICUBIC))
    padded = np.pad(resized, ((4, 4), (4, 4), (0, 0)), mode="reflect")
    top, left = crop.window.top + 4, crop.window.left + 4
    expected = torch.from_numpy(padded[top : top + 64, left : left + 64]).permute(2, 0, 1)
    assert difference(crop.apply(open_image(array)), expected).max() <= 2


@pytest.mark.parametrize(("size", "image_size"), [((223, 300), 224), ((300, 191), 192), ((31, 47), 32)])
def test_a_simple_crop_of_an_image_one_pixel_short_is_resized(size: tuple[int, int], image_size: int) -> None:
    array = make_array(*size)
    for index in range(5):
        crop = plan_simple_crop(size, Draws(index), image_size=(image_size, image_size))
        assert difference(crop.apply(open_image(array)), resize_then_cut(array, crop)).max() <= 1


@pytest.mark.parametrize("image_size", [(5, 5), (6, 6), (8, 8), (9, 9), (5, 40)])
def test_a_simple_crop_may_be_hardly_larger_than_what_is_mirrored(image_size: tuple[int, int]) -> None:
    for size in ((30, 40), (40, 30), (7, 7)):
        array = make_array(*size)
        for index in range(40):
            crop = plan_simple_crop(size, Draws(index), image_size=image_size)
            assert difference(crop.apply(open_image(array)), resize_then_cut(array, crop)).max() <= 1


# Application


def test_a_crop_of_a_part_of_the_image_is_that_of_the_whole_resized_one() -> None:
    random = np.random.RandomState(0)
    for index in range(300):
        image_size = int(random.randint(9, 97))
        target = (image_size, image_size)
        # Half of the images are about as large as their target, where the scale is nearly 1.
        short = int(random.randint(1, 200)) if index % 2 else max(1, image_size + int(random.randint(-4, 5)))
        long = int(short * random.uniform(1.0, 4.0))
        size = (short, long) if random.rand() < 0.5 else (long, short)
        array = make_array(*size)
        crop = (
            plan_simple_crop(size, Draws(index), image_size=target)
            if random.rand() < 0.5
            else plan_centre_crop(size, image_size=target, crop_ratio=float(random.choice([0.875, 0.9, 1.0])))
        )
        crop = replace(crop, interpolation=str(random.choice(["bicubic", "bilinear"])), is_exact=True)
        gaps = difference(crop.apply(open_image(array)), resize_then_cut(array, crop))
        assert gaps.max() <= 1, (size, crop)
        assert gaps.mean() < 0.05, (size, crop)


@pytest.mark.parametrize(("interpolation", "filter"), [("bicubic", 3), ("bilinear", 2)])
def test_a_crop_is_resized_as_pillow_does_it(interpolation: str, filter: int) -> None:
    array = make_array(200, 300)
    crop = Crop(Box(20, 30, 150, 100), resized=(64, 48), window=Box(0, 0, 64, 48), interpolation=interpolation)
    part = Image.fromarray(array).crop((30, 20, 130, 170)).resize((48, 64), Image.Resampling(filter))
    ours = crop.apply(open_image(array))
    assert difference(ours, torch.from_numpy(np.array(part)).permute(2, 0, 1)).max() <= 2
    assert ours.permute(1, 2, 0).is_contiguous()


def test_flips_mirror_pixels_and_masks_alike() -> None:
    array = np.array([[1, 2], [3, 4]], dtype=np.uint8)
    whole = Box(0, 0, 2, 2)
    for is_flipped, is_upside_down, expected in (
        (True, False, [[2, 1], [4, 3]]),
        (False, True, [[3, 4], [1, 2]]),
        (True, True, [[4, 3], [2, 1]]),
    ):
        crop = Crop(whole, (2, 2), whole, is_flipped=is_flipped, is_upside_down=is_upside_down)
        assert crop.apply(open_image(array))[0].tolist() == expected
        assert crop.apply_to_mask(torch.from_numpy(array)).tolist() == expected


def test_a_mask_is_enlarged_and_shrunk_without_new_labels() -> None:
    mask = torch.tensor([[1, 2], [3, 4]])
    enlarged = Crop(Box(0, 0, 2, 2), resized=(4, 4), window=Box(0, 0, 4, 4)).apply_to_mask(mask)
    assert enlarged.tolist() == [[1, 1, 2, 2], [1, 1, 2, 2], [3, 3, 4, 4], [3, 3, 4, 4]]
    again = Crop(Box(0, 0, 4, 4), resized=(2, 2), window=Box(0, 0, 2, 2)).apply_to_mask(enlarged)
    assert torch.equal(again, mask)


@pytest.mark.parametrize(
    ("source", "shrink"),
    [((224, 224), 1), ((447, 900), 1), ((448, 448), 2), ((896, 2000), 4), ((1800, 1800), 8), ((100, 100), 1)],
)
def test_an_image_is_decoded_as_small_as_the_picture_allows(source: tuple[int, int], shrink: int) -> None:
    image = Recorder(2000, 2000)
    crop = Crop(Box(10, 20, *source), resized=(224, 224), window=Box(0, 0, 224, 224))
    assert crop.apply(image).shape == (3, 224, 224)  # type: ignore[arg-type]
    assert image.shrinks == [shrink]


def test_a_picture_decoded_smaller_shows_the_same_part() -> None:
    steps = np.repeat(np.repeat(np.arange(0, 256, 4, dtype=np.uint8).reshape(8, 8), 64, axis=0), 64, axis=1)
    small = steps[::4, ::4]

    def decode(shrink: int) -> Tensor:
        array = small if shrink == 4 else steps
        return torch.from_numpy(np.repeat(array[:, :, None], 3, axis=2).copy())

    image = OpenedImage(512, 512, "JPEG", "RGB", False, decode)
    crop = Crop(Box(64, 128, 256, 256), resized=(64, 64), window=Box(0, 0, 64, 64))
    exact = Crop(Box(64, 128, 256, 256), resized=(64, 64), window=Box(0, 0, 64, 64), is_exact=True)
    inner = slice(4, 12)  # away from the edges of the first step
    assert torch.equal(crop.apply(image)[:, inner, inner], exact.apply(image)[:, inner, inner])
    assert difference(crop.apply(image), exact.apply(image)).mean() < 1


def test_every_size_of_image_gives_the_size_asked_for() -> None:
    sizes = [1, 2, 3, 5, 31, 64, 100, 333]
    for height, width in [*pairwise(sizes), *((width, height) for height, width in pairwise(sizes))]:
        image = open_image(make_array(height, width))
        for crop in (
            plan_resized_crop((height, width), Draws(height, width), image_size=(32, 24)),
            plan_simple_crop((height, width), Draws(height, width), image_size=(32, 24)),
            plan_centre_crop((height, width), image_size=(32, 24)),
        ):
            assert crop.apply(image).shape == (3, 32, 24)
            assert crop.apply_to_mask(torch.zeros(height, width)).shape == (32, 24)
