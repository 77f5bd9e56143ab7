"""Stopping a run from outside: noticed at the end of a step, so that it can be saved."""

import contextlib
import signal
from typing import Any


class Interrupted(Exception):  # noqa: N818 not an error
    """The run was asked to stop and has saved its state."""


class StopSignal:
    """Ctrl-C or SIGTERM, noticed at the end of a step; a second Ctrl-C stops at once."""

    def __init__(self) -> None:
        self.is_set = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignal":
        with contextlib.suppress(ValueError):  # signals belong to the main thread
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: object) -> None:
        if self.is_set:
            raise KeyboardInterrupt
        self.is_set = True
