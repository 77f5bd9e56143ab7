"""Batch normalisation by the statistics of the images of all processes, on GPUs and CPUs (thesis 5.2.1)."""

from typing import Any

import torch
import torch.distributed as dist
from timm.layers import BatchNormAct2d
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules._functions import SyncBatchNorm
from torch.nn.modules.batchnorm import _BatchNorm


def synchronize_statistics(model: nn.Module) -> None:
    """From now on have batch normalisation in training count the images of all processes.

    Each layer stays what it is, with its names and weights: only what it computes in training is another function. In
    evaluation mode nothing is exchanged. A layer with a way of its own to compute is left alone.
    """
    for module in model.modules():
        if isinstance(module, _BatchNorm) and type(module).forward in (_BatchNorm.forward, BatchNormAct2d.forward):
            module.forward = _forward.__get__(module)  # type: ignore[method-assign]


def is_synchronized(model: nn.Module) -> bool:
    """Whether processes talk to each other in a forward pass of a model in training."""
    return any(isinstance(module, _BatchNorm) and "forward" in vars(module) for module in model.modules())


@torch.compiler.disable  # collectives inside a function of autograd are not compiled
def _forward(module: Any, x: Tensor) -> Tensor:
    """What `forward` is to a synchronised batch normalisation."""
    if not module.training:
        return type(module).forward(module, x)
    module._check_input_dim(x)
    momentum, running_mean, running_var = module.momentum, module.running_mean, module.running_var
    if running_mean is not None:
        module.num_batches_tracked.add_(1)
        momentum = 1.0 / module.num_batches_tracked.item() if momentum is None else momentum
    arguments = (x, module.weight, module.bias, running_mean, running_var, module.eps, momentum)
    if x.device.type == "cpu":
        x = _Normalize.apply(*arguments)
    else:  # torch's own is faster, and takes nothing from the CPU
        x = SyncBatchNorm.apply(*arguments, dist.group.WORLD, dist.get_world_size())
    return module.act(module.drop(x)) if isinstance(module, BatchNormAct2d) else x


class _Normalize(torch.autograd.Function):
    """(x - mean) / deviation * weight + bias, with mean and deviation per channel over all processes.

    The gradients of weight and bias are of this process's images: those of all are summed as for any parameter.
    """

    @staticmethod
    def forward(
        context: Any,
        x: Tensor,  # [batch, channels, ...]
        weight: Tensor | None,
        bias: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        eps: float,
        momentum: float,
    ) -> Tensor:
        values = x.float()
        count = x.numel() // x.shape[1]
        variance, mean = torch.var_mean(values, dim=_all_but_channels(x), correction=0)
        own = torch.cat([mean, variance, mean.new_tensor([count])])
        everyone = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, own)
        means, variances, counts = torch.stack(everyone).split([x.shape[1], x.shape[1], 1], dim=1)
        total = counts.sum()
        mean = (means * counts).sum(dim=0) / total
        variance = ((variances + (means - mean).square()) * counts).sum(dim=0) / total
        if running_mean is not None and running_var is not None:
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            running_var.lerp_((variance * total / (total - 1)).to(running_var.dtype), momentum)
        scale = (variance + eps).rsqrt()
        context.save_for_backward(x, weight, mean, scale, total)
        result = (values - _shaped(mean, x)) * _shaped(scale, x)
        if weight is not None:
            result = result * _shaped(weight, x)
        if bias is not None:
            result = result + _shaped(bias, x)
        return result.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, scale, total = context.saved_tensors
        normalized = (x.float() - _shaped(mean, x)) * _shaped(scale, x)
        gradient = gradient.float()
        of_bias = gradient.sum(dim=_all_but_channels(x))
        of_weight = (gradient * normalized).sum(dim=_all_but_channels(x))
        of_x = None
        if context.needs_input_grad[0]:
            sums = torch.stack([of_bias, of_weight])
            dist.all_reduce(sums)
            through_mean, through_scale = sums / total
            of_x = gradient - _shaped(through_mean, x) - normalized * _shaped(through_scale, x)
            of_x = (of_x * _shaped(scale if weight is None else scale * weight, x)).to(x.dtype)
        needs_weight, needs_bias = context.needs_input_grad[1:3]
        return of_x, of_weight if needs_weight else None, of_bias if needs_bias else None, None, None, None, None


def _all_but_channels(x: Tensor) -> list[int]:
    return [dim for dim in range(x.ndim) if dim != 1]


def _shaped(statistic: Tensor, x: Tensor) -> Tensor:
    """A number per channel, beside the tensor it belongs to."""
    return statistic.view(-1, *[1] * (x.ndim - 2))
