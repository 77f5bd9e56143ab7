"""The order of samples: a function of seed and epoch; ranks and micro-batches only divide it."""

import itertools

import numpy as np
import pytest

from vitrail.data.contract import Sample
from vitrail.data.sampler import Ranks, Sampler, count_parts


def steps(sampler: Sampler, epoch: int = 0, start_step: int = 0) -> list[list[Sample]]:
    return list(sampler.epoch(epoch, start_step=start_step))


def test_an_epoch_of_training_is_a_permutation_cut_into_whole_batches() -> None:
    batches = steps(Sampler(23, batch_size=5, seed=3))
    seen = [sample.index for batch in batches for sample in batch]
    assert [len(batch) for batch in batches] == [5, 5, 5, 5]
    assert len(set(seen)) == 20
    assert set(seen) <= set(range(23))
    assert seen != sorted(seen)


def test_every_epoch_and_every_seed_has_its_own_order() -> None:
    sampler = Sampler(50, batch_size=10, seed=0)
    assert steps(sampler, 0) == steps(Sampler(50, batch_size=10, seed=0), 0)
    orders = {tuple(sampler.order(0)), tuple(sampler.order(1)), tuple(Sampler(50, batch_size=10, seed=1).order(0))}
    assert len(orders) == 3


@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.parametrize("num_micro_batches", [1, 2])
def test_ranks_and_micro_batches_divide_the_same_global_batches(num_ranks: int, num_micro_batches: int) -> None:
    whole = steps(Sampler(100, batch_size=24, seed=5), 2)
    divided = [
        steps(Sampler(100, batch_size=24, seed=5, ranks=Ranks(rank, num_ranks), num_micro_batches=num_micro_batches), 2)
        for rank in range(num_ranks)
    ]
    for step, batch in enumerate(whole):
        first = step * num_micro_batches
        parts = [rank[first + place] for place in range(num_micro_batches) for rank in divided]
        assert [sample for part in parts for sample in part] == batch
        assert len({len(part) for part in parts}) == 1


@pytest.mark.parametrize(
    ("batch_size", "num_ranks", "num_micro_batches"),
    [(64, 3, 1), (64, 1, 7), (64, 3, 7), (30, 1, 4), (5, 3, 1), (67, 4, 2), (33, 2, 3), (7, 1, 4)],
)
def test_pairs_are_those_of_the_whole_batch_however_it_is_cut(
    batch_size: int, num_ranks: int, num_micro_batches: int
) -> None:
    def pairs(batch: list[Sample]) -> list[list[Sample]]:
        return [batch[place : place + 2] for place in range(0, len(batch), 2)]

    [whole, *_] = steps(Sampler(batch_size, batch_size=batch_size))
    of_ranks = [
        steps(
            Sampler(
                batch_size,
                batch_size=batch_size,
                ranks=Ranks(rank, num_ranks),
                num_micro_batches=num_micro_batches,
            )
        )
        for rank in range(num_ranks)
    ]
    parts = [part for together in zip(*of_ranks, strict=True) for part in together]
    assert len(parts) == num_ranks * num_micro_batches
    assert [pair for part in parts for pair in pairs(part)] == pairs(whole)


@pytest.mark.parametrize("batch_size", [24, 48])
def test_cuts_that_were_even_by_count_stay(batch_size: int) -> None:
    for num_ranks, num_micro_batches in itertools.product((1, 2, 3), (1, 2)):
        for rank in range(num_ranks):
            by_pair, by_count = (
                steps(
                    Sampler(
                        100,
                        batch_size=batch_size,
                        ranks=Ranks(rank, num_ranks),
                        num_micro_batches=num_micro_batches,
                        keeps_pairs=keeps,
                    )
                )
                for keeps in (True, False)
            )
            assert by_pair == by_count


def test_parts_are_counted_so_that_none_is_empty_or_larger_than_a_micro_batch() -> None:
    for batch_size, num_ranks, micro_batch in itertools.product((5, 6, 30, 64, 67), (1, 2, 3), (1, 2, 7, 8, 64)):
        for keeps in (True, False):
            num = count_parts(batch_size, num_ranks=num_ranks, micro_batch=micro_batch, keeps_pairs=keeps)
            lengths = [
                len(part)
                for rank in range(num_ranks)
                for part in steps(
                    Sampler(
                        batch_size,
                        batch_size=batch_size,
                        ranks=Ranks(rank, num_ranks),
                        num_micro_batches=num,
                        keeps_pairs=keeps,
                    )
                )
            ]
            assert len(lengths) == num * num_ranks
            if num_ranks == 1 or micro_batch >= 7:
                assert max(lengths) <= max(micro_batch, 2 if keeps else 1)


def test_going_on_in_the_middle_of_an_epoch_gives_the_rest_of_it() -> None:
    sampler = Sampler(40, batch_size=8, seed=0, num_micro_batches=2)
    assert steps(sampler, 1, start_step=3) == steps(sampler, 1)[6:]


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 8])
def test_evaluation_sees_every_sample_once_in_order(num_ranks: int) -> None:
    samplers = [Sampler(21, batch_size=8, is_training=False, ranks=Ranks(rank, num_ranks)) for rank in range(num_ranks)]
    per_rank = [steps(sampler) for sampler in samplers]
    assert sorted(sample.index for batches in per_rank for batch in batches for sample in batch) == list(range(21))
    assert [len(batches) for batches in per_rank] == [sampler.num_batches for sampler in samplers]
    if num_ranks == 1:
        assert [sample.index for batch in per_rank[0] for sample in batch] == list(range(21))


def test_repeated_augmentation_shows_a_third_of_the_images_three_times_each_as_other_views() -> None:
    sampler = Sampler(120, batch_size=30, seed=0, num_repeats=3)
    batches = steps(sampler)
    assert sampler.num_steps == len(batches) == 4
    for batch in batches:
        views: dict[int, list[int]] = {}
        for sample in batch:
            views.setdefault(sample.index, []).append(sample.view)
        assert len(views) == 10
        assert all(sorted(numbers) == [0, 1, 2] for numbers in views.values())
    assert len({sample.index for batch in batches for sample in batch}) == 40


@pytest.mark.parametrize("batch_size", [16, 30, 32, 64])
def test_views_of_one_image_are_never_neighbours(batch_size: int) -> None:
    for batch in steps(Sampler(640, batch_size=batch_size, num_repeats=3)):
        assert all(first.index != second.index for first, second in itertools.pairwise(batch))


def test_a_batch_larger_than_the_data_set_is_the_whole_data_set() -> None:
    sampler = Sampler(5, batch_size=64)
    assert [len(batch) for batch in steps(sampler)] == [5]
    assert sampler.num_batches == 1


def test_shards_are_shuffled_a_few_at_a_time_and_nothing_is_lost() -> None:
    groups = np.repeat(np.arange(40), 10)
    order = Sampler(400, batch_size=10, groups=groups).order(0)
    assert sorted(order) == list(range(400))
    window = groups[order[:160]]
    assert len(set(window)) == 16
    assert len(set(window[:32])) > 8
    assert not set(window) & set(groups[order[160:320]])


def test_samples_drawn_by_weight_come_as_often_as_it_says_and_each_time_as_another_view() -> None:
    weights = np.array([1.0] * 90 + [9.0] * 10)
    samples = [sample for batch in steps(Sampler(100, batch_size=50, weights=weights)) for sample in batch]
    assert 35 <= sum(sample.index >= 90 for sample in samples) <= 65
    assert len(set(samples)) == len(samples)
    repeated = [
        sample for batch in steps(Sampler(90, batch_size=45, weights=weights[:90], num_repeats=3)) for sample in batch
    ]
    assert len(set(repeated)) == len(repeated)


def test_a_bad_setting_is_named() -> None:
    with pytest.raises(ValueError, match="batch_size must be at least 1, not 0"):
        Sampler(10, batch_size=0)
    with pytest.raises(ValueError, match="num_repeats must be at least 1, not -1"):
        Sampler(10, batch_size=2, num_repeats=-1)


def test_what_would_leave_ranks_out_of_step_or_count_samples_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="an evaluation sees every sample once"):
        Sampler(9, batch_size=3, is_training=False, num_repeats=3)
    with pytest.raises(ValueError, match=r"a batch of 2 \(1 pairs to mix\) can't be divided into 3 x 1 parts"):
        Sampler(40, batch_size=2, ranks=Ranks(0, 3))
    with pytest.raises(ValueError, match=r"^a batch of 6 \(3 pairs to mix\) can't be divided into 1 x 4 parts .*$"):
        Sampler(40, batch_size=6, num_micro_batches=4)
    with pytest.raises(ValueError, match=r"^a batch of 6 \(6 images\) can't be divided into 7 x 1 parts .*$"):
        Sampler(40, batch_size=6, ranks=Ranks(0, 7), keeps_pairs=False)
    with pytest.raises(ValueError, match="groups must have one entry for each of the 40 samples"):
        Sampler(40, batch_size=2, groups=np.zeros(3))
    with pytest.raises(ValueError, match="an epoch has the steps 0 to 3, not -1"):
        next(Sampler(40, batch_size=10).epoch(0, start_step=-1))


def test_a_rank_outside_its_world_is_an_error() -> None:
    with pytest.raises(ValueError, match="rank 2 is not one of 2 ranks: they count from 0"):
        Ranks(2, 2)


@pytest.mark.parametrize(
    ("batch_size", "num_repeats"), [(11, 3), (12, 2), (16, 3), (21, 4), (64, 3), (67, 3), (96, 3), (256, 3)]
)
def test_the_views_of_an_image_have_different_neighbours(batch_size: int, num_repeats: int) -> None:
    sampler = Sampler(600, batch_size=batch_size, seed=1, num_repeats=num_repeats)
    plain = Sampler(600, batch_size=batch_size, seed=1, num_repeats=num_repeats, keeps_pairs=False)
    for batch, same in zip(steps(sampler), steps(plain), strict=True):
        assert set(batch) == set(same), "only the order is another"
        pairs = [
            frozenset(sample.index for sample in batch[place : place + 2]) for place in range(0, len(batch) - 1, 2)
        ]
        assert all(len(pair) == 2 for pair in pairs), "no image is beside itself"
        assert len(set(pairs)) == len(pairs), "no two images are beside each other twice"


def test_a_batch_of_too_few_images_to_have_different_neighbours_is_paired_all_the_same() -> None:
    [first, *_] = steps(Sampler(60, batch_size=6, num_repeats=3))
    assert len(set(first)) == 6
    assert all(one.index != two.index for one, two in zip(first[::2], first[1::2], strict=True))


def test_the_places_of_the_parts_are_told() -> None:
    for num_ranks, num_micro_batches in itertools.product((1, 2, 3), (1, 2, 4)):
        [whole, *_] = steps(Sampler(200, batch_size=54, seed=3))
        for rank in range(num_ranks):
            sampler = Sampler(
                200, batch_size=54, seed=3, ranks=Ranks(rank, num_ranks), num_micro_batches=num_micro_batches
            )
            parts = steps(sampler)[:num_micro_batches]
            assert [whole[place] for place in sampler.first_places] == [part[0] for part in parts]
