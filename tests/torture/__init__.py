"""What the package promises whatever happens to it, tried at random: one module an area, with `AREA` and `attempt`.

`attempt(rng, folder)` makes one random attempt in an empty folder, and returns None where the promise held, else a
sentence that says what broke. Where a module has `first_attempt`, that is attempt 0; the tests, for which it takes too
long, begin with attempt 1. `NUM_TESTED` of a module is how many attempts they make.
"""

import importlib
import pkgutil
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

_NUM_TESTED = 3


@dataclass
class Area:
    """Attempts of one kind, and how they went."""

    name: str
    attempt: Callable[[random.Random, Path], str | None]
    num_tested: int = _NUM_TESTED
    first_attempt: Callable[[random.Random, Path], str | None] | None = None
    num_tried: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)

    def try_once(self, *, seed: int, number: int) -> str | None:
        """Make the attempt of that number, which depends on it and on the seed alone; what broke, if anything did."""
        attempt = self.first_attempt if number == 0 and self.first_attempt is not None else self.attempt
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="torture-", ignore_cleanup_errors=True) as place:
            try:
                broken = attempt(random.Random(f"{self.name} {seed} {number}"), Path(place))
            except Exception as error:
                broken = f"{type(error).__name__}: {error}"
        self.seconds += time.monotonic() - started
        self.num_tried += 1
        if broken is not None:
            self.failures.append(f"{self.name}, attempt {number}: {' '.join(broken.split())}")
        return broken


def find_areas() -> list[Area]:
    """The area of every module of this package."""
    names = (found.name for found in pkgutil.iter_modules(__path__) if found.name != "__main__")
    modules = [importlib.import_module(f"{__name__}.{name}") for name in sorted(names)]
    return [
        Area(
            module.AREA,
            module.attempt,
            getattr(module, "NUM_TESTED", _NUM_TESTED),
            first_attempt=getattr(module, "first_attempt", None),
        )
        for module in modules
    ]


def torture(areas: list[Area], *, seconds: float, seed: int) -> Iterator[Area]:
    """Make attempts until the time is up, each in the area that had the least time so far; yield it after each."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        area = min(areas, key=lambda area: area.seconds)
        area.try_once(seed=seed, number=area.num_tried)
        yield area
