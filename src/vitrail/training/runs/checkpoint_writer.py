"""Checkpoints that are written while the run goes on: a step waits for a copy of the state, not for the disk."""

import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from vitrail.storage import write_whole
from vitrail.training.parallel.distributed import World
from vitrail.training.runs import divided_checkpoint as parts
from vitrail.training.runs.checkpoint import CheckpointError, Checkpoints, check_plain

_LOGGER = logging.getLogger(__name__)
_POLL_SECONDS = 0.05
_PATIENCE_SECONDS = 15 * 60.0  # for other processes to have written their parts


class CheckpointWriter:
    """Writes one checkpoint at a time in a thread of its own; what goes wrong there is told at the next step.

    Leaving it as a context waits for the disk: after the last step, after Ctrl-C and after an error of the run.
    """

    def __init__(self, checkpoints: Checkpoints) -> None:
        self.checkpoints = checkpoints
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None
        self._is_abandoned = threading.Event()

    def __enter__(self) -> "CheckpointWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is None:
            self.wait()
            return
        if isinstance(error, KeyboardInterrupt):
            return  # of a second Ctrl-C, which waits for nothing: what is half-written has no name yet
        if not isinstance(error, CheckpointError):
            self._is_abandoned.set()  # other processes may be gone: nobody waits for their parts
        self._join()
        if self._failure is not None:
            _LOGGER.warning("%s", self._failure)

    def save(self, state: Mapping[str, Any], *, step: int, is_best: bool) -> None:
        """Copy the state, and have it written; a write that is still going on is waited for first."""
        self.wait()
        check_plain(dict(state))
        copied = copy_state(state)
        self._start(lambda: self.checkpoints.save(copied, step=step, is_best=is_best))

    def save_divided(self, state: Mapping[str, Any], *, step: int, is_best: bool, world: World) -> None:
        """Copy this process's part of a state with divided tensors, and have it written; all processes call it.

        The main process gives the checkpoint its name when it finds every part on the disk that all of them see.
        """
        self.wait()
        own: dict[str, Tensor] = {}
        common = copy_state(parts.take_apart(dict(state), own))
        copied = copy_state(own)
        check_plain(common)
        draft = self.checkpoints.begin_divided(step, token=world.share(secrets.token_hex(4)), world=world)

        def write() -> None:
            self._write_part(draft, copied, world=world)
            if world.is_main:
                self._wait_for_parts(draft, step=step, num_ranks=world.num_ranks)
                self.checkpoints.finish_divided(common, draft, step=step, is_best=is_best)

        self._start(write)

    def check(self) -> None:
        """Raise what went wrong with the last write, if it has ended."""
        if self._failure is not None and (self._thread is None or not self._thread.is_alive()):
            failure, self._failure = self._failure, None
            raise failure

    def wait(self) -> None:
        """Until all that was to be written is on the disk; raises what went wrong."""
        self._join()
        self.check()

    def newest(self) -> Path | None:
        """The newest checkpoint that is whole, once nothing is being written."""
        self._join()
        return self.checkpoints.newest()

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _start(self, work: Callable[[], object]) -> None:
        def run() -> None:
            try:
                work()
            except Exception as error:  # told by the thread that trains, whatever it is
                self._failure = error

        self._thread = threading.Thread(target=run, name="vitrail checkpoint", daemon=True)
        self._thread.start()

    def _write_part(self, draft: Path, own: dict[str, Tensor], *, world: World) -> None:
        path = draft / parts.part_file(world.rank)
        try:
            write_whole(path, lambda file: torch.save(own, file))
        except OSError as error:
            with contextlib.suppress(OSError):
                path.with_suffix(parts.FAILED).touch()
            raise CheckpointError(self.checkpoints.describe(error, path)) from error

    def _wait_for_parts(self, draft: Path, *, step: int, num_ranks: int) -> None:
        began = time.monotonic()
        while True:
            if any(draft.glob(f"*{parts.FAILED}")):
                raise self.checkpoints.missing_part(step, "another process could not write its part")
            if len(parts.sizes_of(draft)) == num_ranks:
                return
            if self._is_abandoned.is_set() or time.monotonic() - began > _PATIENCE_SECONDS:
                raise self.checkpoints.missing_part(step, "other processes have not written their parts")
            time.sleep(_POLL_SECONDS)


def copy_state(value: Any, seen: dict[tuple[Any, ...], Tensor] | None = None) -> Any:
    """A copy on the CPU that no later step changes; tensors that are one in the state are one in the copy."""
    seen = {} if seen is None else seen
    if isinstance(value, Tensor):
        place = (value.device, value.data_ptr(), value.dtype, value.shape, value.stride())
        if place not in seen or value.numel() == 0:
            seen[place] = value.detach().to("cpu", copy=True)
        return seen[place]
    if isinstance(value, Mapping):
        return type(value)((key, copy_state(item, seen)) for key, item in value.items())  # type: ignore[call-arg]
    if isinstance(value, (list, tuple)):
        return type(value)(copy_state(item, seen) for item in value)
    return value
