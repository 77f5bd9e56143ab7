"""Where a picture is cut from an image: plans made from the image's size alone, and their application."""

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.data.decode import OpenedImage
from vitrail.data.draws import Draws

PADDING = 4  # pixels that the simple crop adds on each side

# How far beyond a pixel the filters look, in pixels of the coarser side.
_SUPPORT = {"bilinear": 1, "bicubic": 2}

# A trimmed image may lie beside its true place by this part of a pixel: no value moves by more than rounding does.
_MAX_OFFSET = 1 / 1024
_NUM_STARTS = 512  # places that are tried for it
_LONG = 4096  # pixels in vain from which any of these places is better than none


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle of pixels."""

    top: int
    left: int
    height: int
    width: int


@dataclass(frozen=True, slots=True)
class Crop:
    """What to cut from an image and how to lay it out; the same plan serves its pixels and its mask."""

    source: Box  # the part of the image that is resized
    resized: tuple[int, int]  # height, width it is resized to
    window: Box  # what is kept of that; beyond the border it is mirrored
    interpolation: str = "bicubic"
    is_flipped: bool = False  # left to right
    is_upside_down: bool = False
    is_exact: bool = False  # decode in full, even where a smaller decoding would do

    @property
    def shrink(self) -> int:
        """How much smaller the image may be decoded so that nothing has to be enlarged for it."""
        if self.is_exact:
            return 1
        scale = min(self.source.height / self.resized[0], self.source.width / self.resized[1])
        return next((shrink for shrink in (8, 4, 2) if shrink <= scale), 1)

    def apply(self, image: OpenedImage) -> Tensor:  # uint8 [3, height, width], channels last in memory
        """The picture that the plan cuts from the image."""
        pixels = image.pixels(shrink=self.shrink)
        source = _scale(self.source, pixels.shape[1] / image.height, pixels.shape[2] / image.width)
        rows, columns = self._spans
        support = _SUPPORT[self.interpolation]
        vertical = _trim(source.height, rows, support=support)
        horizontal = _trim(source.width, columns, support=support)
        top, left = source.top + vertical.start, source.left + horizontal.start
        part = pixels[:, top : top + vertical.length, left : left + horizontal.length]
        picture = _resize(part, sides=(vertical, horizontal), interpolation=self.interpolation)
        picture = _cut(picture, rows, skipped=vertical.skipped, dim=1)
        picture = _cut(picture, columns, skipped=horizontal.skipped, dim=2)
        flips = [dim for dim, is_turned in ((1, self.is_upside_down), (2, self.is_flipped)) if is_turned]
        picture = picture.flip(flips) if flips else picture
        return picture.permute(1, 2, 0).contiguous().permute(2, 0, 1)

    def apply_to_mask(self, mask: Tensor) -> Tensor:  # [..., image height, image width] -> [..., height, width]
        """The same part of a map of labels, each taken from the nearest pixel."""
        rows, columns = (torch.from_numpy(np.ascontiguousarray(places)) for places in self.find_nearest())
        return mask[..., rows, :][..., columns]

    def find_nearest(self) -> tuple[np.ndarray, np.ndarray]:
        """The row of the image that each row of the picture is nearest to, and the column of each column: int64."""
        vertical, horizontal = self._spans
        rows = _nearest(self.source.top, self.source.height, vertical)
        columns = _nearest(self.source.left, self.source.width, horizontal)
        return rows[::-1] if self.is_upside_down else rows, columns[::-1] if self.is_flipped else columns

    @property
    def _spans(self) -> tuple["_Span", "_Span"]:
        window, (height, width) = self.window, self.resized
        return _Span(window.top, window.height, height), _Span(window.left, window.width, width)


def plan_resized_crop(
    size: tuple[int, int],
    draws: Draws,
    *,
    image_size: tuple[int, int],
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> Crop:
    """RandomResizedCrop: a part of random area and aspect ratio (Inception, arXiv 1409.4842, section 6)."""
    height, width = size
    for _ in range(10):
        area = draws.uniform(*scale) * height * width
        aspect = math.exp(draws.uniform(math.log(ratio[0]), math.log(ratio[1])))
        part_height, part_width = round(math.sqrt(area / aspect)), round(math.sqrt(area * aspect))
        if 0 < part_height <= height and 0 < part_width <= width:
            top, left = draws.integer(height - part_height + 1), draws.integer(width - part_width + 1)
            break
    else:  # as much of the centre as the ratio allows
        part_height = min(height, max(1, round(width / ratio[0])))
        part_width = min(width, max(1, round(height * ratio[1])))
        top, left = (height - part_height) // 2, (width - part_width) // 2
    source = Box(top, left, part_height, part_width)
    return Crop(source, resized=image_size, window=Box(0, 0, *image_size))


def plan_simple_crop(size: tuple[int, int], draws: Draws, *, image_size: tuple[int, int]) -> Crop:
    """Simple Random Crop: the short side resized to the target, mirrored at the border (DeiT III, thesis 6.2.3)."""
    resized = _cover(size, image_size)
    top, left = (
        draws.integer(whole + 2 * PADDING - part + 1) - PADDING for whole, part in zip(resized, image_size, strict=True)
    )
    return Crop(Box(0, 0, *size), resized=resized, window=Box(top, left, *image_size))


def plan_centre_crop(size: tuple[int, int], *, image_size: tuple[int, int], crop_ratio: float = 0.875) -> Crop:
    """The evaluation picture: the short side resized to the target over the crop ratio, then the centre."""
    target = (math.floor(image_size[0] / crop_ratio), math.floor(image_size[1] / crop_ratio))
    resized = _cover(size, target)
    top, left = (round((whole - part) / 2) for whole, part in zip(resized, image_size, strict=True))
    return Crop(Box(0, 0, *size), resized=resized, window=Box(top, left, *image_size), is_exact=True)


def choose_interpolation(interpolation: str, draws: Draws) -> str:
    """The filter; "random" is one of both. It draws in any case, so that the setting shifts no other choice."""
    chosen = draws.choice(("bilinear", "bicubic"))
    return chosen if interpolation == "random" else interpolation


def _cover(size: tuple[int, int], target: tuple[int, int]) -> tuple[int, int]:
    """The size of an image resized, keeping its aspect ratio, so that it just covers the target."""
    height, width = size
    if target[0] == target[1]:  # the long side is cut off, not rounded: as torchvision does it
        short = min(size)
        return int(target[0] * height / short), int(target[0] * width / short)
    ratio = min(height / target[0], width / target[1])
    return max(target[0], round(height / ratio)), max(target[1], round(width / ratio))


def _scale(box: Box, vertical: float, horizontal: float) -> Box:
    """The box in an image that was decoded smaller."""
    if vertical == 1 and horizontal == 1:
        return box
    top, left = round(box.top * vertical), round(box.left * horizontal)
    bottom, right = round((box.top + box.height) * vertical), round((box.left + box.width) * horizontal)
    return Box(top, left, max(1, bottom - top), max(1, right - left))


@dataclass(frozen=True, slots=True)
class _Span:
    """The window along one side of the resized image."""

    start: int
    length: int
    size: int  # of the side

    @property
    def before(self) -> int:
        """How many places of the window lie before the image."""
        return max(0, -self.start)

    @property
    def after(self) -> int:
        """How many places of the window lie behind the image."""
        return max(0, self.start + self.length - self.size)

    @property
    def first(self) -> int:
        """The first place of the image that the window shows, be it in a mirror."""
        return min(max(0, self.start), self.size - 1 - self.after)

    @property
    def last(self) -> int:
        """The last place of the image that the window shows, be it in a mirror."""
        return max(min(self.size, self.start + self.length) - 1, self.before)


def _nearest(source_start: int, source_length: int, span: _Span) -> np.ndarray:
    """For each place of the window the pixel of the source whose area holds its centre."""
    period = max(1, 2 * (span.size - 1))
    places = np.arange(span.start, span.start + span.length)
    places = np.minimum(places % period, -places % period)
    return source_start + (2 * places + 1) * source_length // (2 * span.size)


def _cut(picture: Tensor, span: _Span, *, skipped: int, dim: int) -> Tensor:
    """The window of a picture without its first places; beyond the border the pixels before the outermost one."""
    before, after = span.before, span.after
    inner = picture.narrow(dim, span.start + before - skipped, span.length - before - after)
    if before == after == 0:
        return inner
    parts = [inner]
    if before:
        parts.insert(0, picture.narrow(dim, 1 - skipped, before).flip(dim))
    if after:
        parts.append(picture.narrow(dim, span.size - 1 - after - skipped, after).flip(dim))
    return torch.cat(parts, dim=dim)


@dataclass(frozen=True, slots=True)
class _Trim:
    """The part of one side of the source that a window needs."""

    start: int
    length: int
    skipped: int  # places of the resized side that lie before the part
    whole: int  # length of the side
    resized: int  # and what it is resized to

    @property
    def factor(self) -> float:
        """The scale of the part is that of the whole, and a little more: the size that follows is rounded down."""
        return (1 + 1e-9) * self.resized / self.whole

    @property
    def is_copied(self) -> bool:
        """Whether the part would keep its length: then the kernel copies it, even where its scale is not 1."""
        return self.resized != self.whole and math.floor(self.length * self.factor) == self.length


def _trim(whole: int, span: _Span, *, support: int) -> _Trim:
    """Leave out what the window doesn't see: what lies behind it always, before it only where pixels coincide."""
    resized = span.size
    ratio = whole / resized
    reach = support * max(ratio, 1.0) + 1
    start = skipped = 0
    limit = math.floor(span.first - reach / ratio)
    if limit > 0:
        candidates = range(limit, max(0, limit - _NUM_STARTS), -1)
        offsets = [min(place * whole % resized, -place * whole % resized) / resized for place in candidates]
        best = next((place for place, offset in enumerate(offsets) if offset <= _MAX_OFFSET), None)
        if best is None and limit > _LONG:
            best = offsets.index(min(offsets))
        if best is not None:
            skipped = candidates[best]
            start = round(skipped * ratio)
    stop = min(whole, math.ceil((span.last + 1) * ratio + reach))
    trim = _Trim(start, stop - start, skipped=skipped, whole=whole, resized=resized)
    return replace(trim, start=0, length=whole, skipped=0) if trim.is_copied else trim


def _resize(part: Tensor, *, sides: tuple[_Trim, _Trim], interpolation: str) -> Tensor:
    """Resize with antialiasing on bytes; a copy that is channels last without gaps makes the kernel twice as fast."""
    if all(side.resized == side.whole for side in sides):
        return part
    batch = part.permute(1, 2, 0).contiguous()[None].permute(0, 3, 1, 2)
    if all(side.length == side.whole for side in sides):
        size = [side.resized for side in sides]
        return F.interpolate(batch, size=size, mode=interpolation, antialias=True)[0]
    factors = [side.factor for side in sides]
    return F.interpolate(batch, scale_factor=factors, mode=interpolation, antialias=True)[0]
