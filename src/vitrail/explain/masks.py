"""Masks that say where the object of an image is: those of `shapes`, or files beside the images."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitrail.data.contract import Dataset
from vitrail.data.sources.shapes import ShapesDataset
from vitrail.data.stored import Subset

_EXTENSIONS = (".png", ".bmp", ".gif", ".tif", ".tiff", ".webp")
FindMask = Callable[[int], Tensor]  # the place of a sample -> bool [height, width], as large as the image


def find_masks(data: Dataset, folder: str | None = None, *, foreground: Sequence[int] | None = None) -> FindMask | None:
    """What finds the mask of a sample: in a folder of files, or in the data itself; None where there is neither.

    A file has its image's name, up to the ending, and lies in the folder or below it. `foreground` are the values that
    mean the object; every value but 0 unless given.
    """
    if folder is not None:
        return _MaskFiles(data, folder, foreground)
    if isinstance(data, Subset):
        inner = find_masks(data.dataset, foreground=foreground)
        return None if inner is None else lambda index: inner(int(data.indices[index]))
    if isinstance(data, ShapesDataset):
        return lambda index: torch.from_numpy(data.annotation(index).mask > 0)
    return None


class _MaskFiles:
    """Masks in files that are called as the images are."""

    def __init__(self, data: Dataset, folder: str, foreground: Sequence[int] | None) -> None:
        self.data, self.folder, self.foreground = data, folder, foreground
        if not os.path.isdir(folder):
            raise ValueError(f"masks={folder}: no such folder")
        self.paths: dict[str, Path] = {}
        for path in sorted(Path(folder).rglob("*")):
            if path.suffix.lower() in _EXTENSIONS and not path.name.startswith("."):
                if path.stem in self.paths:
                    raise ValueError(f"masks={folder}: both {self.paths[path.stem]} and {path} are for {path.stem}")
                self.paths[path.stem] = path
        if not self.paths:
            raise ValueError(f"masks={folder}: there are no images in it (they end in {', '.join(_EXTENSIONS)})")

    def __call__(self, index: int) -> Tensor:
        place = self.data.locate(index)
        stem = Path(place.rpartition("!")[2]).stem
        if stem not in self.paths:
            raise ValueError(f"masks={self.folder}: there is no mask {stem}.png for {place}")
        path = self.paths[stem]
        try:
            with Image.open(path) as image:
                values = np.array(image)
        except OSError as error:
            raise ValueError(f"{path} can't be read ({error})") from None
        if values.ndim == 3:
            values = values.max(axis=2)
        inside = values > 0 if self.foreground is None else np.isin(values, self.foreground)
        return torch.from_numpy(inside)
