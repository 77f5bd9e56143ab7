"""Masks as COCO stores them: lengths of runs down the columns, as numbers or as text."""

from collections.abc import Sequence

import numpy as np

from vitrail.data.dense.contract import MaskWindow

_FIRST, _LAST = 48, 48 + 63  # characters that stand for six bits each
_MORE, _SIGN, _DIGIT = 0x20, 0x10, 0x1F


def parse_text(text: str | bytes) -> np.ndarray:
    """The lengths of runs that a text stands for, int64: five bits a character, the lowest first.

    From the fourth on, a number is the difference from the one before the last.
    """
    read = np.frombuffer(text.encode("latin-1", "replace") if isinstance(text, str) else text, dtype=np.uint8)
    if not len(read):
        return np.zeros(0, dtype=np.int64)
    if read.min() < _FIRST or read.max() > _LAST:
        raise ValueError("a text of run lengths has characters that stand for no number")
    codes = read.astype(np.int64) - _FIRST
    ends = np.flatnonzero(codes & _MORE == 0)
    if not len(ends) or ends[-1] != len(codes) - 1:
        raise ValueError("a text of run lengths ends within a number")
    starts = np.concatenate([[0], ends[:-1] + 1])
    place = np.arange(len(codes)) - np.repeat(starts, ends - starts + 1)
    if place.max() > 7:
        raise ValueError("a text of run lengths has a number that is too long")
    numbers = np.add.reduceat((codes & _DIGIT) << (5 * place), starts)
    numbers -= np.where(codes[ends] & _SIGN != 0, np.int64(1) << (5 * (ends - starts + 1)), 0)
    numbers[1::2] = np.cumsum(numbers[1::2])
    numbers[2::2] = np.cumsum(numbers[2::2])
    return numbers


def check_runs(runs: Sequence[int] | np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """The lengths as uint32, where they fill an image of that height and width."""
    lengths = np.asarray(runs)
    if lengths.ndim != 1 or (len(lengths) and lengths.dtype.kind not in "iu"):
        raise ValueError("run lengths must be a list of whole numbers")
    if len(lengths) and lengths.min() < 0:
        raise ValueError("a run length is negative")
    if int(lengths.sum()) != size[0] * size[1]:
        raise ValueError(f"run lengths have {int(lengths.sum())} pixels, the image has {size[0] * size[1]}")
    return lengths.astype(np.uint32)


def fill_runs(runs: np.ndarray, size: tuple[int, int]) -> MaskWindow:
    """The mask of an image of that height and width: the first run is outside, the second inside, and so on."""
    height, width = size
    values = np.repeat(np.arange(len(runs), dtype=np.uint8) & 1, runs)
    return shrink_window(MaskWindow(0, 0, values.reshape(width, height).T))


def shrink_window(window: MaskWindow) -> MaskWindow:
    """The smallest window that holds the same mask; of an empty one nothing is left."""
    top, left, values = window
    rows, columns = np.flatnonzero(values.any(axis=1)), np.flatnonzero(values.any(axis=0))
    if not len(rows):
        return MaskWindow(top, left, np.zeros((0, 0), dtype=np.uint8))
    part = values[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    return MaskWindow(top + int(rows[0]), left + int(columns[0]), np.ascontiguousarray(part))
