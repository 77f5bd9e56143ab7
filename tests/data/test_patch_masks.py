"""Masks of patches: how many, in which shapes, and whose draws they are."""

from pathlib import Path

import numpy as np
import pytest
from scipy import ndimage

from vitrail.data.augment import EvaluationView
from vitrail.data.datasets import open_source, open_split
from vitrail.data.draws import Draws
from vitrail.data.loader import Loader
from vitrail.data.patch_masks import BlockMask, MaskedImages, RandomMask
from vitrail.data.sampler import Sampler

BEIT = BlockMask((14, 14), 75 / 196)


def test_beit_masks_75_of_196_patches_in_blocks_of_16_at_least() -> None:
    assert (BEIT.num_masked, BEIT.least) == (75, 16)
    sizes = []
    for image in range(100):
        mask = BEIT(Draws(0, 0, image, 1))
        assert mask.sum() == 75
        parts, count = ndimage.label(mask)
        sizes += [int((parts == part).sum()) for part in range(1, count + 1)]
    assert min(sizes) >= 14  # a block of 16, or the patches that no block fitted, which grow beside one
    alone = [ndimage.label(RandomMask((14, 14), 75 / 196)(Draws(0, 0, image, 1)))[1] for image in range(20)]
    assert np.mean(alone) > 8 > len(sizes) / 100


@pytest.mark.parametrize(("grid", "num_masked"), [((8, 8), 24), ((4, 4), 6), ((10, 6), 23), ((1, 2), 1)])
def test_other_grids_are_masked_in_proportion(grid: tuple[int, int], num_masked: int) -> None:
    for kind in (BlockMask, RandomMask):
        mask = kind(grid, 75 / 196)
        found = [mask(Draws(0, 0, image, 1)) for image in range(20)]
        assert {(one.shape, int(one.sum())) for one in found} == {(grid, num_masked)}


def test_random_masks_choose_all_patches_alike() -> None:
    mask = RandomMask((6, 6), 0.75)
    assert mask.num_masked == 27
    shares = np.mean([mask(Draws(1, 0, image, 1)) for image in range(2000)], axis=0)
    assert np.abs(shares - 0.75).max() < 0.05


def test_a_mask_belongs_to_seed_epoch_and_sample_and_moves_no_crop(tmp_path: Path) -> None:
    data = open_split(open_source("shapes:size=16,count=8,val=8"), "train")
    make = MaskedImages(EvaluationView(image_size=16, crop_ratio=1.0), BlockMask((4, 4), 0.4))

    def masks(seed: int, epoch: int, *, parts: int = 1) -> dict[int, bytes]:
        sampler = Sampler(len(data), batch_size=8, seed=seed, num_micro_batches=parts)
        batches = Loader(data, make=make, sampler=sampler).epoch(epoch)
        found = [(batch.indices, batch.masks) for batch in batches]
        return {
            int(index): mask.numpy().tobytes() for indices, of in found for index, mask in zip(indices, of, strict=True)
        }

    assert masks(0, 0) == masks(0, 0, parts=2)
    assert masks(0, 0) != masks(0, 1)
    assert masks(0, 0) != masks(1, 0)
