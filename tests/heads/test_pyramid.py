"""The pyramid of one resolution: its levels for every family, its layout, and what it refuses."""

from typing import Any

import pytest
import torch
from torch import nn

from vitrail.heads.pyramid import Pyramid, PyramidSettings, choose_levels, freeze_unread
from vitrail.models.catalog import create_model
from vitrail.models.contract import Model

SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("deit_tiny", {"dim": 24, "num_heads": 2, "depth": 4}),
    "cait": ("cait_xxs24", {"dim": 24, "num_heads": 2, "depth": 4}),
    "resmlp": ("resmlp_s12", {"dim": 24, "depth": 4}),
    "patchconvnet": ("patchconvnet_s20", {"dim": 32, "depth": 4}),
    "timm": ("timm/vit_tiny_patch16_224", {"options": {"embed_dim": 24, "num_heads": 2, "depth": 4}}),
}


def small(family: str, **settings: object) -> Model:
    name, own = SMALL[family]
    return create_model(name, image_size=(64, 96), num_classes=0, **own, **settings)


@pytest.mark.parametrize("kind", ["blocks", "last", "simple"])
@pytest.mark.parametrize("family", SMALL)
def test_levels_are_a_quarter_to_twice_the_patch(family: str, kind: str) -> None:
    trunk = small(family)
    pyramid = Pyramid(trunk, PyramidSettings(kind=kind, channels=20))
    levels = pyramid.read(trunk, torch.randn(2, 3, 64, 96))
    assert [tuple(maps.shape[2:]) for maps in levels] == [(16, 24), (8, 12), (4, 6), (2, 3)]
    assert [maps.shape[1] for maps in levels] == list(pyramid.channels)
    assert pyramid.strides == (4.0, 8.0, 16.0, 32.0)


@pytest.mark.parametrize("family", ["vit", "cait", "patchconvnet"])
def test_images_of_any_size_have_levels(family: str) -> None:
    trunk = small(family)
    levels = Pyramid(trunk).read(trunk, torch.randn(1, 3, 16, 48))
    assert [tuple(maps.shape[2:]) for maps in levels] == [(4, 12), (2, 6), (1, 3), (1, 2)]


@pytest.mark.parametrize(
    ("depth", "blocks"), [(12, (3, 5, 7, 11)), (24, (7, 11, 15, 23)), (60, (19, 29, 39, 59)), (2, (0, 0, 0, 1))]
)
def test_blocks_are_in_proportion(depth: int, blocks: tuple[int, ...]) -> None:
    with torch.device("meta"):
        trunk = create_model("deit_tiny", dim=8, num_heads=1, depth=depth, num_classes=0)
        assert choose_levels(trunk)[0] == blocks


def test_the_finest_level_is_read_from_the_first_block() -> None:
    trunk, images = small("vit").eval(), torch.randn(1, 3, 64, 96)
    pyramid = Pyramid(trunk).eval()
    assert pyramid.levels == (0, 1, 2, 3)
    found, maps = pyramid.read(trunk, images), trunk.features(images, levels=(0, 1, 2, 3)).levels
    steps = pyramid.get_submodule("steps.0")
    assert [type(step) for step in steps.children()] == [
        nn.ConvTranspose2d,
        nn.BatchNorm2d,
        nn.GELU,
        nn.ConvTranspose2d,
    ]
    torch.testing.assert_close(found[0], steps(maps[0]))
    torch.testing.assert_close(found[2], maps[2])
    torch.testing.assert_close(found[3], nn.functional.max_pool2d(maps[3], 2))


def test_a_trunk_with_stages_gives_them_as_they_are() -> None:
    trunk = create_model("timm/resnet18", num_classes=0, image_size=64, options={"channels": (8, 16, 24, 32)})
    pyramid = Pyramid(trunk)
    assert pyramid.channels == (8, 16, 24, 32)
    assert pyramid.strides == (4.0, 8.0, 16.0, 32.0)
    assert not list(pyramid.parameters())


def test_what_no_map_depends_on_is_frozen() -> None:
    trunk = small("cait")
    pyramid = Pyramid(trunk)
    freeze_unread(trunk, pyramid)
    levels = pyramid.read(trunk, torch.randn(1, 3, 64, 96))
    torch.stack([maps.square().sum() for maps in levels]).sum().backward()
    assert all((parameter.grad is not None) == parameter.requires_grad for parameter in trunk.parameters())


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"kind": "deep"}, "kind must be one of"),
        ({"blocks": (1, 2)}, "name as many blocks"),
        ({"kind": "last", "blocks": (0, 1, 2, 3)}, "leave them out"),
    ],
)
def test_wrong_settings_are_told(settings: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        PyramidSettings(**settings)  # type: ignore[arg-type]
