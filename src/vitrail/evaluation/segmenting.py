"""A class for every pixel of images of any size: whole, by windows, at several scales and mirrored."""

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from vitrail.data.blend import Normalize
from vitrail.evaluation.lanes import Lanes
from vitrail.evaluation.predict import autocast
from vitrail.layers.grid import Grid
from vitrail.models.contract import Model

_COARSEST = 32  # pixels that images are padded to a multiple of where a model has no one size of patches
_STRIP = 2**22  # logits of pixels that are there at a time
_WINDOWS = 8  # that are looked at together
_LONGEST = 4  # times the short side that an image is resized to, the long one goes at most: 512 x 2048 in the papers


@dataclass(frozen=True, kw_only=True)
class Looking:
    """How images are looked at."""

    short_side: int | None = None  # that images are resized to first; None: they keep their size
    long_side: int | None = None  # that the other side does not go beyond then; None: so many times the short one
    window: Grid | None = None  # height and width of windows that slide over an image; None: it is seen whole
    largest: int = 2048  # side beyond which an image is seen by windows of the model's own size all the same
    overlap: float = 1 / 3  # share of a window that the next one sees too
    scales: tuple[float, ...] = (1.0,)  # of that size, whose probabilities are averaged
    flip: bool = False  # whether the mirrored image is looked at too


class PixelBatch(Protocol):
    """Images that may be of several sizes, padded below and to the right."""

    @property
    def images(self) -> Tensor:
        """Pixels, uint8 [batch, 3, height, width]."""

    @property
    def sizes(self) -> Tensor:
        """Height and width of what is image, int64 [batch, 2]."""


class _Seen(NamedTuple):
    """What one look at images gave: logits on the grid of the head."""

    logits: Tensor  # [batch, classes, rows, columns], float32
    covered: Grid  # height and width that the grid covers, padding included, in pixels of that look
    image: Grid  # height and width of what is image
    is_mirrored: bool


class Segmenter:
    """A model with all that is needed to say a class for every pixel."""

    def __init__(
        self,
        model: Model,
        looking: Looking,
        *,
        normalize: Normalize,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.model, self.looking, self.normalize = model, looking, normalize
        self.device, self.dtype = device, dtype
        self.multiple = model.patch_size or _COARSEST
        self.window = choose_window(model, looking.window)

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> Tensor:
        """Classes uint8 [batch, height, width] of images of one size, uint8 [batch, 3, height, width]."""
        size = (images.shape[2], images.shape[3])
        looks = list(self._look(self.normalize(images.to(self.device, non_blocking=True))))
        answers = torch.empty(len(images), *size, dtype=torch.uint8, device=self.device)
        num_numbers = len(images) * looks[0].logits.shape[1] * size[1]
        height = max(1, _STRIP // num_numbers)
        for first in range(0, size[0], height):
            rows = (first, min(first + height, size[0]))
            answers[:, rows[0] : rows[1]] = _choose(looks, size=size, rows=rows)
        return answers

    def _look(self, images: Tensor) -> Iterator[_Seen]:
        """Every look at normalised images."""
        base = fit_sides((images.shape[2], images.shape[3]), self.looking)
        for scale in self.looking.scales:
            size = tuple(max(1, round(side * scale)) for side in base)
            scaled = images
            if size != tuple(images.shape[2:]):
                scaled = functional.interpolate(
                    images, size=size, mode="bilinear", align_corners=False, antialias=size[0] < images.shape[2]
                )
            for is_mirrored in (False, True) if self.looking.flip else (False,):
                seen = scaled.flip(-1) if is_mirrored else scaled
                yield self._see(seen, is_mirrored=is_mirrored)

    def _see(self, images: Tensor, *, is_mirrored: bool) -> _Seen:
        """Logits of images, padded to whole patches and at least to a window."""
        image = (images.shape[2], images.shape[3])
        window = self._window_for(image)
        least = window or (0, 0)
        covered = tuple(
            max(-(-side // self.multiple) * self.multiple, low) for side, low in zip(image, least, strict=True)
        )
        padded = functional.pad(images, (0, covered[1] - image[1], 0, covered[0] - image[0]))
        logits = self._ask(padded) if window is None else self._slide(padded, window)
        return _Seen(logits, (covered[0], covered[1]), image, is_mirrored)

    def _window_for(self, image: Grid) -> Grid | None:
        is_too_large = max(image) > self.looking.largest
        return self.model.config.size if self.window is None and is_too_large else self.window

    def _ask(self, images: Tensor) -> Tensor:
        with autocast(self.device, self.dtype):
            answer: Tensor = self.model(images)
        return answer.float()

    def _slide(self, images: Tensor, window: Grid) -> Tensor:
        """The mean of the logits of all windows that see a cell, on the grid of the head."""
        places = list(itertools.product(*map(self._places, images.shape[2:], window)))
        total = count = None
        for first in range(0, len(places), _WINDOWS):
            chosen = places[first : first + _WINDOWS]
            parts = [images[..., top : top + window[0], left : left + window[1]] for top, left in chosen]
            answers = self._ask(torch.cat(parts)).chunk(len(chosen))
            rows, columns = answers[0].shape[2:]
            cells = (rows / window[0], columns / window[1])  # of a pixel
            if total is None or count is None:
                shape = [round(side * cell) for side, cell in zip(images.shape[2:], cells, strict=True)]
                total = answers[0].new_zeros(len(images), answers[0].shape[1], *shape)
                count = answers[0].new_zeros(shape)
            for (top, left), answer in zip(chosen, answers, strict=True):
                down, right = round(top * cells[0]), round(left * cells[1])
                total[..., down : down + rows, right : right + columns] += answer
                count[down : down + rows, right : right + columns] += 1.0
        assert total is not None
        assert count is not None
        return total / count

    def _places(self, side: int, window: int) -> list[int]:
        """Where windows begin along a side, in whole patches; the last one ends with the image."""
        stride = max(1, int(window * (1.0 - self.looking.overlap)) // self.multiple) * self.multiple
        return [*range(0, side - window, stride), side - window]


def segment(
    segmenter: Segmenter, batches: Iterable[PixelBatch], *, num_lanes: int | None = None
) -> Iterator[tuple[list[Tensor], PixelBatch]]:
    """Classes uint8 [height, width] of every image of batches, on the CPU, with the batch they belong to.

    The model is put into eval mode and back. A CPU looks at `num_lanes` batches at a time, as `predict` does.
    """

    def answer(batch: PixelBatch) -> list[Tensor]:
        found: dict[int, Tensor] = {}
        sizes = [(int(height), int(width)) for height, width in batch.sizes.tolist()]
        for size in dict.fromkeys(sizes):
            places = [place for place, own in enumerate(sizes) if own == size]
            images = batch.images[places, :, : size[0], : size[1]]
            found |= dict(zip(places, segmenter(images).cpu(), strict=True))
        return [found[place] for place in range(len(sizes))]

    iterator = iter(batches)
    first = list(itertools.islice(iterator, 2))
    model = segmenter.model
    if segmenter.device.type != "cpu" or len(first) < 2 or model.uses_all_cores:
        num_lanes = 1
    was_training = model.training
    model.eval()
    done: deque[PixelBatch] = deque()

    def noting() -> Iterator[PixelBatch]:
        for batch in itertools.chain(first, iterator):
            done.append(batch)
            yield batch

    try:
        with Lanes(torch.get_num_threads() if num_lanes is None else num_lanes) as lanes:
            for answers in lanes.map(answer, noting()):
                yield answers, done.popleft()
    finally:
        model.train(was_training)


def choose_window(model: Model, window: Grid | None) -> Grid | None:
    """The window that a model looks through: the one that is asked for, or the one size that it takes; None: whole.

    What the model can't look through is refused.
    """
    if model.takes_one_size:
        if window not in (None, model.config.size):
            raise ValueError(f"{model.name} takes windows of {_text(model.config.size)} only, not {_text(window)}")
        window = model.config.size
    multiple = model.patch_size or _COARSEST
    if window is not None and any(side % multiple for side in window):
        raise ValueError(f"a window of {_text(window)} can't be cut into patches of {multiple}: take multiples of it")
    return window


def fit_sides(size: Grid, looking: Looking) -> Grid:
    """The size that images are looked at, before scales: the short side as asked, unless the long one is too long."""
    if looking.short_side is None:
        return size
    longest = looking.long_side or _LONGEST * looking.short_side
    factor = min(looking.short_side / min(size), longest / max(size))
    return max(1, round(size[0] * factor)), max(1, round(size[1] * factor))


def _choose(looks: Sequence[_Seen], *, size: Grid, rows: tuple[int, int]) -> Tensor:
    """The most probable classes [batch, rows, width] of some rows of an image, by all looks at it."""
    if len(looks) == 1 and not looks[0].is_mirrored:
        return sample_rows(looks[0], size=size, rows=rows).argmax(dim=1).to(torch.uint8)
    total: Tensor | None = None
    for seen in looks:
        logits = sample_rows(seen, size=size, rows=rows)
        probabilities = (logits.flip(-1) if seen.is_mirrored else logits).softmax(dim=1)
        total = probabilities if total is None else total.add_(probabilities)
    assert total is not None
    return total.argmax(dim=1).to(torch.uint8)


def sample_rows(seen: _Seen, *, size: Grid, rows: tuple[int, int]) -> Tensor:
    """Logits [batch, classes, rows, width] at some rows of pixels of an image of that size, by bilinear interpolation.

    Where the look was of that size and not padded, they are those of `interpolate` on the whole.
    """
    logits, (height, width), image = seen.logits, seen.covered, seen.image
    down = _places_of(range(*rows), image[0] / size[0] * logits.shape[2] / height, logits.shape[2], logits.device)
    strip = _interpolate(logits, down, dim=2)
    if size[1] == image[1]:  # the padding is whole pixels here
        wide = (strip.shape[2], width)
        return functional.interpolate(strip, size=wide, mode="bilinear", align_corners=False)[..., : size[1]]
    across = _places_of(range(size[1]), image[1] / size[1] * logits.shape[3] / width, logits.shape[3], logits.device)
    return _interpolate(strip, across, dim=3)


def _places_of(pixels: range, cells: float, count: int, device: torch.device) -> Tensor:
    """Places of pixels on a grid of `count` cells, of which a pixel is `cells`."""
    pixel = torch.arange(pixels.start, pixels.stop, device=device, dtype=torch.float64)
    return ((pixel + 0.5) * cells - 0.5).clamp(0.0, count - 1.0)


def _interpolate(values: Tensor, places: Tensor, *, dim: int) -> Tensor:
    """Values at places between those that are there."""
    before = places.floor().long()
    behind = (before + 1).clamp_max(values.shape[dim] - 1)
    shape = [-1 if axis == dim else 1 for axis in range(values.ndim)]
    share = (places - before).to(values.dtype).view(shape)
    return torch.lerp(values.index_select(dim, before), values.index_select(dim, behind), share)


def _text(size: object) -> str:
    return "x".join(map(str, size)) if isinstance(size, tuple) else str(size)
