"""Optimizers by name: those of the papers, torch's Muon, all of timm's factory, and a user's own."""

import difflib
import importlib.util
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import timm.optim
import torch

from vitrail.models.contract import AnyModel
from vitrail.settings.learning import OptimizerSettings
from vitrail.settings.own import is_own, load_own
from vitrail.training.loop.muon import MuonWithAdamW
from vitrail.training.loop.parameter_groups import HIDDEN, hidden_weights, parameter_groups

# Devices on which torch updates all parameters in one kernel; on a CPU that is several times faster too.
FUSED_DEVICES = ("cpu", "cuda", "mps", "xpu")
_FIXED = ("params", "groups", "lr", "weight_decay")  # decided by the groups of parameters
_REFUSALS = (TypeError, ValueError, AssertionError)  # what constructors raise for a wrong value


@dataclass(frozen=True)
class FoundOptimizer:
    """What a name stands for."""

    name: str
    make: Callable[..., torch.optim.Optimizer]
    defaults: Mapping[str, Any] = field(default_factory=dict)  # in the place of its own
    is_fused: bool = False  # whether torch has one kernel for all parameters
    hidden_axes: tuple[int, ...] = ()  # a Muon: weights of so many axes between stem and head are treated in its way

    @cached_property
    def takes(self) -> dict[str, inspect.Parameter]:
        """The optimizer's arguments beside the parameters, their learning rate and their weight decay."""
        return {name: one for name, one in inspect.signature(self.make).parameters.items() if name not in _FIXED}

    @property
    def num_betas(self) -> int | None:
        """How many betas the optimizer has; None: it does not say."""
        default = self.defaults.get("betas", self.takes["betas"].default)
        return len(default) if isinstance(default, tuple) else None

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Refuse arguments that the optimizer does not take, where the settings could not tell."""
        if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in self.takes.values()):
            return
        if unknown := [name for name in arguments if name not in self.takes]:
            raise ValueError(
                f"optimizer {self.name} does not take {', '.join(unknown)}; it takes {', '.join(self.takes)}"
            )


class MomentumSGD(torch.optim.SGD):
    """SGD whose fused step also takes parameters that get gradients later than others, as DINO's prototypes do."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            learning = [parameter for parameter in group["params"] if parameter.grad is not None]
            new = [one for one in learning if self.state[one].get("momentum_buffer") is None]
            if group["momentum"] and group["dampening"] == 0 and 0 < len(new) < len(learning):
                for parameter in new:  # from 0 its first momentum is its first gradient, as torch has it
                    self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        return super().step(closure)


# The papers' and torch's own. Gradients are clipped by the loop, LAMB's too.
_OURS = {
    "adamw": FoundOptimizer("adamw", torch.optim.AdamW, {"betas": (0.9, 0.999), "eps": 1e-8}, is_fused=True),
    "lamb": FoundOptimizer("lamb", timm.optim.Lamb, {"betas": (0.9, 0.999), "eps": 1e-6, "max_grad_norm": None}),
    "sgd": FoundOptimizer("sgd", MomentumSGD, {"momentum": 0.9, "nesterov": True}, is_fused=True),
    "adagrad": FoundOptimizer("adagrad", torch.optim.Adagrad),
    "torch_muon": FoundOptimizer("torch_muon", MuonWithAdamW, hidden_axes=(2,)),
}


def list_optimizers() -> dict[str, str]:
    """The names that can run here, and what each is."""
    described = dict(timm.optim.list_optimizers(with_description=True)) | {
        "torch_muon": "torch.optim.Muon for matrices inside the model, AdamW for all others"
    }
    return {name: described[name] for name in sorted(described) if _lack_of(name) is None}


def find_optimizer(name: str) -> FoundOptimizer:
    """What a name stands for; a ValueError that says why where it can't be had."""
    if is_own(name):
        return FoundOptimizer(name, load_own(name, what="optimizer"))
    known = {*timm.optim.list_optimizers(), *_OURS}
    if name not in known:
        near = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)
        hint = f"did you mean {', '.join(near)}?" if near else "`vitrail recipes optimizers` lists them all"
        raise ValueError(f"there is no optimizer of that name; {hint}")
    if (lack := _lack_of(name)) is not None:
        raise ValueError(lack)
    if name in _OURS:
        return _OURS[name]
    info, make = timm.optim.get_optimizer_info(name), timm.optim.get_optimizer_class(name, bind_defaults=False)
    defaults = dict(info.defaults or {})
    if info.has_momentum:
        defaults.setdefault("momentum", 0.9)  # as timm's factory has it
    if make is timm.optim.Lamb:
        defaults["max_grad_norm"] = None
    is_muon = make is getattr(timm.optim, "Muon", None)
    return FoundOptimizer(name, make, defaults, hidden_axes=(2, 3, 4) if is_muon else ())


def build_optimizer(model: AnyModel, settings: OptimizerSettings, *, lr: float) -> torch.optim.Optimizer:
    """The optimizer of all parameters of a model that are not frozen, in the groups of `parameter_groups`.

    Give it the bare model, on its device: wrappers change names. Gradients are clipped by the caller.
    """
    found = find_optimizer(settings.name)
    given = {name: getattr(settings, name) for name in ("betas", "eps", "momentum", "nesterov")}
    arguments = {name: value for name, value in given.items() if value is not None} | settings.options
    found.check(arguments)
    groups = parameter_groups(
        model,
        lr=lr,
        weight_decay=settings.weight_decay,
        layer_decay=settings.layer_decay,
        is_hidden=hidden_weights(model, axes=found.hidden_axes) if found.hidden_axes else None,
    )
    if found.hidden_axes:
        for group in groups:
            group["use_fallback"] = not group["name"].endswith(HIDDEN)
    if found.is_fused and "fused" not in arguments:
        devices = {parameter.device.type for group in groups for _, parameter in group["params"]}
        arguments["fused"] = devices <= set(FUSED_DEVICES)
    try:
        optimizer = found.make(groups, lr=lr, **{**found.defaults, **arguments})
    except _REFUSALS as error:
        raise ValueError(f"optimizer {found.name}: {' '.join(str(error).split())}") from error
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(f"optimizer {found.name} must be a torch.optim.Optimizer, not a {type(optimizer).__name__}")
    _keep_types_out_of_state(optimizer)
    return optimizer


def _lack_of(name: str) -> str | None:
    """Why an optimizer can't run here; None: it can."""
    if name == "torch_muon":
        return None if hasattr(torch.optim, "Muon") else "torch_muon needs torch 2.9 or later"
    info = timm.optim.get_optimizer_info(name)
    if isinstance(info.opt_class, str):
        package = info.opt_class.partition(".")[0]
        if importlib.util.find_spec(package) is None or not torch.cuda.is_available():
            return f"{name} needs an NVIDIA GPU and the package {package}"
    elif info.second_order:
        return f"{name} needs second derivatives, which training does not compute"
    elif info.opt_class.__name__ == "Kron" and importlib.util.find_spec("opt_einsum") is None:
        return f"{name} needs the package opt_einsum, without which its products do not fit into memory"
    return None


def _keep_types_out_of_state(optimizer: torch.optim.Optimizer) -> None:
    """Leave a group's types of numbers out of its state: checkpoints hold none, and they are the optimizer's choice."""
    types = {key: value for key, value in optimizer.defaults.items() if isinstance(value, torch.dtype)}
    if not types:
        return

    def leave_out(_: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        for group in state["param_groups"]:
            for key in types:
                group.pop(key, None)

    def put_back(_: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        return {**state, "param_groups": [{**types, **group} for group in state["param_groups"]]}

    optimizer.register_state_dict_post_hook(leave_out)
    optimizer.register_load_state_dict_pre_hook(put_back)
