"""Random numbers that depend on nothing but a key: not on the process, the worker, or what was drawn before."""

import hashlib
import math
import random
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

Item = TypeVar("Item")


def seed_of_stage(seed: int, number: int) -> int:
    """The seed of a stage of a run: a later stage has random choices of its own."""
    return seed if number == 0 else Draws(seed, number, "stage").integer(2**31)


class Draws:
    """The random choices that belong to one key, such as (seed, epoch, sample index, view).

    Only generators whose streams Python and NumPy promise never to change are used: `Random.random` and `RandomState`.
    """

    def __init__(self, *key: int | str) -> None:
        text = "/".join(map(str, key))
        self._state = hashlib.blake2b(text.encode(), digest_size=16).digest()
        self._random = random.Random(int.from_bytes(self._state, "little")).random

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        """A number between `low` and `high`."""
        return low + (high - low) * self._random()

    def chance(self, probability: float) -> bool:
        """True with that probability. It draws even when the answer is certain: settings do not shift each other."""
        return self._random() < probability

    def integer(self, stop: int) -> int:
        """One of 0 ... stop - 1."""
        return int(self._random() * stop)

    def choice(self, items: Sequence[Item]) -> Item:
        """One of the items."""
        return items[self.integer(len(items))]

    def normal(self, mean: float = 0.0, std: float = 1.0) -> float:
        """A number of the normal distribution (Box-Muller)."""
        radius = math.sqrt(-2.0 * math.log(1.0 - self._random()))
        return mean + std * radius * math.cos(2.0 * math.pi * self._random())

    def shuffled(self, items: Sequence[Item]) -> list[Item]:
        """The items in random order."""
        rest = list(items)
        for last in range(len(rest) - 1, 0, -1):
            other = self.integer(last + 1)
            rest[last], rest[other] = rest[other], rest[last]
        return rest

    def array(self) -> np.random.RandomState:
        """A generator of whole arrays, seeded by one draw."""
        words = [self.integer(2**32) for _ in range(4)]
        return np.random.RandomState(words)
