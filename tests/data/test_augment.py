import math
import pickle
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.data.augment import Augmentation, EvaluationView, Step
from vitrail.data.decode import OpenedImage, open_image
from vitrail.data.draws import Draws
from vitrail.data.erasing import RandomErasing
from vitrail.data.geometry import plan_centre_crop
from vitrail.data.policies import AutoAugment, ColourJitter, RandAugment, ThreeAugment, TrivialAugment
from vitrail.settings.images import AugmentationSettings
from vitrail.settings.text import change
from vitrail.tasks.classify.settings import ClassifyRecipe


def make_array(height: int = 120, width: int = 160) -> np.ndarray:
    random = np.random.RandomState(0)
    rows, columns = np.mgrid[:height, :width]
    waves = [np.sin(rows / (5 + channel)) + np.cos(columns / (9 - channel)) for channel in range(3)]
    array = 120 + 55 * np.stack(waves, axis=2) + random.normal(0, 12, (height, width, 3))
    return array.clip(0, 255).astype(np.uint8)


def make_jpeg(height: int, width: int) -> bytes:
    """A photograph without detail."""
    image = Image.fromarray(make_array(height // 10, width // 10)).resize((width, height), Image.Resampling.BICUBIC)
    buffer = BytesIO()
    image.save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def make_image() -> OpenedImage:
    return open_image(make_array())


def augmentation(
    image_size: int | tuple[int, int] = 224, *, steps: tuple[Step | None, ...] | None = None, **settings: Any
) -> Augmentation:
    return Augmentation(image_size, AugmentationSettings(**settings), steps)


def changed(plain: Augmentation, **settings: Any) -> Augmentation:
    return replace(plain, settings=plain.settings.model_copy(update=settings))


SETTINGS = [
    augmentation(image_size=64),
    augmentation(image_size=(48, 64), crop="simple", policy="three", colour_jitter=0.3),
    augmentation(image_size=64, crop="evaluation", flip=0.0, erasing=1.0),
    augmentation(image_size=64, policy="rand", magnitude=7, interpolation="random", erasing=0.25),
    augmentation(image_size=64, policy="auto", vertical_flip=0.5),
    augmentation(image_size=64, steps=(TrivialAugment(), None, ColourJitter(0.4, 0.4, 0.4, 0.1))),
    EvaluationView(image_size=64),
]


@pytest.mark.parametrize("transform", SETTINGS)
def test_the_result_is_bytes_of_the_size_asked_for_channels_last_and_the_same_for_the_same_draws(
    transform: Augmentation | EvaluationView,
) -> None:
    size = (48, 64) if transform.image_size == (48, 64) else (64, 64)
    for key in range(8):
        pixels = transform(make_image(), Draws(key))
        assert pixels.dtype == torch.uint8
        assert pixels.shape == (3, *size)
        assert pixels.permute(1, 2, 0).is_contiguous()
        assert torch.equal(pixels, transform(make_image(), Draws(key)))


@pytest.mark.parametrize("transform", SETTINGS)
def test_a_transform_arrives_in_another_process_as_it_was(transform: Augmentation | EvaluationView) -> None:
    transform(make_image(), Draws(0))
    copy = pickle.loads(pickle.dumps(transform))
    assert copy == transform
    assert torch.equal(copy(make_image(), Draws(1)), transform(make_image(), Draws(1)))


def test_other_draws_give_another_picture() -> None:
    transform = augmentation(image_size=32)
    pictures = {transform(make_image(), Draws(key)).numpy().tobytes() for key in range(50)}
    assert len(pictures) == 50


def test_a_policy_by_name_is_the_one_with_its_usual_settings() -> None:
    for name, policy in (("three", ThreeAugment()), ("rand", RandAugment(9.0, 0.5)), ("auto", AutoAugment())):
        by_name, by_settings = augmentation(image_size=32, policy=name), augmentation(image_size=32, steps=(policy,))
        for key in range(5):
            assert torch.equal(by_name(make_image(), Draws(key)), by_settings(make_image(), Draws(key)))


def test_the_centre_is_taken_as_in_evaluation() -> None:
    centre = augmentation(image_size=64, crop="evaluation", crop_ratio=0.9, flip=0.0)
    view = EvaluationView(image_size=64, crop_ratio=0.9)
    plan = plan_centre_crop((120, 160), image_size=(64, 64), crop_ratio=0.9)
    expected = plan.apply(make_image())
    assert torch.equal(centre(make_image(), Draws(0)), expected)
    assert torch.equal(view(make_image(), Draws(0)), expected)
    assert torch.equal(view(make_image()), expected)


def test_evaluation_can_be_bilinear() -> None:
    sharp, soft = (EvaluationView(image_size=64, interpolation=name)(make_image()) for name in ("bicubic", "bilinear"))
    assert not torch.equal(sharp, soft)


@pytest.mark.parametrize("image_size", [5, 6, 7, 8])
def test_the_simple_crop_makes_small_pictures_too(image_size: int) -> None:
    transform = augmentation(image_size, crop="simple")
    for key in range(100):
        assert transform(make_image(), Draws(key)).shape == (3, image_size, image_size)


def test_a_size_may_be_of_numpy_or_a_list() -> None:
    assert augmentation(np.int64(64)) == augmentation(64)
    assert type(augmentation(np.int64(64)).image_size) is int
    assert EvaluationView([np.int64(48), 64]).image_size == (48, 64)  # type: ignore[arg-type]


# Independence of choices


@pytest.mark.parametrize("size", [(120, 160), (480, 640), (30, 400)])
def test_steps_behind_the_crop_do_not_move_it(size: tuple[int, int]) -> None:
    plain = augmentation(image_size=64)
    others = [
        changed(plain, policy="three"),
        changed(plain, policy="rand", colour_jitter=0.3, erasing=0.5),
        changed(plain, interpolation="random"),
        changed(plain, flip=0.9, vertical_flip=0.5),
    ]
    for key in range(20):
        plan = plain.plan(size, Draws(key))
        for other in others:
            assert other.plan(size, Draws(key)).source == plan.source


def test_a_step_does_not_change_what_the_next_one_draws() -> None:
    erased = augmentation(image_size=64, erasing=1.0)
    unmoved = RandAugment(9.0, 0.5, probability=0.0)
    both = replace(changed(erased, vertical_flip=0.3), own_steps=(unmoved, None, RandomErasing(1.0)))
    noise_only = changed(erased, crop="evaluation", flip=0.0)
    for key in range(10):
        plain = changed(noise_only, erasing=0.0)(make_image(), Draws(key))
        box = (noise_only(make_image(), Draws(key)) != plain).any(dim=0)
        rows, columns = box.any(dim=1).nonzero().flatten(), box.any(dim=0).nonzero().flatten()
        inner = (slice(None), slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1))
        noise = noise_only(make_image(), Draws(key))[inner]
        assert torch.equal(erased(make_image(), Draws(key))[inner], noise)
        assert torch.equal(both(make_image(), Draws(key))[inner], noise)


def test_a_jpeg_decoded_smaller_gives_nearly_the_same_picture() -> None:
    data = make_jpeg(900, 1200)
    transform = augmentation(image_size=32, scale=(0.5, 1.0), colour_jitter=0.3)
    opened = open_image(data)
    in_full = open_image(opened.pixels().permute(1, 2, 0).numpy())  # an array is never decoded smaller
    assert transform.plan((900, 1200), Draws(0)).shrink == 8
    for key in range(5):
        small, full = transform(opened, Draws(key)), transform(in_full, Draws(key))
        assert (small.int() - full.int()).abs().float().mean() < 3


def test_flips_come_as_often_as_asked() -> None:
    transform = augmentation(flip=0.5, vertical_flip=0.2)
    plans = [transform.plan((100, 100), Draws(key)) for key in range(2000)]
    assert 920 < sum(plan.is_flipped for plan in plans) < 1080
    assert 340 < sum(plan.is_upside_down for plan in plans) < 460
    never = augmentation(flip=0.0)
    assert not any(never.plan((100, 100), Draws(key)).is_flipped for key in range(100))


def test_the_plan_serves_a_mask() -> None:
    array = np.zeros((60, 80), dtype=np.uint8)
    array[20:40, 30:60] = 255
    transform = augmentation(image_size=32)
    for key in range(10):
        pixels = transform(open_image(array), Draws(key))
        mask = transform.plan((60, 80), Draws(key)).apply_to_mask(torch.from_numpy(array))
        assert ((pixels[0] > 127) != (mask > 127)).float().mean() < 0.06  # only along the edge


# Erasing


def find_box(pixels: torch.Tensor) -> tuple[int, int]:
    """Height and width of what is no longer 7."""
    is_changed = (pixels != 7).any(dim=0)
    rows, columns = is_changed.any(dim=1).nonzero().flatten(), is_changed.any(dim=0).nonzero().flatten()
    return int(rows[-1] - rows[0] + 1), int(columns[-1] - columns[0] + 1)


def test_erasing_has_the_probability_area_and_ratio_asked_for() -> None:
    flat = torch.full((100, 100, 3), 7, dtype=torch.uint8).permute(2, 0, 1)
    erased = [RandomErasing(probability=0.25)(flat, Draws(key)) for key in range(2000)]
    changed = [pixels for pixels in erased if not torch.equal(pixels, flat)]
    assert 430 < len(changed) < 570
    boxes = [find_box(pixels) for pixels in changed]
    areas = [height * width / 10_000 for height, width in boxes]
    ratios = [math.log(height / width) for height, width in boxes]
    assert 0.018 < min(areas) < 0.03
    assert 0.31 < max(areas) < 0.34
    assert -1.3 < min(ratios) < -1.1
    assert 1.1 < max(ratios) < 1.3
    assert abs(np.mean(ratios)) < 0.1
    assert flat.unique().tolist() == [7]


def test_erased_pixels_are_normal_noise_with_the_mean_and_spread_of_imagenet() -> None:
    flat = torch.full((400, 400, 3), 7, dtype=torch.uint8).permute(2, 0, 1)
    erasing = RandomErasing(probability=1.0, area=(0.3, 0.3), ratio=(1.0, 1.0))
    is_changed = (erasing(flat, Draws(0)) != flat).any(dim=0)
    noise = erasing(flat, Draws(0))[:, is_changed].float()
    assert noise.shape[1] == pytest.approx(0.3 * 160_000, rel=0.01)
    for channel, (mean, std) in enumerate(zip((123.7, 116.3, 103.5), (58.4, 57.1, 57.4), strict=True)):
        assert noise[channel].mean().item() == pytest.approx(mean, abs=1.5)
        assert noise[channel].std().item() == pytest.approx(std, abs=2)  # a little is cut off at 0 and 255
    correlation = np.corrcoef(noise.numpy())
    assert abs(correlation[0, 1]) < 0.02


# Errors


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Augmentation(image_size=0), "the image size is 0"),
        (lambda: Augmentation(image_size=(224, 224, 3)), "the image size is"),  # type: ignore[arg-type]
        (lambda: augmentation(image_size=4, crop="simple"), "mirrors 4 pixels: the image size 4 is too small"),
        (lambda: Augmentation(224.0), "the image size is 224.0; give a whole number"),  # type: ignore[arg-type]
        (lambda: Augmentation(True), "the image size is True; give a whole number"),
        (lambda: Augmentation((224, True)), r"the image size is \(224, True\)"),
        (lambda: Augmentation("224"), "the image size is '224'"),  # type: ignore[arg-type]
        (lambda: Augmentation(None), "the image size is None"),  # type: ignore[arg-type]
        (lambda: EvaluationView(224.0), "the image size is 224.0"),  # type: ignore[arg-type]
        (lambda: RandomErasing(0.25, area=0.5), "the area of erasing is 0.5"),  # type: ignore[arg-type]
        (lambda: RandomErasing(0.25, area=(0.5, 2.0)), "the area of erasing is"),
        (lambda: EvaluationView(image_size=-1), "the image size is -1"),
        (lambda: EvaluationView(crop_ratio=0.0), "the crop ratio is 0.0; it must be at least 0.01 and at most 1"),
        (lambda: EvaluationView(interpolation="random"), "unknown interpolation of a test picture 'random'"),
    ],
)
def test_settings_that_make_no_sense_are_errors_of_one_line(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"crop": "centre"}, "'resized', 'simple' or 'evaluation'"),
        ({"scale": (1.0, 0.08)}, "give a smaller and a larger number, above 0"),
        ({"scale": (0.5, 1.5)}, "at most 1"),
        ({"scale": (0.0, 1.0)}, "above 0"),
        ({"scale": 0.5}, "tuple"),
        ({"ratio": (2.0, 1.0)}, "give a smaller and a larger number"),
        ({"ratio": (1.0, "a")}, "valid number"),
        ({"crop_ratio": 1.2}, "less than or equal to 1"),
        ({"interpolation": "nearest"}, "'bicubic', 'bilinear' or 'random'"),
        ({"flip": 1.5}, "less than or equal to 1"),
        ({"vertical_flip": -0.1}, "greater than or equal to 0"),
        ({"policy": "random"}, "'three', 'rand', 'auto' or 'trivial'"),
        ({"magnitude": 11}, "less than or equal to 10"),
        ({"colour_jitter": -0.3}, "greater than or equal to 0"),
        ({"erasing": True}, "true and false are no values"),
    ],
)
def test_settings_are_checked_when_they_are_made(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AugmentationSettings(**settings)
    [(name, value)] = settings.items()
    with pytest.raises(ValueError, match=rf"^[^\n]*augmentation\.{name}\S* cannot be .*{message}[^\n]*$"):
        change(ClassifyRecipe(), {f"augmentation.{name}": value})


def test_a_section_builds_its_augmentation() -> None:
    settings = AugmentationSettings(policy="three")
    assert settings.build(image_size=64) == Augmentation(64, settings)
