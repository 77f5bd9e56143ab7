"""torch.export's program and AOTInductor's package of it: files that may hold code, opened only where they are trusted.

A program (`model.pt2`) is a graph that torch reads with pickle and runs again; a package holds native code.
"""

import logging
import os
import shutil
import subprocess
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.inference.engines.contract import Engine
from vitrail.inference.engines.threads import torch_threads
from vitrail.inference.export_record import ExportRecord, describe_cpu
from vitrail.inference.whole_model import Draft

FILE = "model.pt2"


class ProgramEngine(Engine):
    """The graph that torch.export has recorded, computed by torch operation by operation."""

    name = "torch"
    may_run_code = True

    def __init__(
        self, ask: Callable[[Tensor], Sequence[Tensor]], *, outputs: Sequence[str], threads: int | None
    ) -> None:
        self.ask, self.outputs, self.threads = ask, list(outputs), threads

    @classmethod
    def write(cls, draft: Draft, folder: Path) -> tuple[str, ...]:
        with _quiet():
            torch.export.save(draft.program, folder / FILE)
        return (FILE,)

    @classmethod
    def open(cls, folder: Path, record: ExportRecord, *, threads: int | None = None) -> "ProgramEngine":
        path = folder / next(iter(record.files))
        try:
            with _quiet():
                ask = cls._load(path)
        except Exception as error:  # a damaged archive ends in whatever torch breaks at first
            reason = " ".join(str(error).split())[:200]
            raise ValueError(f"{path} can't be opened by torch ({reason}): export the model again") from None
        return cls(ask, outputs=list(record.outputs), threads=threads)

    @classmethod
    def _load(cls, path: Path) -> Any:
        return torch.export.load(path).module()

    @torch.inference_mode()
    def compute(self, images: Tensor) -> dict[str, Tensor]:
        with torch_threads(self.threads), torch.autocast("cpu", enabled=False):
            return dict(zip(self.outputs, self.ask(images), strict=True))


class InductorEngine(ProgramEngine):
    """The graph compiled to native code for this kind of machine, by AOTInductor and a C++ compiler."""

    name = "inductor"

    @classmethod
    def open(cls, folder: Path, record: ExportRecord, *, threads: int | None = None) -> "ProgramEngine":
        if record.cpu != describe_cpu():  # its instructions may be none that this one knows
            raise ValueError(
                f"{folder} was compiled for {record.cpu}, and this machine is {describe_cpu()}: export the model here"
            )
        return super().open(folder, record, threads=threads)

    @classmethod
    def missing(cls) -> str:
        compiler = os.environ.get("CXX", "g++")
        if shutil.which(compiler) is None:
            return f"inductor needs a C++ compiler, and there is no {compiler} here: install one, or set CXX"
        return ""

    @classmethod
    def write(cls, draft: Draft, folder: Path) -> tuple[str, ...]:
        try:
            with _quiet():
                torch._inductor.aoti_compile_and_package(draft.program, package_path=str(folder / FILE))
        except (RuntimeError, subprocess.SubprocessError, OSError) as error:
            lines = str(error).splitlines() or [type(error).__name__]
            raise ValueError(f"AOTInductor can't compile this model here ({lines[0][:200]}): export to onnx") from None
        return (FILE,)

    @classmethod
    def _load(cls, path: Path) -> Any:
        return torch._inductor.aoti_load_package(str(path))


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep remarks of compilers off the terminal."""
    loggers = [logging.getLogger(name) for name in ("torch", "torch._inductor", "torch.export")]
    before = [logger.level for logger in loggers]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for logger in loggers:
                logger.setLevel(logging.ERROR)
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
