"""What a checkpoint must hold: every part that the rest of a run depends on, of its type and in its place."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vitrail.training.runs.divided_checkpoint import Pieces

REMEDY = "delete it to go on from the one before, or restore it from a copy"
_NOTHING = type(None)
_KINDS: Mapping[str, tuple[type, ...]] = {
    "stage": (int,),
    "step": (int,),
    "data": (dict,),
    "model": (Mapping,),
    "optimizer": (dict,),
    "average": (dict, _NOTHING),
    "scaler": (dict,),
    "objective": (dict, _NOTHING),
    "best": (dict,),
    "num_skipped": (int,),
}


def check_content(state: Any, *, file: Path, num_stages: int, number: int | None) -> None:
    """Refuse a state that lacks a part, has one of another type, or is of another step than the file's `number` says.

    `number` counts steps over the stages, a thousand million for each stage; None: the file's name has none.
    """
    reason = _find_fault(state, num_stages=num_stages, number=number)
    if reason is not None:
        raise ValueError(f"{file}: not a checkpoint of this run ({reason}): {REMEDY}")


def _find_fault(state: Any, *, num_stages: int, number: int | None) -> str | None:
    if not isinstance(state, dict):
        return f"it holds a {type(state).__name__}"
    for key, kinds in _KINDS.items():
        if key not in state:
            return f"it has no {key}"
        if not isinstance(state[key], kinds) or isinstance(state[key], bool):
            return f"its {key} is a {type(state[key]).__name__}"
    stage, step = state["stage"], state["step"]
    if not 0 <= stage < num_stages:
        return f"it is of stage {stage} and the recipe has {num_stages}, counted from 0"
    if step < 0 or state["num_skipped"] < 0:
        return "it counts below 0"
    if number is not None and number != stage * 10**9 + step:
        return f"it is of step {step} of stage {stage}, and its name of another"
    if not state["model"] or not all(isinstance(value, (Tensor, Pieces)) for value in state["model"].values()):
        return "its model holds no tensors by name"
    if {"state", "param_groups"} - state["optimizer"].keys():
        return "its optimizer has no state or param_groups"
    best = state["best"]
    if not all(_is_number(best.get(key)) for key in ("epoch", "value" if "value" in best else "top1")):
        return "its best has no value and epoch"
    return None


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
