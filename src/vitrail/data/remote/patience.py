"""What goes wrong with a store far away: what passes is tried again, what does not is one line that stops the run."""

import logging
import os
import random
import time
from collections.abc import Callable
from typing import TypeVar

from vitrail.data.contract import SourceFailedError

_LOGGER = logging.getLogger(__name__)
_PATIENCE = "VITRAIL_REMOTE_PATIENCE"
_DEFAULT_PATIENCE = 300.0  # seconds that a store may be silent before a run stops
OPENING_PATIENCE = 20.0  # and before data that is just being opened is given up: an address may be misspelt
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 30.0
_TOLD_FROM = 3  # attempts
Result = TypeVar("Result")


class PassingFaultError(Exception):
    """What may be better in a moment: a lost connection, an answer cut short, a server that says 500 or 429."""


class ChangedObjectError(SourceFailedError):
    """An object is another than the one that was there when the data was opened."""


def patience_of_run() -> float:
    """Seconds that a store may be silent, by `$VITRAIL_REMOTE_PATIENCE`."""
    text = os.environ.get(_PATIENCE, "")
    try:
        seconds = float(text) if text else _DEFAULT_PATIENCE
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"{_PATIENCE} is {text!r} in the environment: it must be a number of seconds, such as 300")
    return seconds


def patiently(address: str, work: Callable[[], Result], *, patience: float | None = None) -> Result:
    """What the work gives, tried again with growing pauses while what goes wrong may pass."""
    limit = patience_of_run() if patience is None else patience
    began, pause, attempts = time.monotonic(), _FIRST_PAUSE, 0
    while True:
        try:
            return work()
        except PassingFaultError as fault:
            attempts += 1
            left = limit - (time.monotonic() - began)
            if left <= 0:
                raise SourceFailedError(
                    f"{address} can't be reached since {time.monotonic() - began:.0f} s ({fault}; {attempts} attempts)"
                    ": check the address, the network and the server, then run the same command to go on"
                ) from None
            if attempts == _TOLD_FROM:
                _LOGGER.warning("%s does not answer (%s): trying for up to %.0f s more", address, fault, left)
        time.sleep(min(pause * random.uniform(0.5, 1.5), left))
        pause = min(2 * pause, _LONGEST_PAUSE)


def judge_status(address: str, status: int) -> Exception:
    """What an answer's status means: passing, not there, or nothing that waiting helps."""
    if status in (404, 410):
        return FileNotFoundError(2, "no such object", address)
    if status in (408, 425, 429) or status >= 500:
        return PassingFaultError(f"status {status}")
    if status in (401, 403):
        return SourceFailedError(
            f"{address} may not be read (status {status}): credentials are taken from the environment and the usual "
            "files, see docs/data.md"
        )
    if status in (412, 416):
        return changed(address)
    return SourceFailedError(f"{address} can't be read (status {status})")


def changed(address: str) -> ChangedObjectError:
    """The error of an object that is another one now."""
    return ChangedObjectError(
        f"{address} was changed or replaced after the data was opened: a run would see other images than it began "
        "with. Put the old one back to go on, or begin a new run"
    )
