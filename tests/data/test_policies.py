from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from pydantic import ValidationError
from timm.data import auto_augment as peer
from torch import Tensor

from vitrail.data import operations, policies, warp
from vitrail.data.draws import Draws
from vitrail.data.operations import interpret, interpret_wide, operate
from vitrail.data.policies import (
    AutoAugment,
    ColourJitter,
    Policy,
    RandAugment,
    ThreeAugment,
    TrivialAugment,
    make_policy,
)
from vitrail.settings.images import AugmentationSettings


def make_array(height: int = 60, width: int = 80) -> np.ndarray:
    random = np.random.RandomState(0)
    rows, columns = np.mgrid[:height, :width]
    waves = [np.sin(rows / (5 + channel)) + np.cos(columns / (9 - channel)) for channel in range(3)]
    array = 120 + 55 * np.stack(waves, axis=2) + random.normal(0, 12, (height, width, 3))
    return array.clip(1, 250).astype(np.uint8)


ARRAY = make_array()
IMAGE = Image.fromarray(ARRAY)
PIXELS = torch.from_numpy(ARRAY).permute(2, 0, 1)

PEERS = {
    "autocontrast": "AutoContrast",
    "equalise": "Equalize",
    "invert": "Invert",
    "rotate": "Rotate",
    "posterise": "PosterizeIncreasing",
    "solarise": "SolarizeIncreasing",
    "solarise_add": "SolarizeAdd",
    "colour": "ColorIncreasing",
    "contrast": "ContrastIncreasing",
    "brightness": "BrightnessIncreasing",
    "sharpness": "SharpnessIncreasing",
    "shear_x": "ShearX",
    "shear_y": "ShearY",
    "translate_x": "TranslateXRel",
    "translate_y": "TranslateYRel",
}
PLAIN_PEERS = {name: theirs.removesuffix("Increasing") for name, theirs in PEERS.items()}
POLICIES = [ThreeAugment(), RandAugment(9.0, 0.5), AutoAugment(), TrivialAugment(), ColourJitter(0.3, 0.3, 0.3, 0.1)]


def difference(pixels: Tensor, image: Image.Image) -> Tensor:
    return (pixels.int() - torch.from_numpy(np.array(image)).permute(2, 0, 1).int()).abs().float()


def find_key(sign: int) -> int:
    """A key whose first draw gives this sign."""
    return next(key for key in range(100) if (1 if Draws(key).chance(0.5) else -1) == sign)


# One operation


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("magnitude", [0.0, 6.0, 9.9])
@pytest.mark.parametrize("is_increasing", [True, False])
@pytest.mark.parametrize("name", list(PEERS))
def test_an_operation_of_a_magnitude_is_timms(
    name: str,
    is_increasing: bool,
    magnitude: float,
    sign: int,
    interpolation: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if name == "posterise" and not is_increasing and magnitude < 3:
        pytest.skip("Pillow 13 does not posterise to 0 bits")
    monkeypatch.setattr(peer, "_randomly_negate", lambda value: sign * value)
    filter = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}[interpolation]
    settings = {"img_mean": warp.FILL, "interpolation": filter}
    names = PEERS if is_increasing else PLAIN_PEERS
    theirs = peer.AugmentOp(names[name], prob=1.0, magnitude=magnitude, hparams=settings)(IMAGE)
    draws = Draws(find_key(sign))
    argument = interpret(name, magnitude / 10, draws, is_increasing=is_increasing, size=(60, 80))
    errors = difference(operate(name, PIXELS, argument, interpolation=interpolation), theirs)
    assert errors.max() <= 1
    assert errors.mean() < 0.35


def test_posterise_of_the_highest_magnitude_leaves_one_bit() -> None:
    argument = interpret("posterise", 1.0, Draws(0), is_increasing=True, size=(60, 80))
    assert set(operate("posterise", PIXELS, argument, interpolation="bicubic").unique().tolist()) == {0, 128}


@pytest.mark.parametrize(
    ("name", "level", "argument"),
    [
        ("rotate", 1.0, 135.0),
        ("shear_x", 1.0, 0.99),
        ("translate_y", 1.0, 32),
        ("translate_x", 1 / 30, 1),
        ("brightness", 1.0, 1.99),
        ("posterise", 1.0, 2),
        ("posterise", 0.0, 8),
        ("solarise", 0.0, 255.0),
        ("solarise", 1.0, 0.0),
    ],
)
def test_the_wide_space_has_the_ranges_of_its_paper(name: str, level: float, argument: float) -> None:
    assert interpret_wide(name, level, Draws(find_key(1))) == pytest.approx(argument)
    opposite = {"brightness": 2 - argument}.get(name, -argument)
    if name not in ("posterise", "solarise"):
        assert interpret_wide(name, level, Draws(find_key(-1))) == pytest.approx(opposite)


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_whole_pixels_are_shifted_exactly_and_the_rest_is_filled(interpolation: str) -> None:
    left = warp.translate_x(PIXELS, 10, interpolation=interpolation)
    assert torch.equal(left[:, :, :70], PIXELS[:, :, 10:])
    assert left[:, :, 70:].flatten(1).unique(dim=1).squeeze(1).tolist() == list(warp.FILL)
    down = warp.translate_y(PIXELS, -7, interpolation=interpolation)
    assert torch.equal(down[:, 7:], PIXELS[:, :-7])
    assert down[:, :7].flatten(1).unique(dim=1).squeeze(1).tolist() == list(warp.FILL)


def test_shifting_further_than_the_picture_leaves_the_fill() -> None:
    gone = warp.translate_x(PIXELS, 200.5)
    assert gone.flatten(1).unique(dim=1).squeeze(1).tolist() == list(warp.FILL)


# Policies


def note_operations(policy: Policy, number: int, monkeypatch: pytest.MonkeyPatch) -> list[list[tuple[str, float]]]:
    """For each of so many keys the operations the policy applies, with their arguments."""
    noted: list[list[tuple[str, float]]] = []

    def note(name: str, pixels: Tensor, argument: float, *, interpolation: str) -> Tensor:
        noted[-1].append((name, argument))
        return pixels

    monkeypatch.setattr(policies, "operate", note)
    for key in range(number):
        noted.append([])
        policy(PIXELS, Draws(key))
    return noted


def settings_of(parts: list[Any]) -> AugmentationSettings:
    return AugmentationSettings.model_validate({"policy": parts})


def test_a_list_of_all_three_parts_in_any_order_is_three_augment_to_the_bit() -> None:
    three = make_policy(AugmentationSettings(policy="three"))
    listed = make_policy(settings_of(["blur", "solarize", "grayscale"]))
    assert three == listed == ThreeAugment()
    assert three is not None
    assert listed is not None
    assert all(torch.equal(three(PIXELS, Draws(key)), listed(PIXELS, Draws(key))) for key in range(9))


def test_a_list_of_parts_is_one_of_them_equally_often() -> None:
    policy = make_policy(settings_of(["identity", "grey"]))
    assert policy is not None
    grey = operate("colour", PIXELS, 0.0, interpolation="bicubic")
    made = [policy(PIXELS, Draws(key)) for key in range(400)]
    unchanged = sum(torch.equal(pixels, PIXELS) for pixels in made)
    assert 160 < unchanged < 240
    assert all(torch.equal(pixels, PIXELS) or (pixels.int() - grey.int()).abs().max() <= 1 for pixels in made)


@pytest.mark.parametrize("parts", [[], ["sepia"], ["grey", "gray"], ["grey", 3]])
def test_a_list_of_parts_that_is_none_is_refused_in_one_line(parts: list[Any]) -> None:
    with pytest.raises(ValidationError, match="each of them once: grey, solarise, blur, identity"):
        settings_of(parts)


def test_three_augment_is_one_of_three_operations_equally_often(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: Counter[str] = Counter()
    radii = []

    def note(name: str) -> Callable[..., Tensor]:
        def change(pixels: Tensor, argument: float = 0.0) -> Tensor:
            counts[name] += 1
            if name == "blur":
                radii.append(argument)
            if name == "solarise":
                assert argument == 128
            return pixels

        return change

    for name in ("grey", "solarise", "blur"):
        monkeypatch.setattr(policies.colour, name, note(name))
    for key in range(3000):
        ThreeAugment()(PIXELS, Draws(key))
    assert all(900 < counts[name] < 1100 for name in ("grey", "solarise", "blur"))
    assert 0.1 <= min(radii) < 0.12
    assert 1.98 < max(radii) <= 2.0


def test_rand_augment_applies_each_of_two_operations_with_probability_one_half(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = note_operations(RandAugment(9.0, 0.5), 4000, monkeypatch)
    lengths = Counter(map(len, noted))
    assert 900 < lengths[0] < 1100
    assert 1900 < lengths[1] < 2100
    assert 900 < lengths[2] < 1100
    names = Counter(name for sample in noted for name, _ in sample)
    assert set(names) == set(PEERS)
    assert all(200 < count < 340 for count in names.values())  # 4000 of 15 kinds: 267


def test_the_magnitude_of_rand_augment_is_normal_and_ends_at_ten(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = note_operations(RandAugment(9.0, 0.5, probability=1.0), 4000, monkeypatch)
    magnitudes = [abs(argument) / 3 for sample in noted for name, argument in sample if name == "rotate"]
    assert np.mean(magnitudes) == pytest.approx(9.0, abs=0.06)
    assert np.std(magnitudes) == pytest.approx(0.49, abs=0.03)  # a little below 0.5: cut off at 10
    assert max(magnitudes) == pytest.approx(10.0)
    without = note_operations(RandAugment(7, 0.0, probability=1.0), 200, monkeypatch)
    angles = {argument for sample in without for name, argument in sample if name == "rotate"}
    assert angles == {21.0, -21.0}


def test_auto_augment_draws_its_25_pairs_with_their_probabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = peer.auto_augment_policy_original({"img_mean": warp.FILL})
    known = {f"{name}Original" if name == "Posterize" else name: ours for ours, name in PLAIN_PEERS.items()}
    expected: Counter[str] = Counter()
    for pair in theirs:
        for operation in pair:
            expected[known[operation.name]] += 5000 / 25 * operation.prob
    noted = note_operations(AutoAugment(), 5000, monkeypatch)
    counts = Counter(name for sample in noted for name, _ in sample)
    assert set(counts) == {name for name, count in expected.items() if count > 0}
    for name, count in counts.items():
        assert count == pytest.approx(expected[name], abs=5 * expected[name] ** 0.5)
    bits = {argument for sample in noted for name, argument in sample if name == "posterise"}
    assert bits == {6, 7}  # 4 + int(0.4 * magnitude) for magnitudes 5 to 8


def test_the_table_of_auto_augment_is_timms() -> None:
    known = {f"{name}Original" if name == "Posterize" else name: ours for ours, name in PLAIN_PEERS.items()}
    theirs = [
        tuple((known[operation.name], operation.prob, operation.magnitude) for operation in pair)
        for pair in peer.auto_augment_policy_original({"img_mean": warp.FILL})
    ]
    assert list(policies.AUTO_POLICY) == theirs


def test_trivial_augment_is_always_one_operation_of_any_strength(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = note_operations(TrivialAugment(), 4200, monkeypatch)
    assert all(len(sample) == 1 for sample in noted)
    names = Counter(name for sample in noted for name, _ in sample)
    assert len(names) == 14
    assert all(220 < count < 380 for count in names.values())  # 4200 of 14 kinds: 300
    angles = {round(abs(argument), 3) for sample in noted for name, argument in sample if name == "rotate"}
    assert angles == {round(4.5 * level, 3) for level in range(31)}


def test_jitter_draws_factors_around_one_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[list[tuple[str, float]]] = []

    def note(pixels: Tensor, steps: list[tuple[str, float]]) -> Tensor:
        noted.append(steps)
        return pixels

    monkeypatch.setattr(policies.colour, "enhance", note)
    for key in range(2400):
        ColourJitter(0.3, 0.4, 1.5)(PIXELS, Draws(key))
    orders = Counter(tuple(name for name, _ in steps) for steps in noted)
    assert len(orders) == 6
    assert all(330 < count < 470 for count in orders.values())
    for name, low, high in (("brightness", 0.7, 1.3), ("contrast", 0.6, 1.4), ("saturation", 0.0, 2.5)):
        factors = [factor for steps in noted for kind, factor in steps if kind == name]
        assert low <= min(factors) < low + 0.01
        assert high - 0.01 < max(factors) <= high


def test_a_jitter_that_is_off_does_not_change_the_factors_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[dict[str, float]] = []

    def note(pixels: Tensor, steps: list[tuple[str, float]]) -> Tensor:
        noted.append(dict(steps))
        return pixels

    monkeypatch.setattr(policies.colour, "enhance", note)
    ColourJitter(0.3, 0.3, 0.3)(PIXELS, Draws(5))
    ColourJitter(0.3, 0.0, 0.3, 0.1)(PIXELS, Draws(5))
    assert noted[0]["brightness"] == noted[1]["brightness"]
    assert noted[0]["saturation"] == noted[1]["saturation"]
    assert "contrast" not in noted[1]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
def test_the_same_draws_give_the_same_pixels_and_others_do_not(policy: Policy) -> None:
    before = PIXELS.clone()
    made = [policy(PIXELS, Draws("seed", key)) for key in range(12)]
    again = [policy(PIXELS, Draws("seed", key)) for key in range(12)]
    for first, second in zip(made, again, strict=True):
        assert torch.equal(first, second)
        assert first.dtype == torch.uint8
        assert first.shape == PIXELS.shape
        assert first.permute(1, 2, 0).is_contiguous()
    assert len({pixels.numpy().tobytes() for pixels in made}) > 3
    assert torch.equal(PIXELS, before)


def test_random_interpolation_is_one_of_both() -> None:
    policy, bilinear, bicubic = (
        RandAugment(9.0, 0.5, interpolation=name, probability=1.0) for name in ("random", "bilinear", "bicubic")
    )
    kinds = set()
    for key in range(60):
        pixels = policy(PIXELS, Draws(key)).tolist()
        is_bilinear = pixels == bilinear(PIXELS, Draws(key)).tolist()
        is_bicubic = pixels == bicubic(PIXELS, Draws(key)).tolist()
        kinds.add((is_bilinear, is_bicubic))
    assert {(True, False), (False, True)} <= kinds


def test_every_operation_of_the_policies_is_known() -> None:
    used = {*policies.RAND_OPERATIONS, *policies.TRIVIAL_OPERATIONS}
    used |= {name for pair in policies.AUTO_POLICY for name, _, _ in pair}
    assert used == set(operations.OPERATIONS)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandAugment(9.0, 0.5, num_operations=-1), "can't make -1 operations"),
        (lambda: RandAugment(9.0, 0.5, probability=1.5), "probability of RandAugment is 1.5; it goes from 0 to 1"),
        (lambda: AutoAugment(interpolation="lanczos"), "unknown interpolation 'lanczos'; known are: bicubic"),
        (lambda: TrivialAugment(interpolation=""), "unknown interpolation ''"),
        (lambda: ThreeAugment(radius=(2.0, 0.1)), r"radius of the blur is \(2.0, 0.1\)"),
        (lambda: ThreeAugment(radius=1.0), "radius of the blur is 1.0; give a smaller"),  # type: ignore[arg-type]
        (lambda: ThreeAugment(parts=()), "unknown part of 3-Augment None; known are: grey, solarise, blur, identity"),
        (lambda: ThreeAugment(parts=("sepia",)), "unknown part of 3-Augment 'sepia'"),  # type: ignore[arg-type]
        (lambda: ThreeAugment(threshold=-1), "threshold of solarise is -1; it goes from 0 to 256"),
        (lambda: ThreeAugment(threshold=300), "threshold of solarise is 300; it goes from 0 to 256"),
        (lambda: ThreeAugment(threshold="a"), "threshold of solarise is 'a'"),  # type: ignore[arg-type]
        (lambda: RandAugment(9.0, 0.5, num_operations=1.5), "can't make 1.5 operations"),  # type: ignore[arg-type]
        (lambda: ColourJitter(contrast="a"), "jitter of contrast is 'a'"),  # type: ignore[arg-type]
        (lambda: ColourJitter(brightness=-0.1), "jitter of brightness is -0.1"),
        (lambda: ColourJitter(hue=0.6), "jitter of hue is 0.6; it can be 0 to 0.5"),
    ],
)
def test_settings_that_make_no_sense_are_errors(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
