"""Weights of classes, counted by hand."""

import numpy as np
import pytest
import torch

from vitrail.data.decode import BrokenImageError
from vitrail.data.dense.class_table import table_of
from vitrail.data.dense.contract import IGNORED, SegmentationSet
from vitrail.tasks.segment.class_weights import balance_classes, count_pixels


class Masks(SegmentationSet):
    """Four masks, of which one can't be read."""

    def __init__(self) -> None:
        self.masks = [[0, 0, 1, IGNORED], [0, 2, 2, 2], None, [0, 0, 0, 1]]

    def __len__(self) -> int:
        return len(self.masks)

    def read(self, index: int) -> bytes:
        raise NotImplementedError

    def locate(self, index: int) -> str:
        return str(index)

    def read_mask(self, index: int) -> np.ndarray:
        mask = self.masks[index]
        if mask is None:
            raise BrokenImageError("is cut off")
        return np.frombuffer(bytes(mask), dtype=np.uint8)[None]  # as files give it, for reading only


def test_pixels_are_counted_by_the_classes_that_are_learnt() -> None:
    everything = table_of(("wall", "door", "sky"), known=["wall", "door", "sky"], ignore=())
    assert count_pixels(Masks(), table=everything, num_classes=3).tolist() == [6, 2, 3]
    without = table_of(("wall", "door", "sky"), known=["wall", "sky"], ignore=("door",))
    assert count_pixels(Masks(), table=without, num_classes=2).tolist() == [6, 3]


@pytest.mark.parametrize(
    ("power", "expected"), [(0.0, [1, 1, 1, 1]), (0.5, [0.5, 1, 5, 5]), (1.0, [1 / 3, 4 / 3, 100 / 3, 100 / 3])]
)
def test_weights_fall_with_the_share_of_a_class(power: float, expected: list[float]) -> None:
    counts = torch.tensor([96.0, 24.0, 0.96, 0.0], dtype=torch.float64)
    found = balance_classes(counts, power=power)
    torch.testing.assert_close(found / found[0], torch.tensor(expected) / expected[0])
    assert float((counts / counts.sum() * found).sum()) == pytest.approx(1.0)  # the mean over all pixels
    assert balance_classes(torch.zeros(3), power=0.5).tolist() == [1, 1, 1]
