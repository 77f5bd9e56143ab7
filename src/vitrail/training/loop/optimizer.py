"""Optimizers of the papers and the groups of parameters they treat alike: decay or none, and the layer."""

import math
from dataclasses import dataclass
from typing import Any

import timm.optim
import torch

from vitrail.models.contract import Model

OPTIMIZERS = ("adamw", "lamb", "sgd")
EPSILONS = {"adamw": 1e-8, "lamb": 1e-6}
# Devices on which torch updates all parameters in one kernel; on a CPU that is several times faster too.
FUSED_DEVICES = ("cpu", "cuda", "mps", "xpu")


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """What to optimize with. A setting that the optimizer doesn't have is an error."""

    name: str = "adamw"  # one of OPTIMIZERS
    lr: float = 1e-3
    weight_decay: float = 0.05  # of matrices and kernels; the rest is never decayed
    betas: tuple[float, float] | None = None  # adamw and lamb; None: 0.9 and 0.999
    eps: float | None = None  # adamw and lamb; None: 1e-8 and 1e-6
    momentum: float | None = None  # sgd, Nesterov's; None: 0.9
    layer_decay: float = 1.0  # the head learns at lr, each layer below at this times the one above it

    def __post_init__(self) -> None:
        if self.name not in OPTIMIZERS:
            raise ValueError(f"optimizer must be one of {', '.join(OPTIMIZERS)}, not {self.name!r}")
        for field in ("lr", "weight_decay"):
            if not 0.0 <= getattr(self, field) < math.inf:
                raise ValueError(f"{field} must be a finite number of at least 0, not {getattr(self, field)!r}")
        if not 0.0 < self.layer_decay <= 1.0:
            raise ValueError(f"layer_decay must be above 0 and at most 1 (no decay), not {self.layer_decay!r}")
        for field in ("betas", "eps") if self.name == "sgd" else ("momentum",):
            if getattr(self, field) is not None:
                raise ValueError(f"{self.name} has no setting {field}: leave it out")
        if self.betas is not None and not (len(self.betas) == 2 and all(0.0 <= beta < 1.0 for beta in self.betas)):
            raise ValueError(f"betas must be two numbers in [0, 1), e.g. 0.9 and 0.999, not {self.betas!r}")
        if self.eps is not None and not 0.0 < self.eps < math.inf:
            raise ValueError(f"eps must be a finite number above 0, not {self.eps!r}")
        if self.momentum is not None and not 0.0 < self.momentum < 1.0:
            raise ValueError(f"momentum must be between 0 and 1, not {self.momentum!r}")


def make_optimizer(model: Model, settings: OptimizerSettings) -> torch.optim.Optimizer:
    """The optimizer of all parameters of a model that are not frozen, in the groups of `parameter_groups`.

    Give it the bare model, on its device: wrappers change names. Gradients are clipped by the caller, LAMB's too.
    """
    groups = parameter_groups(model, settings)
    if settings.name == "lamb":
        return timm.optim.Lamb(
            groups,
            lr=settings.lr,
            betas=settings.betas or (0.9, 0.999),
            eps=settings.eps or EPSILONS["lamb"],
            max_grad_norm=None,
        )
    devices = {parameter.device.type for group in groups for _, parameter in group["params"]}
    fused = devices <= set(FUSED_DEVICES)
    if settings.name == "sgd":
        return torch.optim.SGD(groups, lr=settings.lr, momentum=settings.momentum or 0.9, nesterov=True, fused=fused)
    return torch.optim.AdamW(
        groups, lr=settings.lr, betas=settings.betas or (0.9, 0.999), eps=settings.eps or EPSILONS["adamw"], fused=fused
    )


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of the head; each group follows by its own factor `lr_scale`."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_scale"]


def parameter_groups(model: Model, settings: OptimizerSettings) -> list[dict[str, Any]]:
    """Parameters that share decay and learning rate, lowest layer first, each group with a readable `name`.

    Names are "decay" and "no_decay", with layer-wise decay "layer_00.decay" and so on up to the head's layer.
    """
    layers = model.parameter_layers() if settings.layer_decay < 1.0 else {}
    num_layers = 1 + max(layers.values(), default=0)
    undecayed = model.undecayed()
    width = max(2, len(str(num_layers - 1)))  # of the numbers in names, so that they sort
    groups: dict[str, dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        layer, is_decayed = layers.get(name, 0), name not in undecayed
        group_name = "decay" if is_decayed else "no_decay"
        if num_layers > 1:
            group_name = f"layer_{layer:0{width}d}.{group_name}"
        lr_scale = settings.layer_decay ** (num_layers - 1 - layer)
        group = groups.setdefault(
            group_name,
            {
                "name": group_name,
                "params": [],
                "lr": settings.lr * lr_scale,
                "lr_scale": lr_scale,
                "weight_decay": settings.weight_decay if is_decayed else 0.0,
            },
        )
        group["params"].append((name, parameter))
    if not groups:
        raise ValueError("every parameter of the model is frozen: there is nothing to train")
    return [groups[name] for name in sorted(groups)]
