"""Random draws depend on their key alone, for ever: the values below must not change with a version of anything."""

import math
import statistics

import pytest

from vitrail.data.draws import Draws


def test_the_stream_of_a_key_is_fixed_for_ever() -> None:
    draws = Draws(0, 1, 2, 3)
    assert [draws.uniform() for _ in range(3)] == pytest.approx(
        [0.029818418489396037, 0.20093006310935113, 0.33297449887247454], abs=1e-15
    )
    assert Draws(0, 1, 2, 3).array().permutation(8).tolist() == [5, 4, 0, 3, 2, 7, 1, 6]


def test_every_part_of_the_key_matters() -> None:
    keys: list[tuple[int | str, ...]] = [
        (0, 0, 0, 0),
        (1, 0, 0, 0),
        (0, 1, 0, 0),
        (0, 0, 1, 0),
        (0, 0, 0, 1),
        (0, 0, 0, "order"),
        (0, 0, 0),
    ]
    assert len({Draws(*key).uniform() for key in keys}) == len(keys)


def test_numbers_lie_in_their_range_and_spread_evenly() -> None:
    draws = Draws("range")
    numbers = [draws.uniform(2, 4) for _ in range(4000)]
    assert 2 <= min(numbers) < 2.01
    assert 3.99 < max(numbers) < 4
    assert statistics.mean(numbers) == pytest.approx(3, abs=0.03)
    integers = [draws.integer(5) for _ in range(5000)]
    assert [integers.count(value) for value in range(5)] == pytest.approx([1000] * 5, abs=100)


def test_normal_numbers_have_their_mean_and_deviation() -> None:
    draws = Draws("normal")
    numbers = [draws.normal(3, 0.5) for _ in range(4000)]
    assert statistics.mean(numbers) == pytest.approx(3, abs=0.03)
    assert statistics.stdev(numbers) == pytest.approx(0.5, abs=0.02)
    assert sum(abs(number - 3) < 0.5 for number in numbers) / 4000 == pytest.approx(math.erf(2**-0.5), abs=0.03)


def test_chance_draws_even_when_it_is_certain() -> None:
    certain, even = Draws("chance"), Draws("chance")
    assert certain.chance(1.0)
    assert not certain.chance(0.0)
    even.chance(0.5)
    even.chance(0.5)
    assert certain.uniform() == even.uniform()


def test_shuffled_keeps_all_items_and_changes_their_order() -> None:
    items = list(range(20))
    shuffled = Draws("shuffle").shuffled(items)
    assert sorted(shuffled) == items
    assert shuffled != items
    assert Draws("choice").choice(["only"]) == "only"
