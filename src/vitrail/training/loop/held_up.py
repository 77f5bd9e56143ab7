"""Noticing that other programs keep a run from the cores it computes on."""

import time
from typing import NamedTuple

from vitrail.evaluation.lanes import Lanes

_ENOUGH = 0.7  # of its time that a lane should have a core
_FULL = 0.85  # of the cores' time: who uses that much holds itself up
_TIMES_IN_A_ROW = 3


class Attention(NamedTuple):
    """How much of the machine a run had lately."""

    core_share: float  # the part of its time that a lane had a core
    is_news: bool  # whether it has been too little for a while, and nobody was told yet


class HeldUp:
    """Compares, from one look to the next, the time that lanes wanted to compute with the time that they did."""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self._num_low = 0
        self._start()

    def _start(self) -> None:
        self._passed, self._computed = time.perf_counter(), time.process_time()

    def look(self) -> Attention:
        """What it was like since the last look."""
        used = (time.process_time() - self._computed) / max(time.perf_counter() - self._passed, 1e-9)
        share = self.lanes.share_of_core()
        self._start()
        # A lane that waits for this process's own reading has no core either, but then the process uses them all.
        is_low = share < _ENOUGH and used < _FULL * self.lanes.count * self.lanes.threads
        self._num_low = self._num_low + 1 if is_low else 0
        return Attention(round(share, 3), self._num_low == _TIMES_IN_A_ROW)
