"""Polygons made masks, pixel by pixel as COCO's own tools do it."""

from collections.abc import Iterator, Sequence

import numpy as np

from vitrail.data.dense.contract import MaskWindow
from vitrail.data.dense.run_lengths import shrink_window

_FINER = 5  # places of an outline in a pixel
_FAR = 2_000  # pixels from an image: what lies farther away is a slip, and would take all memory
_MAX_POINTS = 1 << 21  # of outlines that are walked at once


def fill_polygons(rings: Sequence[np.ndarray], size: tuple[int, int]) -> MaskWindow:
    """The mask of an object in an image of that height and width: what lies in one of its polygons [corners, 2]."""
    height, width = size
    corners = np.concatenate(rings)
    left, top = np.clip(np.floor(corners.min(axis=0)).astype(np.int64) - 1, 0, (width, height)).tolist()
    right, bottom = np.clip(np.ceil(corners.max(axis=0)).astype(np.int64) + 2, 0, (width, height)).tolist()
    values = np.zeros((max(0, bottom - top), max(0, right - left)), dtype=np.uint8)
    if values.size:
        for ring in rings:
            values |= _fill(ring, size, (top, left, bottom, right))
    return shrink_window(MaskWindow(top, left, values))


def _fill(ring: np.ndarray, size: tuple[int, int], window: tuple[int, int, int, int]) -> np.ndarray:
    """Walk the outline; wherever it passes the middle of a column, inside and outside change below that place."""
    height, _ = size
    top, left, bottom, right = window
    corners = np.clip(ring, -_FAR - max(size), _FAR + 2 * max(size))
    corners = (_FINER * corners + 0.5).astype(np.int64)  # cut off towards 0, also below it
    changes = np.zeros((right - left, bottom - top + 1), dtype=np.uint8)
    before = corners[:1]
    for path in _walk(np.concatenate([corners, corners[:1]])):
        path = np.concatenate([before, path])
        before = path[-1:]
        moved = np.flatnonzero(path[1:, 0] != path[:-1, 0])
        first, second = path[moved], path[moved + 1]
        across = np.where(second[:, 0] < first[:, 0], second[:, 0], second[:, 0] - 1)
        # The middle of a pixel is its third of five places.
        is_middle = (across - _FINER // 2) % _FINER == 0
        column = (across[is_middle] - _FINER // 2) // _FINER
        row = (np.minimum(first[is_middle, 1], second[is_middle, 1]) + 0.5) / _FINER - 0.5
        row = np.ceil(np.clip(row, 0, height)).astype(np.int64)
        is_within = (column >= left) & (column < right)
        column, row = column[is_within] - left, np.clip(row[is_within], top, bottom) - top
        np.bitwise_xor.at(changes, (column, row), 1)
    return np.bitwise_xor.accumulate(changes, axis=1)[:, :-1].T


def _walk(corners: np.ndarray) -> Iterator[np.ndarray]:
    """All places on the way from corner to corner, [places, 2], some edges at a time."""
    start, end = corners[:-1], corners[1:]
    lengths = np.abs(end - start).max(axis=1) + 1
    block = np.cumsum(lengths) // _MAX_POINTS
    for number in np.unique(block):
        chosen = block == number
        yield _walk_edges(start[chosen], end[chosen], lengths[chosen])


def _walk_edges(start: np.ndarray, end: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    difference = end - start
    is_flat = np.abs(difference[:, 0]) >= np.abs(difference[:, 1])
    # Every edge is walked in the direction in which its longer side grows, so that both ways have the same places.
    is_back = np.where(is_flat, difference[:, 0], difference[:, 1]) < 0
    low = np.where(is_back[:, None], end, start)
    steps = np.maximum(lengths - 1, 1)
    rise = np.where(is_back[:, None], -difference, difference) / steps[:, None]
    edge = np.repeat(np.arange(len(lengths)), lengths)
    place = np.arange(len(edge)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    place = np.where(is_back[edge], lengths[edge] - 1 - place, place)
    along = low[edge] + place[:, None]
    aside = (low[edge] + rise[edge] * place[:, None] + 0.5).astype(np.int64)
    flat = is_flat[edge]
    return np.stack([np.where(flat, along[:, 0], aside[:, 0]), np.where(flat, aside[:, 1], along[:, 1])], axis=1)
