"""Checkpoints of a run: written whole or not at all, checked before they are read, and free of code."""

import errno
import logging
import os
import re
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.storage import content_of, install_folder, is_partial, link_whole, remove, settle, write_whole
from vitrail.storage.pickles import is_whole_archive, read_pickle
from vitrail.training.parallel.distributed import World
from vitrail.training.runs import divided_checkpoint as parts
from vitrail.training.runs.checkpoint_content import REMEDY, check_content

BEST_FILE = "best.pt"
STEPS_OF_STAGE = 10**9  # a checkpoint's number is its step, and so many more for each stage before
_STEP_NAME = re.compile(r"step_(\d{9}|[1-9]\d{9,})\.(pt|parts)")
_PLAIN = (bool, int, float, str, bytes, type(None), Tensor, nn.Parameter)
_log = logging.getLogger(__name__)


class CheckpointError(ValueError):
    """A checkpoint that could not be written; those before it are still there."""


class Checkpoints:
    """The checkpoints in a folder: the last `keep_last`, and a copy of the best one that costs no room where it may.

    One process writes, or, where the model is divided, each its part of a folder. A checkpoint gets its name only when
    it is on the disk whole, so a run that is killed or finds the disk full leaves the earlier ones; which is the newest
    follows from the names alone.
    """

    def __init__(self, folder: str | os.PathLike[str], *, keep_last: int = 2) -> None:
        if keep_last < 1:
            raise ValueError(f"keep_last must be at least 1, not {keep_last}: a run needs a checkpoint to go on from")
        self.folder, self.keep_last = Path(folder), keep_last

    def save(self, state: Mapping[str, Any], *, step: int, is_best: bool = False) -> Path:
        """Write the state after `step` steps, then remove what is no longer to be kept.

        Checkpoints of later steps go too: the one saved last is the one a run goes on from.
        """
        state = dict(state)
        check_plain(state)
        path = target = self._path(step)
        try:
            self.folder.mkdir(exist_ok=True)  # a run folder that is gone is not made anew
            self._remove_partial()
            write_whole(path, lambda file: torch.save(state, file))
            remove(path.with_suffix(parts.SUFFIX))
            if is_best:
                target = self.folder / BEST_FILE
                link_whole(path, target)
                remove(target.with_suffix(parts.SUFFIX))
        except OSError as error:
            raise CheckpointError(self.describe(error, target)) from error
        self._prune(step)
        return path

    def begin_divided(self, step: int, *, token: str, world: World) -> Path:
        """Make the folder that every process writes its part of a state into; all call it, with the same token.

        The token tells it from what a killed process left of the same step.
        """
        path = self._path(step).with_suffix(parts.SUFFIX)
        draft = path.with_name(f".{path.name}.{token}.partial")
        failure: OSError | None = None
        if world.is_main:
            try:
                self.folder.mkdir(exist_ok=True)  # a run folder that is gone is not made anew
                self._remove_partial()
                draft.mkdir()
            except OSError as error:
                failure = error
        [has_failed] = world.any(failure is not None)
        if has_failed:
            reason = failure or OSError(errno.EIO, "the main process could not begin it")
            raise CheckpointError(self.describe(reason, path)) from failure
        return draft

    def finish_divided(self, common: dict[str, Any], draft: Path, *, step: int, is_best: bool) -> None:
        """Write what all parts have in common, then give the folder its name; the main process alone does."""
        path = self._path(step).with_suffix(parts.SUFFIX)
        try:
            self._finish_divided(common, draft, path, is_best=is_best)
        except OSError as error:
            raise CheckpointError(self.describe(error, path)) from error
        self._prune(step)

    def missing_part(self, step: int, reason: str) -> CheckpointError:
        """The error of a checkpoint of which not every process has written its part."""
        path = self._path(step).with_suffix(parts.SUFFIX)
        return CheckpointError(self.describe(OSError(errno.EIO, reason), path))

    def _finish_divided(self, common: dict[str, Any], draft: Path, path: Path, *, is_best: bool) -> None:
        """Write what all parts have in common, then give the folder its name."""
        whole = {"state": common, "parts": parts.sizes_of(draft)}
        write_whole(draft / parts.COMMON_FILE, lambda file: torch.save(whole, file))
        install_folder(draft, path, keeps_others=False)
        remove(path.with_suffix(".pt"))
        if is_best:
            target = (self.folder / BEST_FILE).with_suffix(parts.SUFFIX)
            parts.link_folder(path, target)
            remove(target.with_suffix(".pt"))

    def steps(self) -> list[int]:
        """The steps of which there is a checkpoint, in order."""
        if not self.folder.is_dir():
            return []
        names = (path.name for path in self.folder.iterdir())
        return sorted({int(found[1]) for name in names if (found := _STEP_NAME.fullmatch(name))})

    def newest(self, world: World | None = None) -> Path | None:
        """The newest checkpoint that is whole; damaged ones are passed over and named in the log.

        Of several processes all call it: each then reads its share of the files, and all get the same answer.

        None where there are no checkpoints. If there are and none is whole, it is an error: to begin anew unasked would
        throw away what may yet be restored.
        """
        world = world or World()
        steps: list[int] = world.share(self.steps())
        for step in reversed(steps):
            path: Path | None = world.share(self._either(self._path(step)))
            is_damaged = path is None or not is_whole(path, rank=world.rank, num_ranks=world.num_ranks)
            if not world.any(is_damaged)[0]:
                return path
            if world.is_main:
                _log.warning("%s is damaged and passed over", path)
        if steps:
            raise ValueError(
                f"no checkpoint in {self.folder} is whole, {len(steps)} damaged: restore one from a copy, delete that "
                "folder to train from the start again, or begin a new run with another out="
            )
        return None

    def _either(self, path: Path) -> Path | None:
        """The checkpoint at a path: the file, or the folder of parts in its place; None: neither."""
        folder = path.with_suffix(parts.SUFFIX)
        if folder.is_dir():
            return folder
        return path if path.is_file() else None

    def _path(self, step: int) -> Path:
        return self.folder / f"step_{step:09d}.pt"

    def _prune(self, saved: int) -> None:
        earlier = [step for step in self.steps() if step <= saved]
        for step in self.steps():
            if step not in earlier[-self.keep_last :]:
                for path in (self._path(step), self._path(step).with_suffix(parts.SUFFIX)):
                    try:
                        remove(path)
                    except OSError as error:  # no reason to end a run whose state is safe
                        _log.warning("%s is no longer needed but can't be removed (%s)", path, error.strerror)

    def _remove_partial(self) -> None:
        """Remove what a killed process left half-written; it may be what fills the disk."""
        for path in filter(is_partial, list(self.folder.iterdir())):
            remove(path)

    def describe(self, error: OSError, path: Path) -> str:
        """One line about a checkpoint that could not be written, and which one is kept."""
        steps = self.steps()
        kept = f"the checkpoint of step {steps[-1]} is kept" if steps else "there is no earlier checkpoint"
        return (
            f"{path} could not be written ({error.strerror or error}); {kept}: "
            "make room or check the disk, then run the same command to go on"
        )


def load_checkpoint(path: str | os.PathLike[str], *, is_divided: bool = False) -> dict[str, Any]:
    """The state in a checkpoint, on the CPU; loading it never runs code that a file brings.

    With `is_divided` tensors that lie in several files are `Pieces`, of which a process reads its rows alone; the files
    are then believed to be whole, which somebody must have seen to.
    """
    file = Path(path)
    if not file.exists():
        raise ValueError(f"{file}: no such checkpoint")
    if not is_divided and not is_whole(file):
        raise ValueError(f"{file}: damaged, or not a checkpoint")
    if file.is_dir():
        common = read_pickle(file / parts.COMMON_FILE, label=f"{file}")
        with content_of(file, remedy=REMEDY):
            pieces = [read_pickle(file / name, label=f"{file}", is_mapped=True) for name in common["parts"]]
            state = parts.put_together(common["state"], pieces)
            state = state if is_divided else parts.make_whole(state)
    else:
        state = read_pickle(file, label=f"{file}")
    if not isinstance(state, dict):
        raise ValueError(f"{file}: holds a {type(state).__name__} where a checkpoint was expected")
    return state


def load_run_state(path: Path, *, num_stages: int, is_divided: bool = False) -> dict[str, Any]:
    """The state in a checkpoint of a run, all parts of which are there; `is_divided` as for `load_checkpoint`."""
    state = load_checkpoint(path, is_divided=is_divided)
    found = _STEP_NAME.fullmatch(path.name)
    check_content(state, file=path, num_stages=num_stages, number=None if found is None else int(found[1]))
    return state


def is_whole(path: Path, *, rank: int = 0, num_ranks: int = 1) -> bool:
    """Whether every byte of a file of torch.save is as it was written, by the sums in its archive; or of a folder.

    Where several processes ask, each answers for its share of the files.
    """
    if path.is_dir():
        settle(path)
        common = path / parts.COMMON_FILE
        if not is_whole(common):
            return False
        found, whole = parts.sizes_of(path), read_pickle(common, label=f"{path}")
        listed = whole.get("parts") if isinstance(whole, dict) else None
        return found == listed and all(is_whole(path / name) for name in list(found)[rank::num_ranks])
    return rank > 0 or is_whole_archive(path)


def check_plain(state: object, place: str = "state") -> None:
    """Refuse what loading without running code could not bring back, before anything is written."""
    if type(state) in _PLAIN:
        return
    if isinstance(state, Mapping) and type(state) in (dict, OrderedDict):
        for key, value in state.items():
            if type(key) not in (str, int):
                raise ValueError(f"{place}: keys of a checkpoint are strings or whole numbers, not {key!r}")
            check_plain(value, f"{place}[{key!r}]")
    elif isinstance(state, (list, tuple)) and type(state) in (list, tuple):  # a named tuple needs its class
        for index, value in enumerate(state):
            check_plain(value, f"{place}[{index}]")
    else:
        raise ValueError(
            f"{place} is a {type(state).__name__}: a checkpoint holds tensors, numbers, strings, dicts and lists"
        )
