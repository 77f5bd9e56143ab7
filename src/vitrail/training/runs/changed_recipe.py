"""What may change of the recipe of a run that goes on: how it is computed, how long it is, how fast it learns."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from vitrail.settings.recipe import Recipe
from vitrail.settings.text import dotted

CHANGE = "change"  # the kind of a line of metrics that notes one

# They decide how a run is computed, not what.
_FREE = ("data.workers", "data.spec", "data.val", "data.max_broken", "evaluation.batch_size", "name")
_FREE_GROUPS = ("run.",)
# They are read anew at each step or evaluation: nothing that a checkpoint holds depends on them.
_LENGTHS = ("epochs", "steps")
_SOUND = (
    *_LENGTHS,
    "against",
    "evaluation.every",
    "optimizer.clip",
    "optimizer.lr",
    "optimizer.reference_batch",
    "regularisation.early_stop",
)
_SOUND_GROUPS = ("schedule.",)


@dataclass(frozen=True)
class Difference:
    """A setting of two recipes that is not the same."""

    key: str
    before: Any
    after: Any

    @property
    def is_sound(self) -> bool:
        """Whether a run may go on with it."""
        return self.key in _SOUND or self.key.startswith(_SOUND_GROUPS)

    def __str__(self) -> str:
        return f"{self.key} was {self.before!r}, now {self.after!r}"


@dataclass(frozen=True)
class Done:
    """How far a run has come."""

    stage: int
    step: int
    epoch: float
    lr: float | None  # of the last step that was written down
    changes: Mapping[str, Any] | None  # the last ones of its recipe: key -> [before, after]

    @classmethod
    def of(cls, records: Iterable[Mapping[str, Any]], *, stage: int, step: int) -> "Done":
        """What the lines of metrics say of a run whose newest checkpoint is of that step."""
        epoch, lr, changes = 0.0, None, None
        for record in records:
            if record.get("kind") == CHANGE:
                changes = record.get("changes")
            elif record["stage"] == stage and 0 < record["step"] <= step and isinstance(record.get("epoch"), float):
                epoch, lr = record["epoch"] * step / record["step"], record.get("lr", lr)
        return cls(stage, step, round(epoch, 4), lr, changes)

    def as_record(self, changed: Iterable[Difference]) -> dict[str, Any]:
        """The line of metrics that notes a change made here."""
        changes = {difference.key: [difference.before, difference.after] for difference in changed}
        return {"kind": CHANGE, "stage": self.stage, "step": self.step, "epoch": self.epoch, "changes": changes}

    def is_all_of(self, recipe: Recipe) -> bool:
        """Whether nothing is left to do."""
        if self.stage < recipe.num_stages - 1:
            return False
        return self.step >= recipe.steps if recipe.steps else self.epoch >= recipe.epochs - 1e-3

    def is_beyond(self, recipe: Recipe) -> bool:
        """Whether more was done than a recipe asks for."""
        return self.step > recipe.steps if recipe.steps else math.floor(self.epoch * 1000) > recipe.epochs * 1000


def find_differences(old: Recipe, new: Recipe) -> list[Difference]:
    """The settings that differ, but for those that decide nothing of what is learnt."""
    before, after = dict(dotted(old.model_dump())), dict(dotted(new.model_dump()))
    keys = [key for key in before | after if before.get(key) != after.get(key) and not _is_free(key)]
    return [Difference(key, before.get(key), after.get(key)) for key in keys]


def judge(changed: list[Difference], *, before: Recipe, after: Recipe, done: Done, path: Path) -> str:
    """What changes of a run from here on; an error where a run can't go on so."""
    if bad := [difference for difference in changed if not difference.is_sound]:
        raise ValueError(f"{path} cannot go on so ({'; '.join(map(str, bad[:3]))}): {advise(bad, path)}")
    lengths = [difference for difference in changed if difference.key in _LENGTHS]
    if lengths and done.is_beyond(after):
        raise ValueError(
            f"{path} has done {done.epoch:g} epochs ({done.step} steps): it cannot end before; give more, such as "
            "epochs=+10"
        )
    if not lengths and done.is_all_of(before):
        raise ValueError(f"{path} has done all of its {done.epoch:g} epochs: to go on with it, add epochs=+10 or so")
    listed = ", ".join(f"{item.key} {_show(item.before)} -> {_show(item.after)}" for item in changed)
    return f"from epoch {done.epoch:g} on: {listed}{_describe_rate(after, done)}"


def advise(changed: Iterable[Difference], path: Path) -> str:
    """What to do where a folder holds a run of another recipe."""
    if all(difference.is_sound for difference in changed):
        words = " ".join(f"{item.key}={_show(item.after)}" for item in changed)
        return f"give another out=, or change that run by `vitrail train out={path} {words}`"
    return f"give another out=, or start from its weights: vitrail train RECIPE init={path} out=NEW"


def extend(changes: Mapping[str, Any], *, recipe: Recipe, done: Done, path: Path) -> dict[str, Any]:
    """The changes, with numbers in place of epochs=+10 and steps=+1000: so many more than the run's own.

    The same words once more, before the run has done them, mean the same end.
    """
    _check_additions(changes)
    found = {key: value for key, value in changes.items() if key in _LENGTHS and is_addition(value)}
    wanted = {}
    for key, text in found.items():
        if recipe.stages:
            raise ValueError(f"{key}={text} extends a run of one stage, and {path} has {recipe.num_stages}")
        if (key == "steps") != (recipe.steps is not None):
            other = "steps" if key == "epochs" else "epochs"
            raise ValueError(f"{path} counts {other}: extend it by {other}=+N, not {key}={text}")
        now, more = getattr(recipe, key), float(text)
        known = (done.changes or {}).get(key)
        is_again = not done.is_all_of(recipe) and known is not None and known[1] == now == known[0] + more
        wanted[key] = now if is_again else now + more
    return {**changes, **wanted}


def is_addition(value: object) -> TypeGuard[str]:
    """Whether a value of epochs or steps says how many more."""
    return isinstance(value, str) and re.fullmatch(r"\+\d+(\.\d+)?", value) is not None


def _check_additions(changes: Mapping[str, Any]) -> None:
    """Refuse what begins as an addition and is none, such as epochs=+-3."""
    for key in _LENGTHS:
        value = changes.get(key)
        if isinstance(value, str) and value.startswith("+") and not is_addition(value):
            raise ValueError(f"{key}={value} is no number to be added: give how many more, such as {key}=+10")


def refuse_additions(changes: Mapping[str, Any]) -> None:
    """Refuse epochs=+10 beside a recipe: there is no number that it could be added to."""
    _check_additions(changes)
    for key in _LENGTHS:
        if is_addition(changes.get(key)):
            raise ValueError(f"{key}={changes[key]} extends a run that is there: vitrail train out=RUN {key}={changes[key]}")


def _describe_rate(recipe: Recipe, done: Done) -> str:
    """How the learning rate goes on, where it is not as it was."""
    if recipe.stages or done.lr is None or not done.epoch:
        return ""
    steps_per_epoch = max(1, round(done.step / done.epoch))
    schedules = recipe.schedule.build(
        lr=recipe.lr,
        steps_per_epoch=steps_per_epoch,
        total_steps=recipe.steps or math.ceil(recipe.epochs * steps_per_epoch),
    )
    rate = schedules.lr.at(done.step)
    return "" if math.isclose(rate, done.lr, rel_tol=0.01) else f"; the learning rate was {done.lr:.2g} and is {rate:.2g}"


def _show(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "null" if value is None else str(value)


def _is_free(key: str) -> bool:
    return key in _FREE or key.startswith(_FREE_GROUPS)
