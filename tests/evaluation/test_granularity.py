"""Which levels are coarser than others, and which one a ranking is conditioned by."""

import numpy as np
import pytest

from vitrail.data.contract import Level
from vitrail.data.stored import ArrayDataset
from vitrail.evaluation.granularity import choose_coarse, find_coarser, order_levels


def taxonomy(**more: Level) -> ArrayDataset:
    """Eight species in four genera of two families; the colour has nothing to do with them."""
    species = np.arange(16) % 8
    levels = {
        "species": Level(tuple("abcdefgh"), species),
        "family": Level(("x", "y"), species // 4),
        "genus": Level(tuple("ABCD"), species // 2),
        "colour": Level(("red", "green", "blue"), np.arange(16) % 3),
        **more,
    }
    return ArrayDataset(name="birds", split="train", images=np.zeros((16, 2, 2), np.uint8), levels=levels)


def test_levels_are_ordered_from_coarse_to_fine() -> None:
    several = Level(("wings", "beak"), np.zeros((16, 2), dtype=bool))
    empty = Level(("one",), np.full(16, -1))
    assert order_levels(taxonomy(parts=several, nothing=empty)) == ("family", "colour", "genus", "species")
    alone = ArrayDataset(name="birds", split="train", images=np.zeros((16, 2, 2), np.uint8), levels={"parts": several})
    with pytest.raises(ValueError, match="birds has no labels of which an image has one"):
        order_levels(alone)


def test_a_coarser_level_follows_from_the_finer_one() -> None:
    data = taxonomy()
    assert find_coarser(data, "species") == ("family", "genus")
    assert find_coarser(data, "genus") == ("family",)
    assert find_coarser(data, "family") == ()


def test_images_without_a_label_do_not_count() -> None:
    genus = np.arange(16) % 8 // 2
    genus[:3] = -1
    assert find_coarser(taxonomy(genus=Level(tuple("ABCD"), genus)), "species") == ("family", "genus")


def test_the_level_of_the_training_is_conditioned_by_unless_another_is_wanted() -> None:
    data = taxonomy()
    assert choose_coarse(data, "species") == "genus"
    assert choose_coarse(data, "species", trained_on="family") == "family"
    assert choose_coarse(data, "species", trained_on="species") == "genus"
    assert choose_coarse(data, "species", trained_on="family", wanted="genus") == "genus"
    assert choose_coarse(data, "genus", wanted="genus") is None
    assert choose_coarse(data, "family") is None
