"""Scores of maps: curves of a model that answers by one patch, the pointing game and the energy by hand, floors."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from vitrail.data.datasets import open_dataset
from vitrail.explain.masks import find_masks
from vitrail.explain.measure import choose_places
from vitrail.explain.score import (
    Scores,
    area,
    blur,
    centre_maps,
    energy_inside,
    find_curves,
    points_at,
    random_maps,
)
from vitrail.models.contract import Features, Model


@dataclass(frozen=True)
class NoConfig:
    image_size: int = 4
    size: tuple[int, int] = (4, 4)
    in_channels: int = 3
    num_classes: int = 2


class LooksAtOnePatch(Model):
    """The second class's logit is ten times the mean of the upper right quarter of a 4 x 4 image; the first's is 0."""

    def __init__(self) -> None:
        super().__init__(NoConfig())

    def forward(self, images: Tensor) -> Tensor:
        score = 10 * images[:, :, :2, 2:].mean(dim=(1, 2, 3))
        return torch.stack([torch.zeros_like(score), score], dim=1)

    def features(self, images: Tensor, *, levels: Sequence[int] = ()) -> Features:
        raise NotImplementedError


def test_deletion_and_insertion_of_a_model_that_answers_by_one_patch() -> None:
    images = torch.zeros(1, 3, 4, 4)
    images[:, :, :2, 2:] = 0.3
    sure = 1 / (1 + math.exp(-3.0))
    blurred = float(LooksAtOnePatch()(blur(images)).softmax(dim=1)[0, 1])
    right = torch.tensor([[[0.0, 3.0], [2.0, 1.0]]])
    curves = find_curves(LooksAtOnePatch(), images, right, classes=torch.tensor([1]), steps=4, batch_size=3)
    torch.testing.assert_close(curves.deletion, torch.tensor([[sure, 0.5, 0.5, 0.5, 0.5]]))
    torch.testing.assert_close(curves.insertion, torch.tensor([[blurred, sure, sure, sure, sure]]))
    torch.testing.assert_close(area(curves.deletion), torch.tensor([(0.5 * (sure + 0.5) + 3 * 0.5) / 4]))
    wrong = find_curves(LooksAtOnePatch(), images, -right, classes=torch.tensor([1]), steps=4)
    torch.testing.assert_close(wrong.deletion, torch.tensor([[sure, sure, sure, sure, 0.5]]))
    assert float(area(wrong.insertion)) < float(area(curves.insertion))


def test_each_image_is_followed_for_its_own_class() -> None:
    images = torch.zeros(2, 3, 4, 4)
    images[:, :, :2, 2:] = 0.3
    maps = torch.zeros(2, 2, 2)
    curves = find_curves(LooksAtOnePatch(), images, maps, classes=torch.tensor([1, 0]), steps=1)
    torch.testing.assert_close(curves.deletion.sum(dim=0), torch.ones(2))


def test_the_pointing_game_asks_where_the_greatest_value_lies() -> None:
    maps = torch.tensor([[[0.0, 5.0], [1.0, 2.0]], [[0.0, 5.0], [6.0, 2.0]]])
    masks = torch.zeros(2, 2, 2, dtype=torch.bool)
    masks[:, 0, 1] = True
    assert points_at(maps, masks).tolist() == [True, False]
    large = masks.repeat_interleave(10, dim=1).repeat_interleave(10, dim=2)
    assert points_at(maps, large).tolist() == [True, False]


def test_energy_is_the_share_of_positive_values_inside() -> None:
    maps = torch.tensor([[[1.0, 3.0], [-5.0, 4.0]], [[0.0, 0.0], [0.0, 0.0]]])
    masks = torch.tensor([[[True, True], [True, False]]] * 2)
    torch.testing.assert_close(energy_inside(maps, masks), torch.tensor([0.5, 0.75]))


def test_floors_have_the_shape_of_the_maps_and_are_what_they_say() -> None:
    maps = torch.zeros(2, 5, 7)
    assert torch.equal(random_maps(maps, seed=3), random_maps(maps, seed=3))
    assert not torch.equal(random_maps(maps, seed=3), random_maps(maps, seed=4))
    centre = centre_maps(maps)
    assert centre.shape == maps.shape
    assert int(centre[0].argmax()) == 2 * 7 + 3
    torch.testing.assert_close(centre, centre.flip(1, 2))


def test_means_leave_out_images_whose_mask_is_empty() -> None:
    images = torch.zeros(2, 3, 4, 4)
    maps = torch.tensor([[[1.0, 0.0], [0.0, 0.0]]] * 2)
    masks = torch.zeros(2, 4, 4, dtype=torch.bool)
    masks[0, :2, :2] = True
    scores = Scores()
    curves = find_curves(LooksAtOnePatch(), images, maps, classes=torch.tensor([1, 1]), steps=2)
    scores.add("attention", curves, maps, masks)
    ((name, means),) = scores.results()
    assert name == "attention"
    assert means["deletion"] == pytest.approx(0.5)
    assert means["pointing"] == 1.0
    assert means["mask"] == 0.25


def test_places_are_spread_evenly() -> None:
    assert choose_places(10, limit=4) == [0, 2, 5, 7]
    assert choose_places(3, limit=10) == [0, 1, 2]


def test_shapes_bring_their_masks() -> None:
    data = open_dataset("shapes:size=32,count=24,val=24", "val")
    find_mask = find_masks(data)
    assert find_mask is not None
    mask = find_mask(3)
    assert mask.shape == (32, 32)
    assert mask.dtype == torch.bool
    assert 0.05 < float(mask.float().mean()) < 0.7


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes of two images each."""
    for place in ("cat/a", "cat/b", "dog/c", "dog/d"):
        path = tmp_path / "photos" / f"{place}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((6, 8, 3), 100, dtype=np.uint8)).save(path)
    return tmp_path / "photos"


def test_masks_are_files_named_as_the_images(photos: Path, tmp_path: Path) -> None:
    data = open_dataset(str(photos), "train")
    assert find_masks(data) is None
    trimap = np.full((6, 8), 2, dtype=np.uint8)
    trimap[1, 2], trimap[0, 0] = 1, 3
    (tmp_path / "masks").mkdir()
    for stem in "abcd":
        Image.fromarray(trimap).save(tmp_path / "masks" / f"{stem}.png")
    find_mask = find_masks(data, str(tmp_path / "masks"), foreground=[1])
    assert find_mask is not None
    assert find_mask(0).nonzero().tolist() == [[1, 2]]
    everything = find_masks(data, str(tmp_path / "masks"))
    assert everything is not None
    assert bool(everything(0).all())


def test_masks_that_are_not_there_are_named(photos: Path, tmp_path: Path) -> None:
    data = open_dataset(str(photos), "train")
    with pytest.raises(ValueError, match="no such folder"):
        find_masks(data, str(tmp_path / "gone"))
    (tmp_path / "masks").mkdir()
    with pytest.raises(ValueError, match="there are no images in it"):
        find_masks(data, str(tmp_path / "masks"))
    Image.fromarray(np.zeros((6, 8), dtype=np.uint8)).save(tmp_path / "masks" / "other.png")
    find_mask = find_masks(data, str(tmp_path / "masks"))
    assert find_mask is not None
    with pytest.raises(ValueError, match=r"there is no mask [abcd]\.png for"):
        find_mask(0)
