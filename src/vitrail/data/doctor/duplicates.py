"""Copies and look-alikes among very many images, found without comparing each with each."""

from collections.abc import Iterator

import numpy as np

# Looks that differ in at most this many of their 64 bits are compared by their thumbnails.
_MAX_BITS = 7
# Two thumbnails show one picture when their brightness is correlated to 1 less this ...
_MAX_UNLIKENESS = 0.02
# ... or less this, where more than a share of all images have look-alikes: garments on black, frames of a film.
_MAX_UNLIKENESS_AMONG_KIN = 0.002
_SHARE_OF_KIN = 0.02
_FEW_KIN = 20  # images with look-alikes: so many are no sign of anything
# ... and when their colours differ no more than this on average, as a share of the brightness's standard deviation.
_MAX_COLOUR_DIFFERENCE = 0.35
# Below this standard deviation of the brightness an image shows too little for its look to mean anything.
_MIN_CONTRAST = 8.0
# Among many images of one look, each is compared with this many: chains still join them into one group.
_MAX_NEIGHBOURS = 300
_MAX_PAIRS = 1_000_000  # where so many are alike, the search stops
_CHUNK = 4096  # thumbnails that are worked on at once


def group_equal(keys: np.ndarray) -> list[np.ndarray]:
    """The places [n > 1] of every key that occurs more than once, in the order of their first places."""
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.diff(keys[order], prepend=~keys[order[:1]])) if len(keys) else np.empty(0, int)
    groups = [group for group in np.split(order, starts[1:]) if len(group) > 1]
    return sorted(groups, key=lambda group: int(group[0]))


def group_alike(looks: np.ndarray, *, thumbnails: np.ndarray, among: np.ndarray) -> list[np.ndarray]:
    """The places [n > 1] of images that show the same, whatever their size, compression and small changes.

    `looks` is uint64 [n], `thumbnails` uint8 [n, 16, 16, 3], `among` the places that are looked at: choosing them here
    spares a copy of all thumbnails. Images that show next to nothing are left out.
    """
    telling = among[_contrasts(thumbnails)[among] >= _MIN_CONTRAST]
    pairs = telling[find_close(looks[telling], max_bits=_MAX_BITS)]
    unlikeness = _measure_unlikeness(pairs, thumbnails=thumbnails)
    alike = pairs[unlikeness <= _MAX_UNLIKENESS]
    if len(np.unique(alike)) > max(_FEW_KIN, _SHARE_OF_KIN * len(among)):
        alike = pairs[unlikeness <= _MAX_UNLIKENESS_AMONG_KIN]
    return _join(alike, count=len(looks))


def find_close(looks: np.ndarray, *, max_bits: int) -> np.ndarray:
    """The pairs [n, 2] of uint64 looks [m] that differ in at most `max_bits` (up to 7) bits, each once.

    The 64 bits are cut into four bands of 16. Of at most seven differences one band gets at most one: two such looks
    agree in a band once the right one of its bits is masked out. So for each of the 64 masks only looks that are equal
    under it are compared.
    """
    assert 0 <= max_bits <= 7
    count = len(looks)
    found = np.empty(0, np.int64)  # each pair as one number: the first place times the count, plus the second
    pending, num_pending = [found], 0
    for bit in range(64):
        band, bit_in_band = divmod(bit, 16)
        mask = np.uint64((0xFFFF & ~(1 << bit_in_band)) << (16 * band))
        for left, right in _equal_pairs(looks & mask):
            is_close = _count_bits(looks[left] ^ looks[right]) <= max_bits
            left, right = left[is_close], right[is_close]
            pending.append(np.minimum(left, right) * count + np.maximum(left, right))
            num_pending += len(left)
            if num_pending > 4 * _MAX_PAIRS:
                found = np.unique(np.concatenate(pending))
                pending, num_pending = [found], 0
                if len(found) > _MAX_PAIRS:
                    return np.stack(np.divmod(found, count), axis=1)
    found = np.unique(np.concatenate(pending))
    return np.stack(np.divmod(found, max(count, 1)), axis=1)


def _equal_pairs(keys: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Places whose keys are equal, two and two: in sorted order all neighbours first, then the next but one ..."""
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    rows = np.arange(len(keys))
    for offset in range(1, _MAX_NEIGHBOURS + 1):
        rows = rows[rows + offset < len(keys)]
        rows = rows[keys[rows] == keys[rows + offset]]  # who differs from this one differs from all that follow
        if not len(rows):
            return
        yield order[rows], order[rows + offset]


def _count_bits(words: np.ndarray) -> np.ndarray:
    """How many bits are set in each uint64: summed up in pairs, fours and bytes, then over the eight bytes."""
    one, two, four, top = (np.uint64(shift) for shift in (1, 2, 4, 56))
    pairs, fours, bytes_, ones = (np.uint64(0x0101010101010101 * digit) for digit in (0x55, 0x33, 0x0F, 0x01))
    words = words - ((words >> one) & pairs)
    words = (words & fours) + ((words >> two) & fours)
    words = (words + (words >> four)) & bytes_
    return (words * ones) >> top


def _contrasts(thumbnails: np.ndarray) -> np.ndarray:
    contrasts = np.empty(len(thumbnails))
    for start in range(0, len(thumbnails), _CHUNK):
        contrasts[start : start + _CHUNK] = thumbnails[start : start + _CHUNK].mean(axis=3).std(axis=(1, 2))
    return contrasts


def _measure_unlikeness(pairs: np.ndarray, *, thumbnails: np.ndarray) -> np.ndarray:
    """How far each pair's thumbnails are from showing one picture, 0 ... 2; infinite where the colours differ."""
    unlikeness = np.empty(len(pairs))
    for start in range(0, len(pairs), _CHUNK):
        left, right = (thumbnails[column].astype(np.float32) for column in pairs[start : start + _CHUNK].T)
        # Another exposure or contrast is not another picture: both get mean 0 and a brightness of deviation 1.
        left, right = (
            (image - image.mean(axis=(1, 2, 3), keepdims=True))
            / image.mean(axis=3, keepdims=True).std(axis=(1, 2, 3), keepdims=True)
            for image in (left, right)
        )
        colour_difference = np.abs(left - right).mean(axis=(1, 2, 3))
        correlation = (left.mean(axis=3) * right.mean(axis=3)).mean(axis=(1, 2))
        unlikeness[start : start + _CHUNK] = np.where(
            colour_difference <= _MAX_COLOUR_DIFFERENCE, 1 - correlation, np.inf
        )
    return unlikeness


def _join(pairs: np.ndarray, *, count: int) -> list[np.ndarray]:
    """The groups that the pairs form, friends of friends included."""
    parent = np.arange(count)

    def root(place: int) -> int:
        while parent[place] != place:
            parent[place] = parent[parent[place]]
            place = parent[place]
        return place

    for left, right in pairs.tolist():
        first, second = sorted((root(left), root(right)))
        parent[second] = first
    members = np.unique(pairs)
    roots = np.array([root(place) for place in members.tolist()], dtype=np.int64)
    return [members[group] for group in group_equal(roots)]
