"""The operations of an augmentation one by one, at the strength that its settings say: for people to look at."""

from collections.abc import Iterator
from functools import partial

from torch import Tensor

from vitrail.data.draws import Draws
from vitrail.data.erasing import RandomErasing
from vitrail.data.operations import interpret, interpret_wide, operate
from vitrail.data.policies import (
    AUTO_POLICY,
    RAND_OPERATIONS,
    TRIVIAL_OPERATIONS,
    ColourJitter,
    RandAugment,
    ThreeAugment,
    make_policy,
)
from vitrail.settings.images import AugmentationSettings

_TRIVIAL_LEVEL = 0.6  # TrivialAugment draws any level from 0 to 1
_NUM_RANDOM = 3  # examples of steps that are other each time


def apply_singly(pixels: Tensor, settings: AugmentationSettings, *, seed: int) -> Iterator[tuple[str, Tensor]]:
    """Name and outcome of every operation that the settings may apply, on uint8 pixels [3, height, width]."""
    yield from _apply_policy(pixels, settings, seed=seed)
    if settings.colour_jitter:
        jitter = ColourJitter(*[settings.colour_jitter] * 3)
        for number in range(_NUM_RANDOM):
            yield f"jitter {settings.colour_jitter:g}", jitter(pixels, Draws(seed, number, "jitter"))
    if settings.erasing:
        for number in range(_NUM_RANDOM):
            yield "erasing", RandomErasing(1.0)(pixels, Draws(seed, number, "erasing"))


def _apply_policy(pixels: Tensor, settings: AugmentationSettings, *, seed: int) -> Iterator[tuple[str, Tensor]]:
    policy = make_policy(settings)
    height, width = pixels.shape[1:]
    interpret_here = partial(interpret, draws=Draws(seed, "operations"), size=(height, width))
    if isinstance(policy, ThreeAugment):
        for part in policy.parts:
            yield part, ThreeAugment(parts=(part,))(pixels, Draws(seed, "operations"))
    elif isinstance(policy, RandAugment):
        for name in RAND_OPERATIONS:
            argument = interpret_here(name, settings.magnitude / 10, is_increasing=policy.is_increasing)
            yield _spell(name), operate(name, pixels, argument, interpolation="bicubic")
    elif settings.policy == "auto":
        strengths: dict[str, int] = {}
        for name, _, magnitude in (operation for pair in AUTO_POLICY for operation in pair):
            strengths[name] = max(magnitude, strengths.get(name, 0))
        for name, magnitude in strengths.items():
            argument = interpret_here(name, magnitude / 10, is_increasing=False) + 4 * (name == "posterise")
            yield _spell(name), operate(name, pixels, argument, interpolation="bicubic")
    elif settings.policy == "trivial":
        for name in TRIVIAL_OPERATIONS:
            argument = interpret_wide(name, _TRIVIAL_LEVEL, Draws(seed, "operations"))
            yield _spell(name), operate(name, pixels, argument, interpolation="bicubic")


def _spell(name: str) -> str:
    return name.replace("_", " ")
