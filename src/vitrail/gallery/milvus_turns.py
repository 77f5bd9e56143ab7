"""Turns of the writers of one gallery on a server of Milvus, which has no locks: Lamport's bakery, in rows.

A writer takes a ticket with a number above all others and waits for those with lower ones. It says so before it has
looked at the others and after, so that two that look at the same moment wait for each other's numbers. A ticket beats
while its writer lives: one that others have not seen beat for a while is removed. A writer that was stopped for longer
has lost its turn and finds so before it changes the state.
"""

import contextlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from vitrail.gallery.milvus_client import Database, GoneError
from vitrail.storage import parse_json

BEAT_SECONDS = 1.0
DEAD_SECONDS = 15.0  # without a beat
_PAUSE = 0.1
_PREFIX = "ticket/"


class Turn:
    """The turn of one writer."""

    def __init__(self, database: Database, collection: str) -> None:
        self._database, self._collection = database, collection
        self._key = f"{_PREFIX}{secrets.token_hex(8)}"
        self._writing = threading.Lock()
        self._number, self._beat, self._is_choosing = 0, 0, True
        self._last, self._is_lost = _now(), False

    def check(self) -> None:
        """Refuse to go on where others have taken this writer for dead, or are about to."""
        if self._is_late() or self._key not in self._look():
            raise GoneError(
                f"the writer of {self._database.address.text} was away for more than {DEAD_SECONDS / 2:.0f} seconds "
                "and has lost its turn: nothing was changed, try again"
            )

    def wait(self) -> None:
        """Take a ticket and wait for all writers before."""
        self._put()
        self._number = 1 + max(number for number, _, _ in self._look().values())
        self._is_choosing = False
        self._put()
        seen: dict[str, tuple[int, float]] = {}  # of each other ticket: its last beat, and when it was new to us
        while True:
            others = self._look()
            others.pop(self._key, None)
            is_first = True
            for key, (number, is_choosing, beat) in others.items():
                if not is_choosing and (number, key) > (self._number, self._key):
                    continue
                is_first = False
                now = _now()
                if seen.get(key, (None, 0.0))[0] != beat:
                    seen[key] = (beat, now)
                elif now - seen[key][1] > DEAD_SECONDS:
                    self._database.delete(self._collection, keys=[key])
            if is_first:
                return
            time.sleep(_PAUSE)

    def beat(self) -> None:
        """Show that the writer lives, unless it is too late: another may have its turn by now."""
        if not self._is_late():
            self._put()

    def leave(self) -> None:
        """Let the next one have its turn."""
        with self._writing, contextlib.suppress(GoneError):  # a ticket that stays is taken for dead in time
            self._database.delete(self._collection, keys=[self._key])

    def _put(self) -> None:
        with self._writing:
            self._beat += 1
            content = {"number": self._number, "is_choosing": self._is_choosing, "beat": self._beat}
            row = {"key": self._key, "text": json.dumps(content), "nothing": [0.0, 0.0]}
            start = _now()
            self._database.upsert(self._collection, [row])
            self._last = start

    def _is_late(self) -> bool:
        self._is_lost = self._is_lost or _now() - self._last > DEAD_SECONDS / 2
        return self._is_lost

    def _look(self) -> dict[str, tuple[int, bool, int]]:
        """All tickets: number, whether it is yet to be chosen, and beat."""
        where = f'key like "{_PREFIX}%"'
        rows = self._database.query(self._collection, where, fields=["key", "text"])
        return {str(row["key"]): _read(row["text"]) for row in rows}


@contextlib.contextmanager
def taking_turn(database: Database, collection: str) -> Iterator[Callable[[], None]]:
    """Wait for one's turn and keep it; gives what checks that it is still one's own."""
    turn, ended = Turn(database, collection), threading.Event()

    def go_on() -> None:
        while not ended.wait(BEAT_SECONDS):
            with contextlib.suppress(GoneError):
                turn.beat()

    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()
    try:
        turn.wait()
        yield turn.check
    finally:
        ended.set()
        thread.join()
        turn.leave()


def _now() -> float:
    """Seconds, also those of a machine that was asleep where the system counts them."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def _read(text: Any) -> tuple[int, bool, int]:
    """What a ticket says; one that can't be read is a writer's who is about to choose, until it is taken for dead."""
    try:
        content = parse_json(str(text))
        return int(content["number"]), bool(content["is_choosing"]), int(content["beat"])
    except (ValueError, TypeError, KeyError):
        return 0, True, 0
