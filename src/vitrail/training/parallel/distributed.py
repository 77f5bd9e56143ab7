"""Processes that train together: the only place that reads rank and world size."""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from vitrail.data.sampler import Ranks
from vitrail.training.parallel.launch import LOST_OTHERS, stop_with_launcher

_PATIENCE = timedelta(seconds=60)  # of the main process, at the end
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
        """This process among all, as samplers take it."""
        return Ranks(self.rank, self.num_ranks)

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over all processes, in place."""
        if self.num_ranks > 1:
            sent = tensor.to(_collective_device())  # NCCL takes nothing from the CPU
            dist.all_reduce(sent)
            tensor.copy_(sent)
        return tensor

    def any(self, *flags: bool) -> list[bool]:
        """For each flag, whether it is true in any process: what one decides, all do."""
        return [bool(vote) for vote in self.largest(*flags)]

    def largest(self, *numbers: int) -> list[int]:
        """For each whole number, the largest that any process has."""
        if self.num_ranks == 1:
            return list(numbers)
        sent = torch.tensor(numbers, dtype=torch.int64, device=_collective_device())
        dist.all_reduce(sent, op=dist.ReduceOp.MAX)
        return sent.tolist()

    def share(self, value: Any) -> Any:
        """The main process's value, in every process."""
        if self.num_ranks == 1:
            return value
        holder = [value]
        dist.broadcast_object_list(holder, src=0)
        return holder[0]

    def share_buffers(self, model: nn.Module) -> None:
        """Give every process the main one's running statistics."""
        if self.num_ranks > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, src=0)

    def gather(self, value: Any) -> list[Any]:
        """Every process's value, in the order of ranks."""
        values = [value]
        if self.num_ranks > 1:
            values = [None] * self.num_ranks
            dist.all_gather_object(values, value)
        return values


@contextlib.contextmanager
def joined_world(
    device: torch.device, *, timeout: timedelta = _TIMEOUT, backend: str | None = None
) -> Iterator[tuple[World, torch.device]]:
    """The processes that torchrun (or `devices=`) has started, or this one alone; with this process's own device.

    `timeout` is how long they wait for each other; the backend follows from the device, unless it is given.
    """
    if "RANK" not in os.environ:
        yield World(), device
        return
    world = read_world(os.environ)
    stop_with_launcher()
    if device.type == "cuda":
        device = torch.device("cuda", choose_gpu(world.local_rank, torch.cuda.device_count()))
        torch.cuda.set_device(device)
    backend = backend or ("nccl" if device.type == "cuda" else "gloo")
    try:
        dist.init_process_group(backend, timeout=timeout)
        yield world, device
    except RuntimeError as error:
        if not is_lost_connection(error):
            raise
        reason = str(error).strip().partition("\n")[0]
        print(f"vitrail: rank {world.rank} lost the others ({reason})", file=sys.stderr)
        raise SystemExit(LOST_OTHERS) from None
    except SystemExit as end:
        if not end.code:  # its work is done, and the main process has more
            _let_others_leave(world)
        raise
    # After an error the others may wait for this process in something else: its end is what tells them.
    _let_others_leave(world)
    dist.destroy_process_group()


def _let_others_leave(world: World) -> None:
    """The main process goes last: another may still be reading what it sent in the last collective."""
    store = dist.distributed_c10d._get_default_store()
    names = [f"vitrail/left/{rank}" for rank in range(1, world.num_ranks)]
    with contextlib.suppress(RuntimeError):  # all work is done: nothing depends on it
        if not world.is_main:
            store.set(names[world.rank - 1], "")
        elif names:
            store.wait(names, _PATIENCE)


def read_world(environment: Mapping[str, str]) -> World:
    """This process among the others, by what torchrun and its like set."""
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    if missing := [name for name in names if not environment.get(name)]:
        raise ValueError(
            f"RANK is set in the environment and {', '.join(missing)} is not: processes that train together need "
            f"{', '.join(names)}, as torchrun sets them; unset RANK to train in one process"
        )
    numbers = {name: environment.get(name, "0") for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT")}
    for name, text in numbers.items():
        if not (text.isascii() and text.isdigit()):
            raise ValueError(f"{name} is {text!r} in the environment: it must be a whole number")
    rank, num_ranks, local_rank, _ = map(int, numbers.values())
    if rank >= num_ranks:
        raise ValueError(
            f"RANK is {rank} in the environment and WORLD_SIZE {num_ranks}: ranks go from 0 to {num_ranks - 1}"
        )
    return World(rank, num_ranks, local_rank)


def choose_gpu(local_rank: int, num_gpus: int) -> int:
    """A GPU for each process of this machine; Slurm may show each of its tasks only the task's own."""
    if num_gpus == 1 and "SLURM_LOCALID" in os.environ:
        return 0
    if local_rank >= num_gpus:
        raise ValueError(f"there are {num_gpus} GPUs on this machine, too few for its processes: lower devices")
    return local_rank


def is_lost_connection(error: RuntimeError) -> bool:
    """Whether an error of a collective means that another process is gone; gloo has no class for its own."""
    return isinstance(error, dist.DistError) or "gloo" in str(error)


def distribute(model: nn.Module, world: World, device: torch.device) -> nn.Module:
    """The model whose gradients are averaged over all processes; one that is sharded does that itself."""
    if world.num_ranks == 1 or isinstance(model, FSDPModule):
        return model
    device_ids = [device.index] if device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=device_ids, gradient_as_bucket_view=True)


@contextlib.contextmanager
def local_gradients(model: nn.Module, *, is_last: bool) -> Iterator[None]:
    """Gradients stay in this process, but for the last micro-batch of a step."""
    model = getattr(model, "_orig_mod", model)  # where torch.compile keeps it
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(is_last)
        model.set_is_last_backward(is_last)
    elif isinstance(model, DistributedDataParallel) and not is_last:
        with model.no_sync():
            yield
        return
    yield


def _collective_device() -> torch.device:
    is_nccl = dist.get_backend() == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if is_nccl else torch.device("cpu")
