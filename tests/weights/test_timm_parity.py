"""Equal logits with timm at full width and random weights, through our loader, for every model both have."""

import functools
import gc
import re
from typing import Any

import pytest
import timm
import torch
from torch import Tensor

from vitrail import create_model, load_weights, to_timm
from vitrail.models.contract import Model

TIMM_NAMES = [
    *(name for family in ("deit", "deit3", "cait", "resmlp") for name in timm.list_models(f"{family}_*")),
    "vit_small_patch16_18x2_224",  # parallel branches
]
# Those that are compared with all of their blocks, as are ResMLPs, of which timm makes no shorter ones. Of others three
# are, which are equal to the rest.
WHOLE = (
    *("deit_tiny_patch16_224", "deit_tiny_distilled_patch16_224", "deit3_small_patch16_224"),
    *("cait_xxs24_224", "resmlp_12_224", "vit_small_patch16_18x2_224"),
)
NUM_BLOCKS = 3


def ours_for(timm_name: str) -> tuple[str, dict[str, Any]]:
    """The catalogue's name and the settings of a timm model, read from its name."""
    size = {"image_size": int(re.findall(r"\d+", timm_name)[-1])}
    if timm_name.startswith("cait_"):
        return timm_name.rpartition("_")[0], size
    if timm_name.startswith("resmlp_"):
        is_big = "big" in timm_name
        depth = re.findall(r"\d+", timm_name)[0]
        return (f"resmlp_b{depth}_p8" if is_big else f"resmlp_s{depth}"), size
    if timm_name.startswith("vit_"):
        return "vit_s18x2", {**size, "layer_scale": 1e-5, "class_position": True}
    match = re.fullmatch(r"(deit3?_[a-z]+(?:_distilled)?)_patch(\d+)_\d+", timm_name)
    assert match, f"no rule for {timm_name}"
    return match[1], {**size, "patch_size": int(match[2])}


@functools.cache
def draw_normal() -> Tensor:
    """Numbers that all random weights are made of."""
    return torch.randn(10_000_019, generator=torch.Generator().manual_seed(0))


def random_weights(shapes: dict[str, Tensor]) -> dict[str, Tensor]:
    """Values with which every block matters. They are windows of a few pools of numbers, so that they cost nothing."""
    normal = draw_normal()
    pools: dict[tuple[float, float], Tensor] = {}

    def window(index: int, like: Tensor, *, mean: float, deviation: float) -> Tensor:
        if (mean, deviation) not in pools:
            pools[mean, deviation] = mean + deviation * normal
        start = index * 77_777 % (len(normal) - like.numel())
        return pools[mean, deviation][start : start + like.numel()].view(like.shape)

    state = {}
    for index, (name, like) in enumerate(shapes.items()):
        if re.search(r"gamma|\.ls\d$", name):
            mean, deviation = 0.3, 0.1
        elif re.search(r"norm\d?\.(weight|alpha)$", name):
            mean, deviation = 1.0, 0.1
        elif like.ndim >= 2 and name.endswith("weight"):
            mean, deviation = 0.0, like[0].numel() ** -0.5
        else:
            mean, deviation = 0.0, 0.1
        state[name] = window(index, like, mean=mean, deviation=deviation)
    return state


def build_both(timm_name: str) -> tuple[torch.nn.Module, Model, dict[str, Tensor]]:
    """timm's model with random weights and ours without any, neither having spent time on its initialisation."""
    is_whole = timm_name in WHOLE or timm_name.startswith("resmlp_")
    theirs, ours = build_empty(timm_name, **({} if is_whole else {"depth": NUM_BLOCKS}))
    state = random_weights(theirs.state_dict())
    theirs.load_state_dict(state, assign=True)
    return theirs.eval(), ours.eval(), state


def build_empty(timm_name: str, **depth: int) -> tuple[torch.nn.Module, Model]:
    """Both models without values, with all of their blocks or as many as `depth` says."""
    name, settings = ours_for(timm_name)
    with torch.device("meta"):
        return timm.create_model(timm_name, **depth), create_model(name, **settings, **depth)


@pytest.mark.parametrize("timm_name", TIMM_NAMES)
def test_same_logits_as_timm(timm_name: str) -> None:
    theirs, ours, state = build_both(timm_name)
    load_weights(ours, state)
    images = torch.randn(1, 3, *ours.config.size, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected, actual = theirs(images), ours(images)
    assert expected.std() > 0.1
    assert (actual - expected).abs().max() < 1e-5
    del theirs, ours, state
    gc.collect()


@pytest.mark.parametrize(
    "timm_name",
    [
        *("deit_base_distilled_patch16_384", "deit3_large_patch16_224", "deit3_huge_patch14_224"),
        *("cait_s24_224", "cait_m48_448"),
    ],
)
def test_all_blocks_of_timm_have_their_place(timm_name: str) -> None:
    theirs, ours = build_empty(timm_name)
    state = theirs.state_dict()
    load_weights(ours, state)
    assert to_timm(ours).keys() == state.keys()


@pytest.mark.parametrize("timm_name", WHOLE)
def test_to_timm_gives_back_what_timm_has(timm_name: str) -> None:
    theirs, ours, state = build_both(timm_name)
    load_weights(ours, state)
    returned = to_timm(ours)
    assert returned.keys() == state.keys()
    assert all(torch.equal(returned[name], state[name]) for name in state)
    theirs.load_state_dict(returned, strict=True)
