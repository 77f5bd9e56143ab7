"""What is wrong with weights that do not fit a model, all of it in one message."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from vitrail.models.contract import Model

SHOWN = 12  # groups of names an error lists per kind


@dataclass
class Misfit:
    """Names that are in one place only, and names whose shapes differ."""

    unexpected: list[str] = field(default_factory=list)  # as the source names them
    missing: list[str] = field(default_factory=list)  # as the model names them
    misshapen: list[tuple[str, list[int], list[int]]] = field(default_factory=list)  # name, source's, model's shape
    hints: list[str] = field(default_factory=list)  # what to do

    def __bool__(self) -> bool:
        return bool(self.unexpected or self.missing or self.misshapen)

    def describe(self, title: str) -> str:
        """One line that names everything, and says first what to do where that is known."""
        kinds = (
            ("unexpected", [(name, "") for name in self.unexpected]),
            ("missing", [(name, "") for name in self.missing]),
            ("misshapen", [(name, f" {theirs} for {ours}") for name, theirs, ours in self.misshapen]),
        )
        found = [f"{len(names)} {kind}: {list_names(names)}" for kind, names in kinds if names]
        return f"{title}: {'; '.join([*self.hints, *found])}"


def list_names(names: Iterable[tuple[str, str]]) -> str:
    """Names with notes; those that differ in their block's number only are written once, blocks.0-11.attn.weight."""
    groups: dict[tuple[str, str, str], list[int]] = {}
    for name, note in names:
        parts = re.split(r"\.(\d+)\.", name, maxsplit=1)
        before, number, after = parts if len(parts) == 3 else (name, "-1", "")
        groups.setdefault((before, after, note), []).append(int(number))
    written = [
        (f"{before}.{write_numbers(numbers)}.{after}" if after else before) + note
        for (before, after, note), numbers in groups.items()
    ]
    rest = len(written) - SHOWN
    return ", ".join(written[:SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def write_numbers(numbers: Sequence[int]) -> str:
    """Numbers as ranges: 0, 1, 2, 5 -> "0-2,5"."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def find_hints(
    ours: Mapping[str, Tensor], wanted: Mapping[str, Tensor], model: Model, *, head: tuple[str, ...]
) -> list[str]:
    """What to do about the usual differences between the weights, under our names, and what the model wants."""
    return [*head_hints(ours, wanted, head), *size_hints(ours, wanted), *trait_hints(ours, wanted, model)]


def head_hints(ours: Mapping[str, Tensor], wanted: Mapping[str, Tensor], head: tuple[str, ...]) -> list[str]:
    """Hints about another number of classes, or another kind of head."""
    shapes = [{name: value.shape for name, value in state.items() if name.startswith(head)} for state in (ours, wanted)]
    for name, shape in shapes[0].items():
        if len(shape) == 2 and name in shapes[1] and shape[0] != shapes[1][name][0]:
            classes = f"the weights have {shape[0]} classes and the model {shapes[1][name][0]}"
            return [f"{classes}: pass reset_head=True to start a new head"]
    is_backbone = any(name.startswith("backbone.") for name in (*shapes[0], *shapes[1]))
    if shapes[0] != shapes[1] and (not shapes[0] or not shapes[1] or is_backbone):
        return ["the weights have another head: pass reset_head=True to start a new one"]
    return []


def size_hints(ours: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> list[str]:
    """Hints about settings that can be read from the shape of one tensor, and about the number of blocks."""
    pairs = {
        setting: [state[name].shape[dimension] for state in (ours, wanted) if has_dimension(state, name, dimension)]
        for setting, name, dimension in SIZES
    }
    pairs["depth"] = [
        len({name.split(".")[1] for name in state if name.startswith("blocks.")}) for state in (ours, wanted)
    ]
    stems = [{name for name in state if name.startswith("stem.")} for state in (ours, wanted)]
    if stems[0] != stems[1]:
        del pairs["patch_size"]
    return [
        f"the weights' {setting} is {sizes[0]} and the model's {sizes[1]}: create it with {setting}={sizes[0]}"
        for setting, sizes in pairs.items()
        if len(sizes) == 2 and sizes[0] != sizes[1] and all(sizes)
    ]


def has_dimension(state: Mapping[str, Tensor], name: str, dimension: int) -> bool:
    return name in state and state[name].ndim > dimension


def trait_hints(ours: Mapping[str, Tensor], wanted: Mapping[str, Tensor], model: Model) -> list[str]:
    """Hints about parts that only the weights or only the model has."""
    hints = []
    for trait in TRAITS:
        has, wants = trait.is_present(ours), trait.is_present(wanted)
        if has != wants and hasattr(model.config, trait.setting):
            have, lack = ("weights have", "model has") if has else ("model has", "weights have")
            value = trait.present if has else trait.absent
            hints.append(f"the {have} {trait.name} and the {lack} none: create it with {trait.setting}={value}")
    return hints


def count_tokens(state: Mapping[str, Tensor]) -> int:
    """The number of special tokens; those of one class each do not count."""
    tokens = state.get("tokens", state.get("class_stage.tokens"))
    return 0 if "head.weight" in state or tokens is None or tokens.ndim != 3 else tokens.shape[1]


def has_name(pattern: str) -> Callable[[Mapping[str, Tensor]], bool]:
    """A test of a state dict: whether one of its names matches the pattern."""
    return lambda state: any(re.fullmatch(pattern, name) for name in state)


@dataclass(frozen=True)
class Trait:
    """A part that a setting gives a model."""

    setting: str
    name: str
    is_present: Callable[[Mapping[str, Tensor]], bool]
    present: str = "True"  # the setting's value with the part
    absent: str = "False"


# Setting, the tensor that shows it and in which dimension.
SIZES = (
    ("in_channels", "stem.layers.0.weight", 1),
    ("patch_size", "stem.layers.0.weight", 2),
    ("dim", "norm.weight", 0),
)
TRAITS = (
    Trait("distilled", "a distillation token", lambda state: count_tokens(state) == 2),
    Trait("distilled", "a second head", lambda state: "head.distilled.weight" in state and count_tokens(state) < 2),
    Trait("classifier", "an MLP as classifier", has_name(r"head\.hidden\.weight"), "'mlp'", "'linear'"),
    Trait("class_position", "positions for special tokens", has_name(r"positions\.tokens")),
    Trait("positions", "positions", has_name(r"positions\.patches")),
    Trait("per_class_tokens", "a token per class", has_name(r"head\.weight")),
    Trait("qkv_bias", "biases of queries, keys and values", has_name(r"class_stage\..*\.query\.bias")),
    Trait("talking_heads", "talking heads", has_name(r"blocks\..*\.before_softmax\.weight")),
    Trait("residual_norm", "layer norms", has_name(r"blocks\..*\.(norm\.(0\.)?|join\.norm\.)weight")),
    Trait("layer_scale", "LayerScale", has_name(r"blocks\..*\.scale\.weight"), "1e-4", "None"),
)
