"""Images as a teacher wants to see them: its size, its normalisation, its precision."""

from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from vitrail.evaluation.predict import choose_precision
from vitrail.tasks.teaching.teacher_sources import hash_parts


class Wanted(Protocol):
    """What a model says of the images it takes."""

    @property
    def image_size(self) -> tuple[int, int] | None: ...

    @property
    def mean(self) -> tuple[float, ...]: ...

    @property
    def std(self) -> tuple[float, ...]: ...

    @property
    def is_autocast(self) -> bool: ...


class TeacherInput:
    """From pixels of 0 ... 1 to what a teacher takes."""

    def __init__(self, wanted: Wanted, *, device: torch.device) -> None:
        self.image_size = wanted.image_size
        self.dtype = choose_precision("auto", device) if wanted.is_autocast else torch.float32
        self.mean, self.std = (torch.tensor(value, device=device).view(-1, 1, 1) for value in (wanted.mean, wanted.std))
        self.fingerprint = hash_parts(wanted.image_size, (wanted.mean, wanted.std), str(self.dtype))

    def __call__(self, pixels: Tensor) -> Tensor:
        """Images resized and normalised."""
        images, size = pixels.float(), self.image_size
        if size is not None and pixels.shape[-2:] != size:
            images = functional.interpolate(images, size=size, mode="bicubic", antialias=True).clamp(0.0, 1.0)
        return (images - self.mean) / self.std

    def precision(self, device: torch.device) -> AbstractContextManager[object]:
        """Compute in the teacher's precision: it must not take over that of the student around it."""
        is_lower = self.dtype != torch.float32
        return torch.autocast(device.type, dtype=self.dtype if is_lower else None, enabled=is_lower)
