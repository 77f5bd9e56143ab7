"""Checkpoints of sharded runs: a folder in which every process has written its own part, and what all have in common.

Nothing is gathered to write one, so that it takes no more memory than the run and the time of one process's part. The
parts in the order of ranks, put together, are the whole tensors: any number of processes can go on from it, and each
reads of every file the rows that it needs. It is made of files of torch.save, which are read without running code.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from vitrail.storage import replacing_files
from vitrail.storage.whole import link_or_copy

SUFFIX = ".parts"
FAILED = ".failed"  # of a file that stands for a part that could not be written
COMMON_FILE = "common.pt"
_DIVIDED = "divided tensor"  # the only key of what stands for one in the common file


def part_file(rank: int) -> str:
    """The name of a process's part."""
    return f"rank_{rank:05d}.pt"


def take_apart(state: Any, parts: dict[str, Tensor], path: str = "") -> Any:
    """The state without its divided tensors, whose local parts are put into `parts` under their path."""
    if isinstance(state, DTensor):
        assert list(state.placements) == [Shard(0)], "FSDP2 divides by rows"
        parts[path] = state.to_local().detach().cpu()
        return {_DIVIDED: path}
    if isinstance(state, Mapping):
        return {key: take_apart(value, parts, f"{path}/{key}") for key, value in state.items()}
    if isinstance(state, list):
        return [take_apart(value, parts, f"{path}/{place}") for place, value in enumerate(state)]
    return state


class Pieces:
    """A tensor whose rows lie in several files, which are read when they are asked for."""

    def __init__(self, pieces: Sequence[Tensor]) -> None:
        self._pieces = list(pieces)
        self.shape = torch.Size([sum(len(piece) for piece in pieces), *pieces[0].shape[1:]])
        if any(piece.shape[1:] != self.shape[1:] or piece.dtype != pieces[0].dtype for piece in pieces):
            raise ValueError("its parts do not fit each other")

    def rows(self, start: int, stop: int) -> Tensor:
        """A copy of some rows; no other is read."""
        found, first = [], 0
        for piece in self._pieces:
            own = piece[max(0, start - first) : max(0, min(stop - first, len(piece)))]
            if len(own):
                found.append(own)
            first += len(piece)
        return torch.cat(found) if found else self._pieces[0][:0].clone()

    def whole(self) -> Tensor:
        """A copy of all rows."""
        return torch.cat(self._pieces)


def make_whole(state: Any) -> Any:
    """A state with all its divided tensors read."""
    if isinstance(state, Pieces):
        return state.whole()
    if isinstance(state, Mapping):
        return {key: make_whole(value) for key, value in state.items()}
    return [make_whole(value) for value in state] if isinstance(state, list) else state


def put_together(state: Any, parts: list[Mapping[str, Tensor]]) -> Any:
    """The state, from what is common and all parts in the order of ranks, whose tensors are not read yet."""
    if isinstance(state, Mapping):
        if set(state) == {_DIVIDED}:
            return Pieces([part[state[_DIVIDED]] for part in parts])
        return {key: put_together(value, parts) for key, value in state.items()}
    return [put_together(value, parts) for value in state] if isinstance(state, list) else state


def sizes_of(folder: Path) -> dict[str, int]:
    """The parts in a folder and their bytes."""
    return {path.name: path.stat().st_size for path in sorted(folder.glob("rank_*.pt"))}


def link_folder(source: Path, target: Path) -> None:
    """A second folder of the same files, in place of what was there; copies where the file system has no links."""
    with replacing_files(target, keeps_others=False) as draft:
        for path in source.iterdir():
            link_or_copy(path, draft / path.name)
