"""Processes that train together: the only place that reads rank and world size."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vitrail.data.sampler import Ranks

_TIMEOUT = timedelta(minutes=15)  # of a collective: a rank that has died shows by then


@dataclass(frozen=True)
class World:
    """This process among those that train together."""

    rank: int = 0
    num_ranks: int = 1
    local_rank: int = 0  # among those on this machine

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes files and speaks."""
        return self.rank == 0

    @property
    def ranks(self) -> Ranks:
        """For samplers."""
        return Ranks(self.rank, self.num_ranks)

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.num_ranks > 1:
            dist.all_reduce(tensor)
        return tensor

    def any(self, *flags: bool) -> list[bool]:
        """For each flag, whether it is true in any process: what one decides, all do."""
        if self.num_ranks == 1:
            return list(flags)
        votes = torch.tensor(flags, dtype=torch.int32, device=_collective_device())
        dist.all_reduce(votes, op=dist.ReduceOp.MAX)
        return [bool(vote) for vote in votes.tolist()]

    def share(self, value: Any) -> Any:
        """The main process's value, in every process."""
        if self.num_ranks == 1:
            return value
        holder = [value]
        dist.broadcast_object_list(holder, src=0)
        return holder[0]

    def gather(self, value: Any) -> list[Any]:
        """Every process's value, in the order of ranks."""
        values = [value]
        if self.num_ranks > 1:
            values = [None] * self.num_ranks
            dist.all_gather_object(values, value)
        return values


@contextlib.contextmanager
def joined_world(device: torch.device) -> Iterator[tuple[World, torch.device]]:
    """The processes that torchrun (or `devices=`) has started, or this one alone; with this process's own device."""
    if "RANK" not in os.environ:
        yield World(), device
        return
    world = World(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), int(os.environ.get("LOCAL_RANK", "0")))
    if device.type == "cuda":
        device = torch.device("cuda", world.local_rank)
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=_TIMEOUT)
    try:
        yield world, device
    finally:
        dist.destroy_process_group()


def distribute(model: nn.Module, world: World, device: torch.device) -> nn.Module:
    """The model whose gradients are averaged over all processes."""
    if world.num_ranks == 1:
        return model
    device_ids = [device.index] if device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=device_ids, gradient_as_bucket_view=True)


@contextlib.contextmanager
def local_gradients(model: nn.Module, *, is_last: bool) -> Iterator[None]:
    """Gradients stay in this process, but for the last micro-batch of a step."""
    if is_last or not isinstance(model, DistributedDataParallel):
        yield
    else:
        with model.no_sync():
            yield


def _collective_device() -> torch.device:
    is_nccl = dist.get_backend() == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if is_nccl else torch.device("cpu")
