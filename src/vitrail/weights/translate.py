"""From the official names and timm's to ours and back: renaming, and the few tensors that are cut differently."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from vitrail.models.contract import Model
from vitrail.models.vit import ViTConfig
from vitrail.weights.parameter_names import RULES, TIMM, VITRAIL, Rule, find_rule

PER_CLASS_HEAD = re.compile(r"head\.(?P<index>\d+)\.(?P<part>weight|bias)")


@dataclass
class Translation:
    """A state dict under our names."""

    state: dict[str, Tensor] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)  # our name -> the source's
    unknown: list[str] = field(default_factory=list)  # the source's names that mean nothing to this model

    def add(self, name: str, value: Tensor, *, origin: str) -> None:
        self.state[name] = value
        self.origins[name] = origin


def rules_of(model: Model, dialect: str) -> tuple[Rule, ...]:
    """The names a dialect has for the parameters of this model; none where it has no such family."""
    is_parallel = isinstance(model.config, ViTConfig) and model.config.num_branches > 1
    return RULES.get((dialect, "parallel_vit" if dialect == TIMM and is_parallel else model.family), ())


def tokens_name(model: Model) -> str:
    """Where our model keeps its special tokens."""
    return "tokens" if model.family == "vit" else "class_stage.tokens"


def translate_to_ours(
    state: Mapping[str, Tensor], model: Model, *, dialect: str, grid: tuple[int, int] | None
) -> Translation:
    """Rename a source's tensors; `grid` is that of its patches, where known."""
    result = Translation()
    if model.foreign is not None:
        prefix = "" if dialect == VITRAIL else f"{model.foreign}."
        for name, value in state.items():
            result.add(prefix + name, value, origin=name)
        return result
    if dialect == VITRAIL:
        for name, value in state.items():
            result.add(name, value, origin=name)
        return result
    remaining = dict(state)
    take_positions(remaining, result, model, grid)
    take_tokens(remaining, result, model)
    if model.family == "patchconvnet":
        take_per_class_head(remaining, result)
    rules = rules_of(model, dialect)
    for name, value in remaining.items():
        found = find_rule(name, rules, to_ours=True)
        if found is None or found[0] in result.state:
            result.unknown.append(name)
        else:
            result.add(found[0], without_ones(value, found[1]), origin=name)
    return result


def translate_to_timm(model: Model) -> dict[str, Tensor]:
    """Our tensors under timm's names, for a model that timm has."""
    state = dict(model.state_dict())
    result: dict[str, Tensor] = {}
    tokens = state.pop(tokens_name(model), None)
    if tokens is not None:
        result["cls_token"] = tokens[:, :1]
        if tokens.shape[1] == 2:
            result["dist_token"] = tokens[:, 1:]
    positions = [state.pop(f"positions.{name}", None) for name in ("tokens", "patches")]
    if positions[1] is not None:
        result["pos_embed"] = torch.cat([part for part in positions if part is not None], dim=1)
    rules = rules_of(model, TIMM)
    for name, value in state.items():
        found = find_rule(name, rules, to_ours=False)
        assert found is not None, f"{name} has no name in timm"
        before, after = found[1].ones
        result[found[0]] = value.reshape((1,) * before + tuple(value.shape) + (1,) * after)
    return {name: value.detach().clone() for name, value in result.items()}


def without_ones(value: Tensor, rule: Rule) -> Tensor:
    """The tensor without the dimensions of size one that only their tensor has."""
    before, after = rule.ones
    shape = tuple(value.shape)
    kept = shape[before : len(shape) - after]
    return value.reshape(kept) if shape == (1,) * before + kept + (1,) * after else value


def take_positions(state: dict[str, Tensor], result: Translation, model: Model, grid: tuple[int, int] | None) -> None:
    """Take the positions from `pos_embed`: the patches', in DeiT after those of the special tokens."""
    if "pos_embed" not in state:
        return
    positions = state.pop("pos_embed")
    if positions.ndim != 3:
        result.add("positions.patches", positions, origin="pos_embed")
        return
    num_tokens = sum(state[name].shape[1] for name in ("cls_token", "dist_token") if has_tokens(state, name))
    num_before = positions_before_patches(positions.shape[1], num_tokens, model, grid)
    if num_before:
        result.add("positions.tokens", positions[:, :num_before], origin="pos_embed")
    result.add("positions.patches", positions[:, num_before:], origin="pos_embed")


def positions_before_patches(length: int, num_tokens: int, model: Model, grid: tuple[int, int] | None) -> int:
    """How many of `length` positions belong to special tokens: all of a ViT's tokens have one, or none has.

    What is left is the grid the source tells, else a square, else what this model has.
    """
    if not isinstance(model.config, ViTConfig):
        return 0
    rows, columns = model.grid or (0, 0)
    if grid is not None:
        return num_tokens if length - num_tokens == grid[0] * grid[1] else 0
    if length == rows * columns and not model.config.class_position:
        return 0
    squares = [count for count in (num_tokens, 0) if square_side(length - count)]
    if squares:
        return squares[0]
    return num_tokens if length - num_tokens == rows * columns else 0


def square_side(count: int) -> int | None:
    """The side of a square of `count` patches, None where there is none."""
    side = math.isqrt(max(count, 0))
    return side if side and side * side == count else None


def take_tokens(state: dict[str, Tensor], result: Translation, model: Model) -> None:
    """Take the special tokens: the class token, then the distillation token."""
    names = [name for name in ("cls_token", "dist_token") if has_tokens(state, name, like="cls_token")]
    if names:
        result.add(tokens_name(model), torch.cat([state.pop(name) for name in names], dim=1), origin=names[0])


def has_tokens(state: Mapping[str, Tensor], name: str, *, like: str | None = None) -> bool:
    """Whether `name` holds tokens [1, number, dim], of the same width as `like`."""
    if name not in state or state[name].ndim != 3:
        return False
    return like is None or like not in state or state[name].shape[::2] == state[like].shape[::2]


def take_per_class_head(state: dict[str, Tensor], result: Translation) -> None:
    """Take the head per class: one linear layer of one output a class there, one matrix here."""
    found: dict[str, dict[int, str]] = {"weight": {}, "bias": {}}
    for name in state:
        match = PER_CLASS_HEAD.fullmatch(name)
        if match and state[name].shape[:1] == (1,):
            found[match["part"]][int(match["index"])] = name
    for part, names in found.items():
        values = [state[names[index]] for index in sorted(names)]
        if values and sorted(names) == list(range(len(names))) and len({value.shape for value in values}) == 1:
            for name in names.values():
                del state[name]
            result.add(f"head.{part}", torch.cat(values), origin=f"head.0.{part}")
