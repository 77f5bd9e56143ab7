"""The folder of a run: what it is, what it has said and measured, and that only one process writes to it."""

import contextlib
import json
import logging
import os
import secrets
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.settings.overriding import override
from vitrail.settings.recipe import Recipe
from vitrail.settings.text import read_recipe, write_yaml
from vitrail.storage import (
    is_partial,
    locked,
    read_json_lines,
    read_json_object,
    remove,
    settle,
    write_json,
    write_text,
)
from vitrail.training.runs.changed_recipe import CHANGE, Difference, Done, advise, extend, find_differences, judge
from vitrail.training.runs.checkpoint import STEPS_OF_STAGE, Checkpoints

_LOCK_FILE = ".lock"
PATIENCE = 5.0  # seconds that a run which is ending is waited for


@dataclass(frozen=True)
class _NextRecipe:
    """The recipe that a run goes on with, and what of it is another than before."""

    recipe: Recipe
    said: str = ""
    done: Done | None = None  # None: nothing that would be noted
    changed: tuple[Difference, ...] = ()


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
        self._mark: bytes | None = None  # what the lock file holds as long as it is this process's
        self._is_going = False  # whether this process has begun the run, or gone on with it
        self._made: list[Path] = []  # folders that were not there before, the innermost first
        self._next: _NextRecipe | None = None  # what the run goes on with, as soon as it has been read whole

    @property
    def is_begun(self) -> bool:
        """Whether there is a run in the folder."""
        return self.recipe_file.is_file()

    @property
    def has_progress(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        return self.checkpoints.is_dir() and any(self.checkpoints.iterdir())

    @property
    def is_present(self) -> bool:
        """Whether the folder of a run that is going on is where it began, and no other run has taken its place."""
        if not self._is_going:
            return True
        lock = self.path / _LOCK_FILE
        is_ours = self._mark is None or not lock.exists() or lock.read_bytes() == self._mark
        return self.is_begun and is_ours

    def check_present(self) -> None:
        """Refuse to write to a folder that was moved or deleted: it would be made anew, with half of a run in it."""
        if not self.is_present:
            raise ValueError(
                f"{self.path} was moved, deleted or replaced while its run went on: the run has ended and wrote nothing "
                "there since; if the folder is elsewhere, vitrail train out=ITS_NEW_PLACE goes on"
            )

    def make(self) -> None:
        """Make the folder, unless there is a run in it; one of other files is refused."""
        if self.is_begun:
            return
        if self.path.is_dir() and not all(map(_is_passing, self.path.iterdir())):
            raise ValueError(f"{self.path} has other files in it and no run: give another folder as out=")
        try:
            self._made += [path for path in (self.path, *self.path.parents) if not path.exists()]
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = "a file of that name is there" if isinstance(error, FileExistsError) else error.strerror
            raise ValueError(f"cannot make the run folder {self.path}: {reason}") from None

    def discard(self) -> None:
        """Remove the folder if this process made it and no step was tried: there is nothing in it to go on with."""
        names = {self.recipe_file.name, self.log_file.name, self.task_file.name, _LOCK_FILE}
        with contextlib.suppress(OSError):
            is_ours = self._made and (self.path / _LOCK_FILE).read_bytes() == self._mark
            if is_ours and {path.name for path in self.path.iterdir()} <= names:
                for name in names:
                    (self.path / name).unlink(missing_ok=True)
                for path in self._made:
                    path.rmdir()

    def begin(self, recipe: Recipe) -> Recipe:
        """Write the recipe of a new run, or check that it is the one of the run that is to go on.

        A run that goes on keeps its recipe.yaml until `go_on`: what it needs may turn out to be unreadable.
        """
        self.make()
        self._clear()
        if self._next is not None:  # judged by `change`
            self._is_going = True
            return recipe
        if not self.is_begun:
            self.write_text(self.recipe_file, write_yaml(recipe))
            self._is_going = True
            return recipe
        changed = find_differences(read_recipe(self.recipe_file), recipe)
        if changed and not self.has_progress:  # nothing is lost: the run may have failed for what was changed
            found = self.path.glob("*.safetensors")  # what a task has found out before the first step
            for path in (self.plan_file, self.metrics_file, self.task_file, self.classes_file, *found):
                path.unlink(missing_ok=True)
        elif changed:
            raise ValueError(
                f"{self.path} holds a run of another recipe ({'; '.join(map(str, changed[:3]))}): {advise(changed, self.path)}"
            )
        self._next = _NextRecipe(recipe)
        self._is_going = True
        return recipe

    def read_recipe_with(self, changes: Mapping[str, Any]) -> Recipe:
        """The recipe of the run in the folder with some settings changed; epochs=+10 are so many more."""
        if not self.is_begun:
            raise ValueError(
                f"there is no run in {self.path} to go on with: name a recipe first, such as `vitrail train small`"
            )
        recipe = read_recipe(self.recipe_file)
        return override(recipe, extend(changes, recipe=recipe, done=self.done(), path=self.path))

    def change(self, recipe: Recipe) -> None:
        """Let the run go on with another recipe from `go_on` on; an error where that is not sound."""
        before = read_recipe(self.recipe_file)
        changed = find_differences(before, recipe) if self.has_progress else []
        if changed:
            done = self.done()
            said = judge(changed, before=before, after=recipe, done=done, path=self.path)
            self._next = _NextRecipe(recipe, said, done, tuple(changed))

    def go_on(self) -> str:
        """Write down the recipe that the run goes on with, now that all it needs has been read; what changes is said.

        The note in the metrics comes first: where the process ends before the recipe is written, the change is made
        again.
        """
        coming, self._next = self._next, None
        if coming is None:
            return ""
        if coming.done is not None:
            self.append_metrics(coming.done.as_record(coming.changed))
            if self.model.is_dir() and not coming.done.is_all_of(coming.recipe):  # it is no longer the run's last word
                kept = self.path / f"model_epoch_{coming.done.epoch:g}"
                remove(kept)
                self.model.rename(kept)
        self.write_text(self.recipe_file, write_yaml(coming.recipe))
        return coming.said

    def done(self) -> Done:
        """How far the run has come, by its newest checkpoint."""
        stage, step = divmod(max(Checkpoints(self.checkpoints).steps(), default=0), STEPS_OF_STAGE)
        return Done.of(self.read_metrics(), stage=stage, step=step)

    def _clear(self) -> None:
        """Remove what a killed process left half-written, and finish what it had decided."""
        if self.model.is_dir():
            settle(self.model)
        for folder in (self.path, self.checkpoints, self.model):
            if folder.is_dir():
                for path in filter(is_partial, list(folder.iterdir())):
                    remove(path)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """The folder for this process alone, made if need be; the lock goes with the process, however it ends.

        A run that is just ending is waited for.
        """
        self.make()
        lock = self.path / _LOCK_FILE
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(locked(lock, patience=PATIENCE))
            except BlockingIOError:
                raise ValueError(f"{self.path} is in use by another process: a run of it is going on") from None
            self._mark = secrets.token_bytes(8)
            lock.write_bytes(self._mark)
            yield

    def write_text(self, path: Path, text: str) -> None:
        """Write a small file whole."""
        self.check_present()
        write_text(path, text)

    def write_json(self, path: Path, content: Mapping[str, Any]) -> None:
        """Write a small file whole."""
        self.check_present()
        write_json(path, content)

    def read_json(self, path: Path) -> dict[str, Any]:
        """What a small file holds; nothing if it is not there."""
        if not path.is_file():
            return {}
        return read_json_object(path, remedy="restore it, or delete it to have it made anew")

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        """Append one line of metrics; a kill leaves every line whole, but for the last."""
        self.check_present()
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
        """Drop what was measured after the checkpoint that the run goes on from: it will be measured again.

        Changes of the recipe stay.
        """
        records = self.read_metrics()
        kept = [
            record
            for record in records
            if (record["stage"], record["step"]) <= (stage, step) or record.get("kind") == CHANGE
        ]
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


def _is_passing(path: Path) -> bool:
    """Whether a file may be there before there is a run: the lock, or what a killed process left half-written."""
    return path.name == _LOCK_FILE or is_partial(path)


def _has_place(record: object) -> bool:
    """Whether a line of metrics says where it belongs."""
    return isinstance(record, dict) and all(type(record.get(key)) is int for key in ("stage", "step"))
