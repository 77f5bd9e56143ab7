"""The watch for collapse: each kind named with its step and two remedies, and healthy courses left alone."""

import math
from collections.abc import Callable

import pytest
import torch

from vitrail.tasks.unlabelled.collapse import (
    CollapseError,
    CollapseWatch,
    Sign,
    constant_answers,
    constant_features,
    dead_codes,
    same_answers,
    uniform_answers,
)

REMEDIES = ("raise a.b", "lower c.d")
NUM = 256
TOP = math.log(NUM)
DINO = (constant_answers(num_answers=NUM, remedies=REMEDIES), uniform_answers(num_answers=NUM, remedies=REMEDIES))
FEATURES = (constant_features(dim=64, remedies=REMEDIES),)
CODES = (dead_codes(remedies=REMEDIES),)


def feed(watch: CollapseWatch, course: Callable[[int], dict[str, float]], *, steps: int = 600, first: int = 1) -> None:
    for step in range(first, steps + 1):
        watch.see({name: torch.tensor(value) for name, value in course(step).items()})


def to_constant(step: int) -> dict[str, float]:
    """No centring: from an even start to one answer for all."""
    entropy = TOP * math.exp(-max(0, step - 50) / 20)
    return {"teacher_entropy": entropy, "kl": 0.2 * entropy, "information": 0.1 * entropy}


def recorded(step: int) -> dict[str, float]:
    """dino_small of 2048 answers on 32-pixel photos without centring: it slides to two answers, and stays there."""
    place = min(step / 20, len(SLIDE) - 1.001)
    before, share = int(place), place % 1
    pairs = zip(SLIDE[before], SLIDE[before + 1], strict=True)
    names = ("teacher_entropy", "kl", "information")
    return dict(zip(names, [(1 - share) * one + share * other for one, other in pairs], strict=True))


SLIDE = [  # means of 20 steps
    (5.43, 1.59, 1.09),
    (5.43, 1.41, 1.08),
    (4.54, 1.23, 1.03),
    (2.06, 1.25, 0.92),
    (0.55, 1.16, 0.76),
    (0.23, 0.67, 0.63),
    (0.19, 0.44, 0.55),
    (0.20, 0.37, 0.49),
    (0.21, 0.33, 0.44),
    (0.21, 0.30, 0.40),
    (0.22, 0.26, 0.36),
    (0.22, 0.23, 0.32),
    (0.20, 0.21, 0.29),
    (0.19, 0.18, 0.26),
]


def to_uniform(step: int) -> dict[str, float]:
    """No sharpening: what there was of an answer fades."""
    left = math.exp(-step / 20)
    return {"teacher_entropy": TOP * (1 - 0.2 * left), "kl": left, "information": 0.1 * left}


@pytest.mark.parametrize(
    ("signs", "course", "told"),
    [
        (
            DINO,
            to_constant,
            r"collapsed \(constant\): the teacher gives all images the same answer since step 1[0-9]1 ",
        ),
        (
            tuple(make(num_answers=2048, remedies=REMEDIES) for make in (constant_answers, uniform_answers)),
            recorded,
            r"collapsed \(constant\): the teacher gives all images the same answer since step 1\d1 ",
        ),
        (DINO, to_uniform, r"collapsed \(uniform\): the teacher finds all answers equally probable since step \d\d "),
        (
            FEATURES,
            lambda step: {"feature_deviation": 0.1 * 0.97**step},
            r"collapsed \(constant\): the features of all images are the same since step \d+ ",
        ),
        (
            CODES,
            lambda step: {"share_of_codes": max(0.01, 1 - step / 100)},
            r"collapsed \(dead codes\): hardly any code is in use since step \d\d ",
        ),
        (
            (same_answers(num_answers=NUM, remedies=REMEDIES),),
            lambda step: {"information": math.exp(-step / 20)},
            r"collapsed \(constant\): the teacher's answer does not depend on the image since step \d\d ",
        ),
    ],
    ids=["no centring", "slow slide", "no sharpening", "features", "codes", "information"],
)
def test_each_kind_is_named_within_a_few_hundred_steps(
    signs: tuple[Sign, ...], course: Callable[[int], dict[str, float]], told: str
) -> None:
    watch = CollapseWatch(signs)
    with pytest.raises(CollapseError, match=told) as caught:
        feed(watch, course)
    assert watch.step <= 350
    assert "; raise a.b, or lower c.d; run.on_collapse=warn" in str(caught.value)
    assert "\n" not in str(caught.value)


HEALTHY = {
    # DINO begins almost even, views are almost alike, and it takes its time.
    "even start": (
        DINO,
        lambda step: {
            "teacher_entropy": TOP * (1 - 0.5 * (step / 600) ** 2),
            "kl": 1e-4 * 1.03**step,
            "information": 1e-4 * 1.03**step,
        },
    ),
    # The first steps are those of the centre: it settles, and answers are uniform until features come to differ.
    "settling centre": (
        DINO,
        lambda step: {
            "teacher_entropy": TOP * (1 - math.exp(-step / 5) if step < 180 else 1 - (step - 180) / 1000),
            "kl": math.exp(-step / 5) if step < 180 else 1e-3 * (step - 180),
            "information": 0.0 if step < 180 else 1e-3 * (step - 180),
        },
    ),
    # Answers are all but even, and still not the same for all images.
    "faint answers": (
        DINO,
        lambda step: {"teacher_entropy": 0.995 * TOP, "kl": 0.005 * TOP, "information": 0.003 * TOP},
    ),
    # A sharp answer for each image is what is wanted as long as images differ: the student is wrong about some.
    "sharp teacher": (DINO, lambda step: {"teacher_entropy": 0.01 * TOP, "kl": 0.6, "information": 2.0}),
    # A student that is right about all of them has solved the task, and not collapsed.
    "right student": (DINO, lambda step: {"teacher_entropy": 0.01 * TOP, "kl": 0.001, "information": 2.0}),
    # LayerScale of 1e-5: class tokens are all but the same at first.
    "LayerScale": (FEATURES, lambda step: {"feature_deviation": min(0.1, 1e-6 * 1.03**step)}),
    "noise": (FEATURES, lambda step: {"feature_deviation": 0.1 if step % 50 == 0 else 1e-4}),
    "not finite": (FEATURES, lambda step: {"feature_deviation": math.nan}),
    # A tokenizer that starts with few codes and takes up others.
    "codes": (CODES, lambda step: {"share_of_codes": min(0.9, 0.01 * 1.01**step)}),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_runs_are_left_alone(name: str) -> None:
    signs, course = HEALTHY[name]
    watch = CollapseWatch(signs)
    feed(watch, course)
    assert watch.step == 600


def test_few_images_tell_little_without_a_collapse() -> None:
    def course(step: int) -> dict[str, float]:
        return {"teacher_entropy": 0.1, "information": 0.4}

    feed(CollapseWatch((constant_answers(num_answers=2048, num_images=2, remedies=REMEDIES),)), course)
    with pytest.raises(CollapseError, match="the same answer"):
        feed(CollapseWatch((constant_answers(num_answers=2048, num_images=64, remedies=REMEDIES),)), course)


def test_a_start_that_stays_where_it_is_counts_after_the_grace() -> None:
    watch = CollapseWatch(FEATURES, grace=250)
    with pytest.raises(CollapseError, match="since step 1 "):
        feed(watch, lambda step: {"feature_deviation": 1e-5})
    assert watch.step == 350


def test_a_run_that_never_began_is_told_what_to_begin_with() -> None:
    """Its settings are not at fault; those of one that began and collapsed are."""
    start = ("begin otherwise", "begin from weights")
    with pytest.raises(
        CollapseError, match=r"has not begun to learn \(constant\): .* alike; begin otherwise, or begin"
    ):
        feed(CollapseWatch(FEATURES, beginning=start), lambda step: {"feature_deviation": 1e-5})
    with pytest.raises(CollapseError, match=r"has collapsed \(constant\): .*; raise a\.b, or lower c\.d"):
        feed(CollapseWatch(FEATURES, beginning=start), lambda step: {"feature_deviation": 0.1 * 0.97**step})


def test_a_warning_is_said_once_and_the_run_goes_on() -> None:
    said: list[str] = []
    watch = CollapseWatch(FEATURES, action="warn", say=said.append)
    feed(watch, lambda step: {"feature_deviation": 0.0})
    assert watch.step == 600
    [text] = said
    assert "on_collapse" not in text


def test_a_watch_goes_on_where_a_checkpoint_left_it() -> None:
    with pytest.raises(CollapseError) as expected:
        feed(CollapseWatch(DINO), to_constant)
    for stop in (7, 60, 155, 193):  # also between two looks
        before, after = CollapseWatch(DINO), CollapseWatch(DINO)
        feed(before, to_constant, steps=stop)
        after.load_state_dict(before.state_dict())
        with pytest.raises(CollapseError) as caught:
            feed(after, to_constant, first=stop + 1)
        assert str(caught.value) == str(expected.value)
    other = CollapseWatch(FEATURES)
    other.load_state_dict(before.state_dict())
    assert other.step == 0


class Pair:
    """The first of two processes, whose other sees something else."""

    rank, num_ranks, is_main = 0, 2, True

    def __init__(self, other: float) -> None:
        self.other = other

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor + self.other


def test_processes_decide_by_their_mean() -> None:
    def course(step: int) -> dict[str, float]:
        return {"feature_deviation": 0.0}

    feed(CollapseWatch(FEATURES, world=Pair(0.1)), course)  # type: ignore[arg-type]
    with pytest.raises(CollapseError):
        feed(CollapseWatch(FEATURES, world=Pair(0.0)), course)  # type: ignore[arg-type]


def test_the_host_does_not_wait_in_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    watch = CollapseWatch(FEATURES)

    def read(tensor: torch.Tensor) -> list[float]:
        reads.append(watch.step)
        return [0.1]

    monkeypatch.setattr(torch.Tensor, "tolist", read)
    monkeypatch.setattr(torch.Tensor, "item", None)
    feed(watch, lambda step: {"feature_deviation": 0.1}, steps=40)
    assert reads == [10, 20, 30, 40]
