"""Models in parts, one a process (FSDP2), for those that do not fit one device; and their state made whole again.

What a checkpoint of a sharded run holds is the same as of any other (divided_checkpoint.py), so that a run goes on
with any number of processes, sharded or not.
"""

import math
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.modules.batchnorm import _BatchNorm

from vitrail.training.parallel.distributed import World

_NOTHING = torch.empty(0)  # in the place of a tensor that a model has not: what is wrong is told by who loads
_UNDIVIDED = ("Adafactor", "AdafactorBigVision", "Kron")


def shard(model: nn.Module, *, world: World, device: torch.device, dtype: torch.dtype) -> None:
    """Leave each process its part of every parameter; a block is whole only while it computes."""
    if dtype == torch.float16:
        raise ValueError("sharding=full does not go with precision=fp16: use precision=bf16 or fp32")
    for name, parameter in model.named_parameters():
        if parameter.ndim == 0:
            raise ValueError(f"sharding=full needs parameters that can be divided, and {name} is a single number")
    mesh = init_device_mesh(device.type, (world.num_ranks,))
    for block in blocks_of(model):
        fully_shard(block, mesh=mesh, mp_policy=policy_of(block, device, dtype), reshard_after_forward=True)
    # The outermost part too is divided again after a forward pass: an evaluation has no backward pass that would.
    fully_shard(model, mesh=mesh, reshard_after_forward=True)


def policy_of(block: nn.Module, device: torch.device, dtype: torch.dtype) -> MixedPrecisionPolicy:
    """Have a block's parameters sent in bf16 where products are computed in it.

    What goes in stays as it is: LayerScale adds so little at first that a sum in bf16 would lose it. Such a mixture
    needs autocast to bring norms back to float32, which it does on GPUs, and not for batch norm.
    """
    is_mixed = dtype == torch.bfloat16 and device.type == "cuda"
    if not is_mixed or any(isinstance(part, _BatchNorm) for part in block.modules()):
        return MixedPrecisionPolicy(cast_forward_inputs=False)
    return MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)


def is_sharded(model: nn.Module) -> bool:
    """Whether a model has been divided."""
    return isinstance(model, FSDPModule)


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The blocks of the trunk, of the class stage and of timm's models, inner ones first."""
    lists = [part for name, part in model.named_modules() if name.split(".")[-1] == "blocks"]
    return [block for part in reversed(lists) for block in part.children()]


def whole(value: Any) -> Any:
    """A state with its divided tensors gathered to the CPU of every process, all of which take part."""
    if isinstance(value, DTensor):
        return value.full_tensor().detach().cpu()
    if isinstance(value, Mapping):
        return {key: whole(item) for key, item in value.items()}
    return [whole(item) for item in value] if isinstance(value, list) else value


class RowsInFiles(Protocol):
    """A tensor that lies in several files, of which rows can be read."""

    shape: torch.Size

    def rows(self, start: int, stop: int) -> Tensor:
        """A copy of some rows."""

    def whole(self) -> Tensor:
        """A copy of all rows."""


def divide(value: Tensor | RowsInFiles, *, like: Tensor) -> Tensor:
    """A process's part of a whole tensor where `like` is divided; anything else as it is, and whole."""
    if not isinstance(value, Tensor):
        if not isinstance(like, DTensor) or value.shape != like.shape:
            return value.whole()
        mesh = like.device_mesh
        start = mesh.get_local_rank() * -(-like.shape[0] // mesh.size())  # FSDP2 cuts rows as torch.chunk does
        own = value.rows(start, start + len(like.to_local())).to(like.device)
        return DTensor.from_local(own, like.device_mesh, like.placements, shape=like.shape, stride=like.stride())
    if not isinstance(like, DTensor) or value.shape != like.shape:
        return value
    # Every process has read the whole tensor, so nothing is sent.
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def load_parts(model: nn.Module, state: Mapping[str, Tensor | RowsInFiles]) -> None:
    """Give a divided model its part of the weights in a checkpoint, which each process reads by itself."""
    own = model.state_dict()
    model.load_state_dict({name: divide(value, like=own.get(name, _NOTHING)) for name, value in state.items()})


def load_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Go on from a whole state; how an update is computed stays this optimizer's own choice."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    own = [group.get("fused") for group in optimizer.param_groups]
    parts = {
        place: {
            key: divide(item, like=parameters[place]) if hasattr(item, "shape") else item for key, item in of.items()
        }
        for place, of in state["state"].items()
    }
    _check_fused(optimizer, state["state"])
    optimizer.load_state_dict({**state, "state": parts})
    for group, fused in zip(optimizer.param_groups, own, strict=True):
        if "fused" in group:
            group["fused"] = fused


def _check_fused(optimizer: torch.optim.Optimizer, state: Mapping[int, Mapping[str, Any]]) -> None:
    """Refuse moments of another shape than their parameter's: a fused update would write beyond them unasked."""
    fused = [group.get("fused") for group in optimizer.param_groups for _ in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for place, of in state.items():
        for key, item in of.items():
            shape = getattr(item, "shape", ())
            is_wrong = math.prod(shape) != 1 and shape != parameters[place].shape
            if fused[place] and is_wrong:
                raise ValueError(f"{key} of parameter {place} of the optimizer is {list(item.shape)}, not of its shape")


def divide_average(state: Mapping[str, Any], *, weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """The whole state of a moving average for averages that may be divided."""
    kept = state["weights"]
    parts = {name: divide(value, like=weights[name]) if name in weights else value for name, value in kept.items()}
    return {**state, "weights": parts}


def clip_gradients(model: nn.Module, limit: float | None) -> Tensor:
    """Scale the gradients down to a norm of `limit`, if there is one; the norm they had, over all processes."""
    norm = nn.utils.clip_grad_norm_(model.parameters(), limit or math.inf)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def use_divided_updates(optimizer: torch.optim.Optimizer) -> None:
    """Leave out fused SGD, which torch has not for divided parameters; refuse states that can't be divided."""
    if type(optimizer).__name__ in _UNDIVIDED:
        raise ValueError(f"sharding=full can't divide the state of {type(optimizer).__name__}: use another optimizer")
    if isinstance(optimizer, torch.optim.SGD):
        for group in optimizer.param_groups:
            group["fused"] = False
