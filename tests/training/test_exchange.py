"""What processes tell each other between steps: rarely, all at once, and nothing is lost in between."""

from dataclasses import dataclass, field

from vitrail.training.parallel.distributed import World
from vitrail.training.parallel.exchange import Exchange


@dataclass(frozen=True)
class Counting(World):
    """A world of two in which the other process never says anything."""

    num_ranks: int = 2
    exchanges: list[tuple[int, ...]] = field(default_factory=list)

    def largest(self, *numbers: int) -> list[int]:
        self.exchanges.append(numbers)
        return list(numbers)


def test_one_process_knows_at_once() -> None:
    exchange = Exchange(World())
    exchange.vote(stop=True, save=False)
    assert exchange.results("stop", "save") == [True, False]
    exchange.vote(stop=False, save=True)
    assert exchange.results("stop", "save") == [False, True]


def test_several_processes_exchange_rarely_and_keep_what_was_said_in_between() -> None:
    world = Counting()
    exchange = Exchange(world)
    results = []
    for step in range(1000):  # of no time at all, so that a second holds many
        exchange.vote(stop=step == 500, save=False)
        results += exchange.results("stop")
    assert len(world.exchanges) < 50
    assert all(len(sent) == 3 for sent in world.exchanges)  # flags and the number of steps go together
    assert results.count(True) == 1
    assert 500 <= results.index(True) <= 600
