"""Where a run's metrics are sent besides metrics.jsonl: TensorBoard and Weights & Biases, both extras."""

import contextlib
import importlib
import importlib.util
import logging
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from vitrail.settings.recipe import Recipe
from vitrail.training.runs.run_folder import RunFolder

_LOGGER = logging.getLogger(__name__)
_PLACES = ("kind", "stage", "step")  # of a record: where it belongs, not what was measured


class Tracker(Protocol):
    """A place that records are sent to."""

    def log(self, record: Mapping[str, Any]) -> None:
        """Take in one line of metrics.jsonl."""

    def close(self) -> None:
        """Send what is left."""


class Trackers:
    """All trackers of a run; none of them in a process that is not the main one."""

    def __init__(self, trackers: Sequence[Tracker] = ()) -> None:
        self._trackers = tuple(trackers)

    def log(self, record: Mapping[str, Any]) -> None:
        """Send a record to every tracker."""
        for tracker in self._trackers:
            tracker.log(record)


@contextlib.contextmanager
def open_trackers(recipe: Recipe, folder: RunFolder, *, stage: int, step: int) -> Iterator[Trackers]:
    """The trackers that the recipe names, for a run that begins or goes on after `step` of `stage`."""
    names = dict.fromkeys(recipe.run.trackers)
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise ValueError(f"run.trackers={name} needs a package: pip install 'vitrail[{name}]'")
    with contextlib.ExitStack() as stack:
        opened: list[Tracker] = []
        for name in names:
            if name == "tensorboard":
                opened.append(TensorBoard(folder.path / "tensorboard", stage=stage, step=step))
            else:
                opened.append(WeightsAndBiases(recipe, folder))
            stack.callback(opened[-1].close)
        yield Trackers(opened)


class TensorBoard:
    """Event files in a folder of the run, one for each stage because each counts its steps from 0."""

    def __init__(self, path: Path, *, stage: int, step: int) -> None:
        self._make_writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter
        self._path = path
        self._begun = (stage, step)
        self._writers: dict[int, Any] = {}

    def log(self, record: Mapping[str, Any]) -> None:
        """Add a point to the curve of every number."""
        writer = self._writer(record["stage"])
        for name, value in numbers(record).items():
            writer.add_scalar(name, value, record["step"])
        if record["kind"] == "eval":
            writer.flush()

    def _writer(self, stage: int) -> Any:
        if stage not in self._writers:
            first, step = self._begun
            # What was measured after the checkpoint that the run goes on from is measured again: it is not to be shown.
            purge_step = step + 1 if stage == first else 0
            self._writers[stage] = self._make_writer(str(self._path / f"stage_{stage}"), purge_step=purge_step)
        return self._writers[stage]

    def close(self) -> None:
        """Write what is left."""
        for writer in self._writers.values():
            writer.close()


class WeightsAndBiases:
    """A run of Weights & Biases, named after the folder; it is one run however often it goes on.

    Without a key or a network everything stays in the folder, for `wandb sync`.
    """

    def __init__(self, recipe: Recipe, folder: RunFolder) -> None:
        wandb = importlib.import_module("wandb")
        path = folder.path.resolve()
        kept = path / "wandb" / "run.json"
        identity = folder.read_json(kept) or {"id": secrets.token_hex(4)}
        if not isinstance(identity.get("id"), str):
            raise ValueError(f"{kept} must hold the id of the run at Weights & Biases: restore it, or delete it")
        kept.parent.mkdir(exist_ok=True)
        folder.write_json(kept, identity)
        settings: dict[str, Any] = {
            "project": os.environ.get("WANDB_PROJECT") or re.sub(r"[^\w.-]+", "-", path.parent.name)[:128] or "vitrail",
            "name": path.name,
            "id": identity["id"],
            "resume": "allow",
            "dir": str(path),
            "config": recipe.model_dump(mode="json"),
        }
        mode = os.environ.get("WANDB_MODE") or ("online" if wandb.api.api_key else "offline")
        try:
            self._run = wandb.init(mode=mode, **settings)
        except wandb.errors.CommError as error:
            _LOGGER.warning("wandb can't be reached (%s): metrics stay in %s", error, kept.parent)
            self._run = wandb.init(mode="offline", **settings)
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, record: Mapping[str, Any]) -> None:
        """Send every number; those of a later stage under its own name, because it counts its steps from 0."""
        prefix = f"stage_{record['stage']}/" if record["stage"] else ""
        values = {f"{prefix}{name}": value for name, value in numbers(record).items()}
        self._run.log({"step": record["step"], **values})

    def close(self) -> None:
        """Send what is left."""
        self._run.finish()


def numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """What was measured, by the names `train/loss`, `eval/top1` and so on; numbers of numbers as `eval/against/low`."""
    return dict(_numbers({key: value for key, value in record.items() if key not in _PLACES}, record["kind"]))


def _numbers(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}/{key}")
        elif isinstance(value, (int, float)):
            yield f"{prefix}/{key}", float(value)
