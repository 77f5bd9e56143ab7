from collections.abc import Callable

import numpy as np
import pytest
import torch
import torchvision.transforms.functional as pillow_functional
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from torch import Tensor

from vitrail.data import colour


def make_array(height: int = 61, width: int = 47) -> np.ndarray:
    """Waves, noise, and some black and white; the number of values is no multiple of what vectors hold."""
    random = np.random.RandomState(0)
    rows, columns = np.mgrid[:height, :width]
    waves = [np.sin(rows / (5 + channel)) + np.cos(columns / (9 - channel)) for channel in range(3)]
    array = 127 + 60 * np.stack(waves, axis=2) + random.normal(0, 15, (height, width, 3))
    return array.clip(0, 255).astype(np.uint8)


ARRAY = make_array()
IMAGE = Image.fromarray(ARRAY)
PIXELS = torch.from_numpy(ARRAY).permute(2, 0, 1)


def to_tensor(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def difference(first: Tensor, second: Tensor) -> Tensor:
    assert first.shape == second.shape
    return (first.int() - second.int()).abs().float()


def row(*values: int) -> Tensor:
    """Grey pixels in one row: [3, 1, length]."""
    return torch.tensor(values, dtype=torch.uint8).expand(3, 1, -1)


# By hand


def test_solarise_inverts_from_the_threshold_on() -> None:
    assert torch.equal(colour.solarise(row(0, 99, 100, 101, 255), 100), row(0, 99, 155, 154, 0))
    assert torch.equal(colour.solarise(row(0, 100, 255), 256), row(0, 100, 255))
    assert torch.equal(colour.solarise(row(0, 100, 255), 0), row(255, 155, 0))
    assert torch.equal(colour.solarise(row(99, 100), 99.5), row(99, 155))


def test_solarise_add_lightens_the_dark_half() -> None:
    assert torch.equal(colour.solarise_add(row(0, 127, 128, 255), 100), row(100, 227, 128, 255))
    assert torch.equal(colour.solarise_add(row(127), 128), row(255))
    with pytest.raises(ValueError, match="beyond 255"):
        colour.solarise_add(row(127), 129)


def test_posterise_keeps_the_upper_bits_and_at_least_one() -> None:
    assert torch.equal(colour.posterise(row(0, 15, 16, 255), 4), row(0, 0, 16, 240))
    assert torch.equal(colour.posterise(row(0, 127, 128, 255), 1), row(0, 0, 128, 128))
    assert torch.equal(colour.posterise(row(0, 127, 128, 255), 0), row(0, 0, 128, 128))
    assert torch.equal(colour.posterise(row(0, 127, 128, 255), 8), row(0, 127, 128, 255))


def test_invert_gives_the_negative() -> None:
    assert torch.equal(colour.invert(row(0, 1, 255)), row(255, 254, 0))


def test_autocontrast_stretches_every_channel_by_itself_and_leaves_flat_ones() -> None:
    pixels = torch.tensor([[[50, 100, 150]], [[7, 7, 7]], [[0, 51, 255]]], dtype=torch.uint8)
    expected = torch.tensor([[[0, 127, 255]], [[7, 7, 7]], [[0, 51, 255]]], dtype=torch.uint8)
    assert torch.equal(colour.autocontrast(pixels), expected)


def test_brightness_is_a_product_and_ends_at_white() -> None:
    assert torch.equal(colour.brighten(row(0, 100, 200), 1.5), row(0, 150, 255))
    assert torch.equal(colour.brighten(row(0, 100, 200), 0.5), row(0, 50, 100))


def test_contrast_moves_values_from_and_to_the_mean_grey() -> None:
    assert torch.equal(colour.change_contrast(row(50, 150), 0.5), row(75, 125))
    assert torch.equal(colour.change_contrast(row(50, 150), 2.0), row(0, 200))
    assert torch.equal(colour.change_contrast(row(50, 150), 0.0), row(100, 100))


def test_grey_is_the_luma() -> None:
    primaries = torch.tensor([[[255, 0, 0, 10]], [[0, 255, 0, 10]], [[0, 0, 255, 10]]], dtype=torch.uint8)
    assert torch.equal(colour.grey(primaries), row(76, 150, 29, 10))


def test_a_grey_picture_has_nothing_to_saturate() -> None:
    assert difference(colour.saturate(row(0, 100, 200, 255), 1.9), row(0, 100, 200, 255)).max() <= 1


@pytest.mark.parametrize("change", [colour.brighten, colour.change_contrast, colour.saturate, colour.sharpen])
def test_a_factor_of_one_changes_nothing(change: Callable[[Tensor, float], Tensor]) -> None:
    assert torch.equal(change(PIXELS, 1.0), PIXELS)


def test_a_blur_keeps_flat_pictures_and_spreads_points() -> None:
    assert torch.equal(colour.blur(torch.full((3, 20, 20), 77, dtype=torch.uint8), 2.0), torch.full((3, 20, 20), 77))
    point = torch.zeros(3, 21, 21, dtype=torch.uint8)
    point[:, 10, 10] = 255
    blurred = colour.blur(point, 1.0)
    assert torch.equal(blurred, blurred.flip(1))
    assert difference(blurred, blurred.transpose(1, 2)).max() <= 1
    # The centre of a Gaussian of standard deviation 1 is 1 / (2 pi) = 0.159, its neighbour 0.097.
    assert abs(blurred[0, 10, 10].item() / 255 - 0.159) < 0.015
    assert abs(blurred[0, 10, 11].item() / 255 - 0.097) < 0.015
    assert torch.equal(colour.blur(PIXELS, 0.0), PIXELS)


# Against Pillow


@pytest.mark.parametrize("factor", [0.0, 0.1, 0.7, 1.0, 1.3, 1.9])
@pytest.mark.parametrize(
    ("change", "enhancer"),
    [
        (colour.brighten, ImageEnhance.Brightness),
        (colour.change_contrast, ImageEnhance.Contrast),
        (colour.saturate, ImageEnhance.Color),
        (colour.sharpen, ImageEnhance.Sharpness),
    ],
)
def test_enhancements_agree_with_pillow(
    change: Callable[[Tensor, float], Tensor], enhancer: type[ImageEnhance.Brightness], factor: float
) -> None:
    assert difference(change(PIXELS, factor), to_tensor(enhancer(IMAGE).enhance(factor))).max() <= 1


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (colour.grey, lambda image: image.convert("L").convert("RGB")),
        (colour.autocontrast, ImageOps.autocontrast),
        (colour.equalise, ImageOps.equalize),
        (colour.invert, ImageOps.invert),
        (lambda pixels: colour.posterise(pixels, 3), lambda image: ImageOps.posterize(image, 3)),
        (lambda pixels: colour.solarise(pixels, 90), lambda image: ImageOps.solarize(image, 90)),
    ],
)
def test_operations_agree_with_pillow(
    ours: Callable[[Tensor], Tensor], theirs: Callable[[Image.Image], Image.Image]
) -> None:
    assert difference(ours(PIXELS), to_tensor(theirs(IMAGE))).max() <= 1


@pytest.mark.parametrize("radius", [0.1, 0.3, 0.5, 0.8, 1.0, 1.4, 2.0])
def test_blur_agrees_with_pillow(radius: float) -> None:
    errors = difference(colour.blur(PIXELS, radius), to_tensor(IMAGE.filter(ImageFilter.GaussianBlur(radius))))
    assert errors.mean() < 1
    assert errors[:, 8:-8, 8:-8].max() <= 3  # Pillow rounds six times; at the border it repeats pixels each time


@pytest.mark.parametrize("turn", [-0.5, -0.2, 0.1, 0.3])
def test_hue_agrees_with_torchvision(turn: float) -> None:
    assert difference(colour.turn_hue(PIXELS, turn), to_tensor(pillow_functional.adjust_hue(IMAGE, turn))).max() == 0


@pytest.mark.parametrize(
    "steps",
    [
        [("brightness", 1.3), ("contrast", 0.7), ("saturation", 1.2)],
        [("saturation", 0.7), ("contrast", 1.3), ("brightness", 0.8)],
        [("contrast", 1.25), ("saturation", 1.3), ("brightness", 1.3)],
        [("brightness", 0.7), ("saturation", 0.8), ("contrast", 0.9)],
        [("contrast", 0.8), ("hue", 0.0), ("brightness", 1.2)],
        [],
    ],
)
def test_several_enhancements_are_those_one_after_the_other(steps: list[tuple[str, float]]) -> None:
    expected = IMAGE
    for name, factor in steps:
        expected = getattr(pillow_functional, f"adjust_{name}")(expected, factor)
    errors = difference(colour.enhance(PIXELS, steps), to_tensor(expected))
    limit = 8 if ("hue", 0.0) in steps else 3  # Pillow cuts off fractions at each step; hue multiplies them
    assert errors.max() <= limit
    assert errors.mean() < 1.1


# Layout


@pytest.mark.parametrize("layout", ["channels last", "channels first", "part"])
@pytest.mark.parametrize(
    "change",
    [
        colour.invert,
        colour.grey,
        colour.autocontrast,
        colour.equalise,
        lambda pixels: colour.solarise(pixels, 100),
        lambda pixels: colour.solarise_add(pixels, 50),
        lambda pixels: colour.posterise(pixels, 3),
        lambda pixels: colour.saturate(pixels, 1.4),
        lambda pixels: colour.sharpen(pixels, 0.3),
        lambda pixels: colour.blur(pixels, 1.5),
        lambda pixels: colour.turn_hue(pixels, 0.2),
    ],
)
def test_the_layout_of_the_input_does_not_matter_and_it_is_not_changed(
    change: Callable[[Tensor], Tensor], layout: str
) -> None:
    pixels = {
        "channels last": PIXELS,
        "channels first": PIXELS.contiguous(),
        "part": torch.nn.functional.pad(PIXELS, (1, 1, 1, 1))[:, 1:-1, 1:-1],
    }[layout]
    before = pixels.clone()
    changed = change(pixels)
    assert changed.dtype == torch.uint8
    assert torch.equal(changed, change(PIXELS))
    assert torch.equal(pixels, before)
    if layout == "channels last":
        assert changed.permute(1, 2, 0).is_contiguous()


@pytest.mark.parametrize("size", [(1, 1), (2, 2), (3, 3), (1, 40)])
def test_tiny_pictures_are_no_problem(size: tuple[int, int]) -> None:
    pixels = torch.from_numpy(make_array(*size)).permute(2, 0, 1)
    for changed in (
        colour.enhance(pixels, [("contrast", 1.2), ("saturation", 0.5)]),
        colour.sharpen(pixels, 0.5),
        colour.blur(pixels, 2.0),
        colour.autocontrast(pixels),
        colour.equalise(pixels),
    ):
        assert changed.shape == pixels.shape
