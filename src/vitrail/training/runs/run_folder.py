"""The folder of a run: what it is, what it has said and measured, and that only one process writes to it."""

import contextlib
import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vitrail.settings.recipe import Recipe
from vitrail.settings.text import read_recipe, write_yaml
from vitrail.storage import is_partial, locked, read_json_lines, read_json_object, write_json, write_text

# Settings that may change when a run goes on: they decide how it is computed, not what.
_CHANGEABLE = ("data.workers", "data.spec", "data.val", "data.max_broken", "evaluation.batch_size", "name")
_CHANGEABLE_GROUPS = ("run.",)
_LOCK_FILE = ".lock"


class RunFolder:
    """Names of the files of a run, and the writing of those that grow."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe_file = path / "recipe.yaml"
        self.metrics_file = path / "metrics.jsonl"
        self.log_file = path / "log.txt"
        self.plan_file = path / "plan.json"
        self.task_file = path / "task.json"
        self.classes_file = path / "classes.json"  # what runs had in its place before
        self.quarantine_file = path / "quarantine.csv"
        self.checkpoints = path / "checkpoints"
        self.model = path / "model"

    @property
    def is_begun(self) -> bool:
        """Whether there is a run in the folder."""
        return self.recipe_file.is_file()

    @property
    def has_progress(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        return self.checkpoints.is_dir() and any(self.checkpoints.iterdir())

    def make(self) -> None:
        """Make the folder, unless there is a run in it; one of other files is refused."""
        if self.is_begun:
            return
        if self.path.is_dir() and not all(map(_is_passing, self.path.iterdir())):
            raise ValueError(f"{self.path} has other files in it and no run: give another folder as out=")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"cannot make the run folder {self.path}: {error.strerror}") from None

    def begin(self, recipe: Recipe) -> Recipe:
        """Write the recipe of a new run, or check that it is the one of the run that is to go on."""
        self.make()
        if not self.is_begun:
            self.write_text(self.recipe_file, write_yaml(recipe))
            return recipe
        changed = _differences(read_recipe(self.recipe_file), recipe)
        if changed and not self.has_progress:  # nothing is lost: the run may have failed for what was changed
            found = self.path.glob("*.safetensors")  # what a task has found out before the first step
            for path in (self.plan_file, self.metrics_file, self.task_file, self.classes_file, *found):
                path.unlink(missing_ok=True)
        elif changed:
            raise ValueError(
                f"{self.path} holds a run of another recipe ({'; '.join(changed[:3])}): "
                "give another out=, or the settings of that run to go on with it"
            )
        self.write_text(self.recipe_file, write_yaml(recipe))
        return recipe

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """The folder for this process alone, made if need be; the lock goes with the process, however it ends."""
        self.make()
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(locked(self.path / _LOCK_FILE, waits=False))
            except BlockingIOError:
                raise ValueError(f"{self.path} is in use by another process: a run of it is going on") from None
            yield

    def write_text(self, path: Path, text: str) -> None:
        """Write a small file whole."""
        write_text(path, text)

    def write_json(self, path: Path, content: Mapping[str, Any]) -> None:
        """Write a small file whole."""
        write_json(path, content)

    def read_json(self, path: Path) -> dict[str, Any]:
        """What a small file holds; nothing if it is not there."""
        if not path.is_file():
            return {}
        return read_json_object(path, remedy="restore it, or delete it to have it made anew")

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        """Append one line of metrics; a kill leaves every line whole, but for the last."""
        try:
            with self.metrics_file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            error.filename = str(self.metrics_file)  # a full disk does not say of which file
            raise

    def read_metrics(self) -> list[dict[str, Any]]:
        """All whole lines; what says of no step that it was measured there is passed over."""
        records = read_json_lines(self.metrics_file) if self.metrics_file.is_file() else []
        return [record for record in records if _has_place(record)]

    def forget_metrics(self, *, stage: int, step: int) -> None:
        """Drop what was measured after the checkpoint that the run goes on from: it will be measured again."""
        records = self.read_metrics()
        kept = [record for record in records if (record["stage"], record["step"]) <= (stage, step)]
        if self.metrics_file.is_file():
            self.write_text(self.metrics_file, "".join(json.dumps(record) + "\n" for record in kept))

    @contextlib.contextmanager
    def logging_to_file(self) -> Iterator[None]:
        """Send the package's log messages to log.txt too, inside the block."""
        handler = _LogFile(self.log_file, encoding="utf-8")
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", datefmt="%Y-%m-%d %H:%M:%S"))
        logger, level = logging.getLogger("vitrail"), logging.getLogger("vitrail").level
        logger.addHandler(handler)
        logger.setLevel(min(logger.getEffectiveLevel(), logging.INFO))
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)
            with contextlib.suppress(OSError):  # it was told when the message was written
                handler.close()


class _LogFile(logging.FileHandler):
    """A log whose disk is full is an error like any other, where logging would print a traceback and go on."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 logging's name
        """Raise an error of the disk, with the name of the log; logging calls this where it has caught one."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        error.filename = self.baseFilename
        raise error


def find_run(path: str | os.PathLike[str]) -> RunFolder:
    """The run in a folder; an error if there is none."""
    folder = RunFolder(Path(path))
    if not folder.is_begun:
        raise ValueError(f"{path} is not a run: there is no recipe.yaml in it")
    return folder


def _differences(old: Recipe, new: Recipe) -> list[str]:
    before, after = dict(_flat(old.model_dump())), dict(_flat(new.model_dump()))
    keys = [key for key in before | after if before.get(key) != after.get(key) and not _is_changeable(key)]
    return [f"{key} was {before.get(key)!r}, now {after.get(key)!r}" for key in keys]


def _is_changeable(key: str) -> bool:
    return key in _CHANGEABLE or key.startswith(_CHANGEABLE_GROUPS)


def _is_passing(path: Path) -> bool:
    """Whether a file may be there before there is a run: the lock, or what a killed process left half-written."""
    return path.name == _LOCK_FILE or is_partial(path)


def _has_place(record: object) -> bool:
    """Whether a line of metrics says where it belongs."""
    return isinstance(record, dict) and all(type(record.get(key)) is int for key in ("stage", "step"))


def _flat(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
