"""A few attempts of each area of `make torture`."""

import itertools
import random
from pathlib import Path

import pytest
from torture import Area, find_areas, torture


@pytest.mark.parametrize("area", find_areas(), ids=lambda area: area.name)
def test_promises_hold_in_a_few_random_attempts(area: Area) -> None:
    for number in range(1, area.num_tested + 1):
        area.try_once(seed=0, number=number)
    assert area.failures == []


def test_what_breaks_is_counted_and_every_area_has_its_turn() -> None:
    def fail(rng: random.Random, folder: Path) -> str | None:
        if rng.random() < 0.5:
            raise OSError("no room")
        return f"there is\n{len(list(folder.iterdir()))} here"

    areas = [Area("held", lambda rng, folder: None), Area("broken", fail)]
    turns = list(itertools.islice(torture(areas, seconds=60.0, seed=1), 20))
    held, broken = areas
    assert turns.count(held) == held.num_tried > 0
    assert held.failures == []
    assert len(broken.failures) == broken.num_tried > 0
    assert {line.partition(": ")[2] for line in broken.failures} <= {"OSError: no room", "there is 0 here"}


def test_an_attempt_depends_on_its_seed_and_number_alone() -> None:
    seen: list[float] = []
    area = Area("draws", lambda rng, folder: seen.append(rng.random()))
    for seed, number in ((0, 0), (0, 1), (1, 0), (0, 0)):
        area.try_once(seed=seed, number=number)
    assert seen[0] == seen[3]
    assert len(set(seen)) == 3
