"""Stopping a run from outside: noticed at the end of a step, so that it can be saved."""

import contextlib
import signal
from collections.abc import Iterator
from typing import Any


class Interrupted(Exception):  # noqa: N818 not an error
    """The run was asked to stop and has saved its state."""

    def __init__(self, *, is_terminated: bool = False) -> None:
        super().__init__()
        self.is_terminated = is_terminated  # by SIGTERM, as machines that are taken away send it, and not by Ctrl-C


class StopSignal:
    """Ctrl-C or SIGTERM, noticed at the end of a step; a second Ctrl-C stops at once.

    A second SIGTERM changes nothing: schedulers send several, and the first one is being obeyed.
    """

    def __init__(self) -> None:
        self.is_set = self.is_terminated = False
        self._raises = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignal":
        with contextlib.suppress(ValueError):  # signals belong to the main thread
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextlib.contextmanager
    def raising(self) -> Iterator[None]:
        """Where a signal, or one that came before, is an `Interrupted` at once."""
        self._raises = True
        try:
            if self.is_set:
                raise Interrupted(is_terminated=self.is_terminated)
            yield
        finally:
            self._raises = False

    def _note(self, number: int, frame: object) -> None:
        if self.is_set and number == signal.SIGINT:
            raise KeyboardInterrupt
        is_first = not self.is_set
        self.is_set = True
        self.is_terminated = self.is_terminated or number == signal.SIGTERM
        if is_first and self._raises:
            raise Interrupted(is_terminated=self.is_terminated)
