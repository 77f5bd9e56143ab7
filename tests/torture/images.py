"""An image of any format, however damaged, is decoded or refused in one line: no crash, bounded time and memory."""

import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from isolated import run_isolated
from PIL import Image

from vitrail.data.augment import EvaluationView
from vitrail.data.decode import BrokenImageError, open_image
from vitrail.data.draws import Draws

AREA = "images"
NUM_TESTED = 2
_NUM_VARIANTS = 40
_SECONDS = 90.0  # for all variants, on a busy machine
_MAX_BYTES = 3 << 30
_SMALL = 2_000_000  # pixels, of most attempts; the others have the limit that everyone has
_FORMATS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("JPEG", "RGB", {}),
    ("JPEG", "RGB", {"progressive": True}),
    ("JPEG", "RGB", {"restart_marker_blocks": 2}),
    ("JPEG", "L", {"progressive": True, "optimize": True}),
    ("JPEG", "CMYK", {}),
    ("PNG", "RGB", {}),
    ("PNG", "P", {}),
    ("PNG", "RGBA", {}),
    ("PNG", "I;16", {}),
    ("GIF", "P", {}),
    ("BMP", "RGB", {}),
    ("BMP", "P", {}),
    ("PPM", "RGB", {}),
    ("WEBP", "RGB", {}),
    ("WEBP", "RGBA", {"lossless": True}),
    ("AVIF", "RGB", {"speed": 10}),
    ("JPEG2000", "RGB", {}),
    ("TIFF", "RGB", {}),
    ("TIFF", "F", {"compression": "tiff_deflate"}),
    ("TIFF", "I;16", {"compression": "tiff_lzw"}),
    ("TIFF", "RGB", {"compression": "jpeg"}),
    ("TIFF", "1", {"compression": "group4"}),
)
_TELLING = (b"\x00", b"\xff", b"\x7f", b"\x80", b"\xff\xda", b"\xff\xd9", b"\xff\xc2", b"\xff\xff\xff\xff", bytes(4))


def attempt(rng: random.Random, folder: Path) -> str | None:
    """Make an image, damage it in many ways, and look at each."""
    name, mode, options = rng.choice(_FORMATS)
    whole = _make(rng, name, mode, options)
    variants = [_damage(rng, whole) for _ in range(_NUM_VARIANTS)]
    max_pixels = [_SMALL if rng.random() < 0.9 else 100_000_000 for _ in variants]

    def look_at_all(say: Callable[[str], None]) -> str | None:
        for number, (data, limit) in enumerate(zip(variants, max_pixels, strict=True)):
            say(f"variant {number} of {name} {mode} {options}")
            broken = _look(data, max_pixels=limit)
            if broken is not None:
                return f"variant {number} of {name} {mode} {options}: {broken}"
        return None

    return run_isolated(look_at_all, seconds=_SECONDS, max_bytes=_MAX_BYTES)


def _make(rng: random.Random, name: str, mode: str, options: dict[str, Any]) -> bytes:
    width, height = rng.randint(1, 90), rng.randint(1, 90)
    noise = np.random.default_rng(rng.getrandbits(32)).integers(0, 256, (height, width, 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    if mode == "I;16":
        image = Image.fromarray(noise[..., 0].astype(np.uint16) * 257)
    elif mode != "RGB":
        image = image.convert(mode)
    file = io.BytesIO()
    image.save(file, name, **options)
    return file.getvalue()


def _damage(rng: random.Random, whole: bytes) -> bytes:
    """Bytes changed, cut out, repeated or put in; mostly near the beginning, where the headers are."""
    data = bytearray(whole)
    for _ in range(rng.randint(1, 6)):
        reach = len(data) if rng.random() < 0.5 else min(len(data), 200)
        place = rng.randrange(max(1, reach))
        length = rng.randint(1, 40)
        change = rng.randrange(6)
        if change == 0:
            data[place : place + 1] = bytes([rng.randrange(256)])
        elif change == 1:
            telling = rng.choice(_TELLING)
            data[place : place + len(telling)] = telling
        elif change == 2:
            del data[place : place + length]
        elif change == 3:
            data[place:place] = data[place : place + length] * rng.randint(1, 50)
        elif change == 4:
            data[place:place] = rng.choice(_TELLING)
        elif rng.random() < 0.3:
            del data[place:]
    return bytes(data)


def _look(data: bytes, *, max_pixels: int) -> str | None:
    try:
        image = open_image(data, max_pixels=max_pixels)
        if image.height * image.width > max_pixels:
            return f"{image.width} x {image.height} pixels were let through"
        pixels = image.pixels()
        if pixels.shape != (3, image.height, image.width):
            return f"{image.width} x {image.height} pixels became {tuple(pixels.shape)}"
        EvaluationView(32)(image, Draws(0))
    except BrokenImageError as error:
        message = str(error)
        if not message or "\n" in message or "memory" in message:
            return f"refused by {message!r}"
    return None
