"""The watch for collapse: a run whose model says the same of every image is stopped, with what to change.

The kinds and their signs are those of the papers: all images get one answer (the teacher's entropy falls to 0), or an
answer that says nothing (its entropy stays at ln K), which centring and sharpening hold off (DINO, 5.3 and figure 7);
features that no longer vary over images (SimSiam, 4.1); and codes that nothing is mapped to.
"""

import logging
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from vitrail.evaluation.together import Alone, Together

_LOGGER = logging.getLogger(__name__)
_LOOK = 10  # steps between two looks: the host waits for a device in these alone
_FIRST = 1  # the step since which a sign that the first look has seen is there
_GROWTH = 1.1  # later looks further away than earlier ones by this factor: it is getting away
_FEW_ANSWERS, _SHARE_OF_ALL = 0.5, 0.1  # nats, and share of ln of the answers, of entropy and information each
_SHARE_OF_IMAGES = 0.2  # of ln of the images of a step
_LEAST_INFORMATION = 0.002  # share of ln of the answers below which an answer tells nothing of its image
_NOISE = 1e-6  # distances that rounding alone makes
_FEATURES, _ALIKE = "feature_deviation", 10.0  # first features this much further from collapse are still alike


class CollapseError(ValueError):
    """What a collapsed run stops with: one sentence."""


@dataclass(frozen=True)
class Nearness:
    """One condition of a sign: a signal is close to the value that it has in a collapsed run."""

    signal: str  # name of the signal
    collapsed: float  # its value after the collapse
    within: float  # distance from it that counts as close

    def distance(self, value: float) -> float:
        """How far a value is from collapse."""
        return abs(value - self.collapsed)


@dataclass(frozen=True)
class Sign:
    """One way to collapse: all of its conditions hold for many steps, and none of them is getting better.

    `kind` and `meaning` are told to people: "constant", "all images get the same answer". `remedies` are two changes
    of settings, such as "lower dino.teacher_temperature" and "raise dino.teacher_momentum".
    """

    kind: str
    meaning: str
    conditions: tuple[Nearness, ...]
    remedies: tuple[str, str]

    @property
    def signals(self) -> tuple[str, ...]:
        """The signals that it looks at."""
        return tuple(condition.signal for condition in self.conditions)


def constant_answers(*, num_answers: int, remedies: tuple[str, str], num_images: int | None = None) -> Sign:
    """All images get one answer of `num_answers`, or one of two: signals teacher_entropy and information, in nats.

    Their sum is the entropy of the mean answer of a batch, so the logarithm of how many answers are in use. A sharp
    teacher whose answers differ between images has not collapsed, also where the student agrees with it; and one that
    has slid to two answers has, though they still differ a little. Information is at most ln of the `num_images` of a
    step: of few it is little by itself.
    """
    within = min(_FEW_ANSWERS, _SHARE_OF_ALL * math.log(num_answers))
    if num_images is not None:
        within = min(within, _SHARE_OF_IMAGES * math.log(num_images))
    conditions = (Nearness("teacher_entropy", 0.0, within), Nearness("information", 0.0, within))
    return Sign("constant", "the teacher gives all images the same answer", conditions, remedies)


def uniform_answers(*, num_answers: int, remedies: tuple[str, str]) -> Sign:
    """All `num_answers` are equally probable for every image: signals teacher_entropy, kl and information, in nats.

    A teacher whose answers are all but even and still differ between images has not collapsed.
    """
    scale = math.log(num_answers)
    conditions = (
        Nearness("teacher_entropy", scale, 0.01 * scale),
        Nearness("kl", 0.0, 0.01 * scale),
        Nearness("information", 0.0, _LEAST_INFORMATION * scale),
    )
    return Sign("uniform", "the teacher finds all answers equally probable", conditions, remedies)


def same_answers(*, num_answers: int, remedies: tuple[str, str]) -> Sign:
    """The answer does not depend on the image, whatever it is: signal information, in nats.

    It is the entropy of the mean answer of a batch less the mean entropy of its answers, so at most ln of the batch.
    """
    condition = Nearness("information", 0.0, _LEAST_INFORMATION * math.log(num_answers))
    return Sign("constant", "the teacher's answer does not depend on the image", (condition,), remedies)


def constant_features(*, dim: int, remedies: tuple[str, str]) -> Sign:
    """All images get one feature vector of `dim` numbers: signal feature_deviation, at most 1 / sqrt(dim)."""
    condition = Nearness(_FEATURES, 0.0, 0.01 / math.sqrt(dim))
    return Sign("constant", "the features of all images are the same", (condition,), remedies)


def dead_codes(*, least_share: float = 0.05, remedies: tuple[str, str]) -> Sign:
    """Fewer codes than `least_share` of them are in use: signal share_of_codes, from 0 to 1."""
    condition = Nearness("share_of_codes", 0.0, least_share)
    return Sign("dead codes", "hardly any code is in use", (condition,), remedies)


class CollapseWatch:
    """Looks at signals of every step, and says when they have shown a collapse for `patience` steps.

    An objective owns one (`UnlabelledTask.make_watch` makes it) and calls `see` once in its `after_step`, in every
    process, with the signals that its signs name; the numbers of all processes are averaged. They may be tensors on a
    device: these are kept, and every ten steps their means are read and judged. Runs start close to a collapsed state
    (centred answers of features that are all but the same are uniform), so nothing is said before `patience` steps
    after the first `grace` ones, and no sign counts while one of its signals is getting away. A run whose first weights
    make images alike, and that never got away from there, has not collapsed: `beginning`, two changes of settings, is
    what it needs instead of the remedies of a sign. `state_dict` and `load_state_dict` belong into those of the
    objective.
    """

    def __init__(
        self,
        signs: Sequence[Sign],
        *,
        action: Literal["stop", "warn"] = "stop",
        patience: int = 100,
        grace: int = 100,
        beginning: tuple[str, str] | None = None,
        world: Together | None = None,
        say: Callable[[str], object] = _LOGGER.warning,
    ) -> None:
        if patience < 2 * _LOOK:
            raise ValueError(f"a watch needs the patience of {2 * _LOOK} steps at least, not {patience}")
        self.signs, self.action, self.patience, self.grace = tuple(signs), action, patience, grace
        self.beginning = beginning
        self.names = tuple(sorted({name for sign in self.signs for name in sign.signals}))
        self.world, self.say = Alone() if world is None else world, say
        self.step = 0  # steps that have been seen
        self._unread: list[Tensor] = []  # signals of the steps since the last look, in the order of `names`
        self._looks: deque[list[float]] = deque(maxlen=patience // _LOOK)  # the last means
        self._since: list[int | None] = [None] * len(self.signs)  # the step from which on each sign has been there
        self._begins_alike = False  # whether the features of the first steps were all but the same
        self._is_warned = False

    def see(self, signals: Mapping[str, float | Tensor]) -> None:
        """Take in the signals of a step that was made; others than the signs name are passed over."""
        missing = [name for name in self.names if name not in signals]
        assert not missing, f"no signal {', '.join(missing)} for the watch"
        device = next((value.device for value in signals.values() if isinstance(value, Tensor)), torch.device("cpu"))
        row = [torch.as_tensor(signals[name], dtype=torch.float32, device=device).detach() for name in self.names]
        self._unread.append(torch.stack([value.reshape(()) for value in row]))
        self.step += 1
        if self.step % _LOOK == 0:
            self._look()

    def _look(self) -> None:
        """Read the mean of the steps since the last look, and judge."""
        means = torch.stack(self._read()).mean(dim=0).tolist()
        self._unread.clear()
        self._looks.append(means)
        if self.step == _LOOK:
            about = [condition for sign in self.signs for condition in sign.conditions if condition.signal == _FEATURES]
            deviations = [one.distance(means[self.names.index(_FEATURES)]) / one.within for one in about]
            self._begins_alike = any(deviation <= _ALIKE for deviation in deviations)
        for place, sign in enumerate(self.signs):
            if not self._is_near(sign, means):
                self._since[place] = None
            elif self._since[place] is None:
                self._since[place] = self.step - _LOOK + 1
        for place, sign in enumerate(self.signs):
            if not self._is_warned and self._has_lasted(place) and not self._is_getting_away(sign):
                self._tell(sign, since=self._since[place])

    def _read(self) -> list[Tensor]:
        """The signals that have not been judged: the mean over the processes, so that all of them decide alike."""
        if self._unread:
            newest = self._unread[-1]  # those that a checkpoint has read are on the host
            unread = torch.stack([row.to(newest.device, torch.float32) for row in self._unread])
            rows = self.world.sum(unread) / self.world.num_ranks
            self._unread = list(rows.double().cpu())
        return self._unread

    def _is_near(self, sign: Sign, values: Sequence[float]) -> bool:
        """Whether all conditions of a sign hold; numbers that are not finite are the loop's to deal with."""
        return all(
            condition.distance(values[self.names.index(condition.signal)]) <= condition.within
            for condition in sign.conditions
        )

    def _has_lasted(self, place: int) -> bool:
        """Whether the sign at that place has been there for long enough."""
        since = self._since[place]
        if since is None or self.step - self.patience < self.grace:
            return False
        return self.step - since + 1 >= self.patience and len(self._looks) == self._looks.maxlen

    def _is_getting_away(self, sign: Sign) -> bool:
        """Whether a signal is further from collapse in the later half of the last looks than in the earlier one."""
        half = len(self._looks) // 2
        for condition in sign.conditions:
            place = self.names.index(condition.signal)
            distances = [condition.distance(values[place]) for values in self._looks]
            before, after = sum(distances[:half]) / half, sum(distances[-half:]) / half
            if after > _GROWTH * before + _NOISE:
                return True
        return False

    def _tell(self, sign: Sign, *, since: int | None) -> None:
        """Stop, or warn once."""
        last = dict(zip(self.names, self._looks[-1], strict=True))
        shown = ", ".join(f"{name} {last[name]:.3g}" for name in sign.signals)
        told = f"({sign.kind}): {sign.meaning} since step {since} ({shown})"
        if self.beginning is not None and self._begins_alike and _FIRST in self._since:
            first, second = self.beginning
            message = (
                f"the run has not begun to learn {told}: its first weights make images alike; {first}, or {second}"
            )
        else:
            first, second = sign.remedies
            message = f"the run has collapsed {told}; {first}, or {second}"
        if self.action == "stop":
            raise CollapseError(f"{message}; run.on_collapse=warn would go on")
        self._is_warned = True
        self.say(message)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps; every process asks."""
        unread, width = self._read(), len(self.names)
        return {
            "names": list(self.names),
            "step": self.step,
            "unread": torch.stack(unread) if unread else torch.zeros(0, width, dtype=torch.float64),
            "looks": torch.tensor(list(self._looks), dtype=torch.float64).reshape(-1, width),
            "since": list(self._since),
            "begins_alike": self._begins_alike,
            "is_warned": self._is_warned,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint; one of other signs leaves the watch to begin anew."""
        if list(state.get("names", ())) != list(self.names) or len(state["since"]) != len(self.signs):
            return
        self.step, self._is_warned = int(state["step"]), bool(state["is_warned"])
        self._begins_alike = bool(state.get("begins_alike", True))  # runs of before did not note it
        self._unread = list(state["unread"].double().cpu())
        self._looks = deque(state["looks"].tolist(), maxlen=self.patience // _LOOK)
        self._since = list(state["since"])
