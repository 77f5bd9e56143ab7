"""What every engine does: write the files of a model, open them again, and compute the answers to batches of bytes."""

import contextlib
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from vitrail.inference.engines.ways import SideBySide
from vitrail.inference.export_record import ExportRecord
from vitrail.inference.whole_model import PRECISIONS, Draft
from vitrail.layers.bfloat16 import has_native_bfloat16


class EngineFailedError(ValueError):
    """What the library of an engine says where it can't compute; no fault of who asks."""


@contextlib.contextmanager
def telling_failures(name: str, doing: str) -> Iterator[None]:
    """Tell in one line what a library raises while an engine is `doing` something; they have no common parent."""
    try:
        yield
    except (ValueError, MemoryError, OSError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise EngineFailedError(f"{name} can't {doing} ({reason}): another engine may, such as --to eager") from error


class Engine(ABC):
    """A model that a library computes from its own files.

    Called with bytes, uint8 [batch, 3, height, width] or [batch, height, width, 3] as it was exported, on the CPU, it
    gives named tensors in float32 on the CPU: `logits` where there are classes, `embedding` where there is one. Several
    threads may call it at a time.
    """

    name: ClassVar[str]
    packages: ClassVar[tuple[str, ...]] = ()  # what must be importable to open its files and compute
    opening_extra: ClassVar[str] = ""  # extra of vitrail that installs these
    writing_packages: ClassVar[tuple[str, ...]] = ()  # what must be importable beside them to write
    writing_extra: ClassVar[str] = ""  # extra of vitrail that installs both
    has_int8: ClassVar[bool] = False  # whether it has layers in int8, by `rank_layers` and `write_int8`
    may_run_code: ClassVar[bool] = False  # whether opening its files can run code that they hold
    has_lanes: ClassVar[bool] = False  # whether calls of one thread each are computed side by side, by `open_lanes`
    part: int | None = None  # images of a larger batch that are computed at a time; None: all of them
    beside: SideBySide | None = None  # what computes parts side by side; None: they come one after the other

    @classmethod
    def missing(cls) -> str:
        """Why it can't write a model and open it here, in words that say what to do; "" where it can."""
        return cls._find_lacking((*cls.writing_packages, *cls.packages), extra=cls.writing_extra)

    @classmethod
    def missing_to_open(cls) -> str:
        """Why it can't open a model here that was written elsewhere, as `missing` says it."""
        return cls._find_lacking(cls.packages, extra=cls.opening_extra)

    @classmethod
    def _find_lacking(cls, packages: Sequence[str], *, extra: str) -> str:
        lacking = [package for package in packages if importlib.util.find_spec(package) is None]
        return f"{cls.name} needs {', '.join(lacking)}: pip install 'vitrail[{extra}]'" if lacking else ""

    @classmethod
    def precisions(cls) -> tuple[str, ...]:
        """What it can compute in on this machine, with instructions of its own for it."""
        return ("fp32", "bf16") if has_native_bfloat16() else ("fp32",)

    @classmethod
    def dtype_for(cls, precision: str) -> torch.dtype:
        """The type of the graph that it is given for a precision."""
        return PRECISIONS[precision]

    @classmethod
    def require(cls) -> None:
        """Refuse to go on where it can't write and open."""
        if reason := cls.missing():
            raise ValueError(reason)

    @classmethod
    def require_to_open(cls) -> None:
        """Refuse to go on where it can't open."""
        if reason := cls.missing_to_open():
            raise ValueError(reason)

    @classmethod
    @abstractmethod
    def write(cls, draft: Draft, folder: Path) -> tuple[str, ...]:
        """Write the model into a folder; the names of the files, the one that is opened first."""

    @classmethod
    @abstractmethod
    def open(cls, folder: Path, record: ExportRecord, *, threads: int | None = None) -> "Engine":
        """The engine of the files in a folder. `threads` are those of one call; None: as the library thinks best.

        A file that is none of its own is a ValueError of one line.
        """

    @classmethod
    def open_lanes(cls, folder: Path, record: ExportRecord, *, lanes: int) -> "Engine":
        """The engine of the files in a folder for so many calls at a time, each of one thread."""
        return cls.open(folder, record, threads=1)

    @classmethod
    def rank_layers(cls, draft: Draft, folder: Path, pixels: Tensor) -> list[str]:
        """The layers that can be computed in int8, those first that suffer most by it.

        `folder` holds what `write` has written, `pixels` are some real images as they go in.
        """
        raise NotImplementedError

    @classmethod
    def write_int8(
        cls, draft: Draft, plain: Path, folder: Path, *, pixels: Tensor, kept: Sequence[str]
    ) -> tuple[str, ...]:
        """Write the model in int8 into a folder, with ranges by `pixels`; layers that are `kept` stay in float32.

        `plain` is the folder that `write` has filled. Returns the names of the files.
        """
        raise NotImplementedError

    def __call__(self, images: Tensor) -> dict[str, Tensor]:
        """The answers to a batch, by name."""
        return self.in_parts(images, self.part)

    def in_parts(self, images: Tensor, part: int | None) -> dict[str, Tensor]:
        """The answers to a batch that is computed so many images at a time.

        What passes between the layers of a few images stays in the caches of a CPU, which that of many does not.
        """
        if part is None or len(images) <= part:
            return self.compute(images)
        if self.beside is not None:
            found = self.beside(images, part)
        else:
            found = [self.compute(some) for some in images.split(part)]
        return {name: torch.cat([one[name] for one in found]) for name in found[0]}

    @abstractmethod
    def compute(self, images: Tensor) -> dict[str, Tensor]:
        """The answers to a batch, by name, all of it at once."""

    @classmethod
    def version(cls) -> str:
        """The libraries that write and open, and their versions, for records."""
        from importlib.metadata import version

        packages = ("torch", *cls.writing_packages, *cls.packages)
        return ", ".join(f"{package} {version(package)}" for package in packages)
