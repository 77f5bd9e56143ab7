"""Images that come to a gallery: files or pixels, their embeddings, and the small pictures that are kept of them."""

import dataclasses
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from vitrail.data.augment import EvaluationView
from vitrail.data.blend import Normalize
from vitrail.data.contract import Dataset, Level, Source
from vitrail.data.decode import BrokenImageError, open_image
from vitrail.data.quarantine import Problem
from vitrail.data.sources.given import AnyImage, GivenImages
from vitrail.evaluation.features import Extraction, embed
from vitrail.models.contract import Model

_SIDE = 96  # pixels of a thumbnail's longer side: about 2 kB
_QUALITY = 80
_FEW = 64  # images


class Viewer(Protocol):
    """A model and the pictures it sees, such as `vitrail.load_trained` gives; an `Extraction` is one too."""

    @property
    def model(self) -> Model: ...
    @property
    def view(self) -> EvaluationView: ...
    @property
    def normalize(self) -> Normalize: ...


def as_extraction(viewer: Viewer) -> Extraction:
    """How the model's embeddings are computed: as it says, or plainly on the CPU."""
    if isinstance(viewer, Extraction):
        return viewer
    return Extraction(viewer.model, viewer.view, viewer.normalize, device=torch.device("cpu"))


class AllSplits(Dataset):
    """Every image of a source, one split after the other."""

    def __init__(self, source: Source) -> None:
        self.name, self.split = source.name, "all"
        self.parts = [source.open(split) for split in source.splits]
        first, *others = self.parts
        shared = [name for name in first.levels if all(name in part.levels for part in others)]
        self.levels = {
            name: Level(first.levels[name].classes, np.concatenate([part.levels[name].labels for part in self.parts]))
            for name in shared
        }
        self.ends = np.cumsum([len(part) for part in self.parts])

    def __len__(self) -> int:
        return int(self.ends[-1])

    def read(self, index: int) -> bytes | np.ndarray:
        """The sample as its split stores it."""
        part, place = self._place(index)
        return part.read(place)

    def locate(self, index: int) -> str:
        """Where its split has the sample."""
        part, place = self._place(index)
        return part.locate(place)

    def _place(self, index: int) -> tuple[Dataset, int]:
        number = int(np.searchsorted(self.ends, index, side="right"))
        return self.parts[number], index - (int(self.ends[number - 1]) if number else 0)


def find_readable(images: Sequence[AnyImage]) -> tuple[GivenImages, tuple[Problem, ...]]:
    """The images that can be decoded in full, and what is wrong with the others."""
    data = GivenImages(images)
    readable, problems = [], []
    for index, image in enumerate(images):
        try:
            open_image(data.read(index)).pixels()
            readable.append(image)
        except BrokenImageError as error:
            problems.append(Problem(data.locate(index), data.split, "broken", str(error)))
        except OSError as error:
            problems.append(Problem(data.locate(index), data.split, "unreadable", f"can't be read: {error.strerror}"))
    return GivenImages(readable), tuple(problems)


def embed_unit(
    extraction: Extraction,
    data: Dataset,
    *,
    cache: str | None = None,
    may_be_empty: bool = False,
    advance: Callable[[int], object] | None = None,
) -> tuple[Tensor, Tensor, tuple[Problem, ...]]:
    """Embeddings of length 1, the places in the data they belong to, and what could not be read.

    Data of which no image can be read is an error unless `may_be_empty`.
    """
    if len(data) < _FEW:
        extraction = dataclasses.replace(extraction, workers=0)  # starting them would take longer than the work
    found = embed(extraction, data, cache=cache, may_be_empty=may_be_empty, advance=advance or (lambda count: None))
    if not bool(found.vectors.isfinite().all()):
        raise ValueError(f"embeddings of {data.name} are not finite: try precision=fp32")
    return functional.normalize(found.vectors, dim=1), found.indices, found.unread


def make_thumbnail(data: Dataset, index: int) -> bytes:
    """A small JPEG of an image; empty where it can no longer be read."""
    try:
        image = open_image(data.read(index))
        shrink = next((factor for factor in (8, 4, 2) if max(image.height, image.width) >= 2 * factor * _SIDE), 1)
        small = Image.fromarray(image.pixels(shrink=shrink).permute(1, 2, 0).contiguous().numpy())
    except (OSError, BrokenImageError):
        return b""
    small.thumbnail((_SIDE, _SIDE))
    file = BytesIO()
    small.save(file, "JPEG", quality=_QUALITY)
    return file.getvalue()
