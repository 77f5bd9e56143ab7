"""Signals to load anew that come before the server has begun."""

import contextlib
import signal


class Hangups:
    """Signals to load anew that come while models are being loaded, to be obeyed when the server begins."""

    def __init__(self) -> None:
        self.has_come = False

    def watch(self) -> None:
        """Remember SIGHUP from now on; it would end the process."""
        if hasattr(signal, "SIGHUP"):
            with contextlib.suppress(ValueError):  # not in the main thread, where tests run it
                signal.signal(signal.SIGHUP, self._note)

    def _note(self, *_: object) -> None:
        self.has_come = True
