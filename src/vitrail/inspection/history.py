"""Ratios of residual branches as a run has noted them while it trained (CaiT figure 4)."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

KIND = "layers"  # of the records in a run's metrics
_MOST_CURVES = 8


@dataclass(frozen=True)
class Moment:
    """What was noted at one step: for each kind of branch the ratios from the first block to the last."""

    stage: int
    step: int
    epoch: float
    ratios: Mapping[str, Sequence[float | None]]


def read_history(records: Iterable[Mapping[str, Any]]) -> tuple[Moment, ...]:
    """The moments among the records of a run's metrics, in the order of training; what is damaged is passed over."""
    found = {}
    for record in records:
        moment = _read_moment(record)
        if moment is not None:
            found[moment.stage, moment.step] = moment
    return tuple(found[key] for key in sorted(found))


def _read_moment(record: Mapping[str, Any]) -> Moment | None:
    if record.get("kind") != KIND or not isinstance(record.get("ratios"), Mapping):
        return None
    stage, step, epoch = (record.get(key, 0) for key in ("stage", "step", "epoch"))
    if not all(isinstance(number, (int, float)) for number in (stage, step, epoch)):
        return None
    ratios = {
        str(kind): [_as_number(value) for value in values]
        for kind, values in record["ratios"].items()
        if isinstance(values, list)
    }
    return Moment(int(stage), int(step), float(epoch), ratios) if ratios else None


def _as_number(value: object) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number else None  # type: ignore[arg-type]


def choose_moments(history: Sequence[Moment]) -> list[Moment]:
    """A few of the moments, evenly spread from the first to the last."""
    if len(history) <= _MOST_CURVES:
        return list(history)
    last = len(history) - 1
    return [history[round(place * last / (_MOST_CURVES - 1))] for place in range(_MOST_CURVES)]
