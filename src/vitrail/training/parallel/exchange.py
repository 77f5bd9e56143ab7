"""What processes tell each other between steps: one small sum, about once a second."""

import time

from vitrail.training.parallel.distributed import World

_SECONDS = 1.0  # between two exchanges
_MOST_STEPS = 100


class Exchange:
    """Votes of all processes on what one of them may know and all must act on together.

    Each step every process votes. One process alone knows the result at once. Several wait for each other only when an
    exchange is due, and until then every result is no; what was voted in between is kept. How many steps lie between
    two exchanges follows from the main process's clock and is told to all in the exchange itself.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self._pending: dict[str, bool] = {}
        self._results: dict[str, bool] = {}
        self._steps_left = 1
        self._steps = 0
        self._since = time.monotonic()

    def vote(self, **flags: bool) -> None:
        """Say what this process has to say about the step."""
        self._pending = {name: flag or self._pending.get(name, False) for name, flag in flags.items()}
        self._steps += 1
        self._steps_left -= 1
        if self.world.num_ranks > 1 and self._steps_left > 0:
            self._results = dict.fromkeys(flags, False)
            return
        steps = self._choose_steps() if self.world.is_main else 0
        *votes, self._steps_left = self.world.largest(*self._pending.values(), steps)
        self._results = {name: bool(vote) for name, vote in zip(self._pending, votes, strict=True)}
        self._pending = {}

    def results(self, *names: str) -> list[bool]:
        """For each of the names, whether any process said yes."""
        return [self._results.get(name, False) for name in names]

    def _choose_steps(self) -> int:
        seconds = (time.monotonic() - self._since) / self._steps
        self._since, self._steps = time.monotonic(), 0
        return max(1, min(_MOST_STEPS, round(_SECONDS / max(seconds, 1e-9))))
