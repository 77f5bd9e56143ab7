"""What two images are compared by: a digest of all pixels, a small thumbnail, and 64 bits that describe the look."""

import hashlib
import math

import numpy as np
from PIL import Image

THUMBNAIL = 16  # side of what is kept of every image: 768 bytes
_SIDE = 32  # side of what the look is computed from
_WAVES = 8  # cosines per direction that describe the look


def digest_pixels(pixels: np.ndarray) -> int:
    """64 bits that differ for different pixels [height, width, 3]: a header or a re-packed file hides no copy."""
    digest = hashlib.sha1(pixels.data, usedforsecurity=False)
    digest.update(b"%d" % pixels.shape[0])
    return int.from_bytes(digest.digest()[:8], "little")


def shrink(pixels: np.ndarray) -> np.ndarray:
    """The image squeezed into uint8 [32, 32, 3]. Smoothly: a mere mean of pixels makes other sizes look different."""
    return np.asarray(Image.fromarray(pixels).resize((_SIDE, _SIDE), Image.Resampling.BILINEAR, reducing_gap=2.0))


def describe_look(small: np.ndarray) -> int:
    """64 bits of what `shrink` gives: which of the slow cosine waves of its brightness are stronger than most.

    They survive another compression, another size and a change of brightness or contrast.
    """
    grey = small.mean(axis=2)
    waves = _COSINES @ grey @ _COSINES.T
    bits = (waves > np.median(waves)).reshape(-1)
    return int.from_bytes(np.packbits(bits).tobytes(), "little")


def thumbnail_of(small: np.ndarray) -> np.ndarray:
    """A thumbnail uint8 [16, 16, 3] of what `shrink` gives."""
    step = _SIDE // THUMBNAIL
    cells = small.reshape(THUMBNAIL, step, THUMBNAIL, step, 3).mean(axis=(1, 3))
    return np.round(cells).astype(np.uint8)


def _slow_cosines() -> np.ndarray:
    """The cosines of frequency 1 ... 8 (the mean, frequency 0, says nothing about the look): [8, 32]."""
    frequency = np.arange(1, _WAVES + 1)[:, None]
    return np.cos(math.pi * frequency * (2 * np.arange(_SIDE) + 1) / (2 * _SIDE))


_COSINES = _slow_cosines()
