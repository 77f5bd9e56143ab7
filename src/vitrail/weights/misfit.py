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
        """One line that names everything, and one that says what to do where that is known."""
        kinds = (
            ("unexpected", [(name, "") for name in self.unexpected]),
            ("missing", [(name, "") for name in self.missing]),
            ("misshapen", [(name, f" {theirs} for {ours}") for name, theirs, ours in self.misshapen]),
        )
        found = "; ".join(f"{len(names)} {kind}: {list_names(names)}" for kind, names in kinds if names)
        return "\n".join([f"{title}: {found}", *(["; ".join(self.hints)] if self.hints else [])])


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
    """0, 1, 2, 5 -> "0-2,5"."""
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
    return [*head_hints(ours, wanted, head), *stem_hints(ours, wanted), *trait_hints(ours, wanted, model)]


def head_hints(ours: Mapping[str, Tensor], wanted: Mapping[str, Tensor], head: tuple[str, ...]) -> list[str]:
    shapes = [{name: value.shape for name, value in state.items() if name.startswith(head)} for state in (ours, wanted)]
    if shapes[0] == shapes[1]:
        return []
    have, want = (next((shape[0] for shape in found.values() if len(shape) == 2), 0) for found in shapes)
    if have and want and have != want:
        return [f"the weights have {have} classes and the model {want}: pass reset_head=True to start a new head"]
    if shapes[0].keys() & shapes[1].keys():
        return []
    return ["the heads differ: pass reset_head=True to start a new head"]


def stem_hints(ours: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> list[str]:
    """Channels and size of the patches, of a stem that starts with a convolution."""
    stems = [state.get("stem.layers.0.weight") for state in (ours, wanted)]
    if any(stem is None or stem.ndim != 4 for stem in stems):
        return []
    (channels, patch), (model_channels, model_patch) = (stem.shape[1:3] for stem in stems if stem is not None)
    hints = []
    if channels != model_channels:
        hints.append(f"the weights see {channels} channels and the model {model_channels}: set in_channels={channels}")
    if patch != model_patch:
        hints.append(
            f"the stem's weights are of {patch} pixels and the model's of {model_patch}: set patch_size or stem"
        )
    return hints


def trait_hints(ours: Mapping[str, Tensor], wanted: Mapping[str, Tensor], model: Model) -> list[str]:
    """Parts that only the weights or only the model has."""
    hints = []
    for setting, (trait, is_present) in TRAITS.items():
        has, wants = is_present(ours), is_present(wanted)
        if has != wants and hasattr(model.config, setting):
            found = (
                "the weights have {} and the model has none" if has else "the model has {} and the weights have none"
            )
            hints.append(f"{found.format(trait)}: change {setting}")
    return hints


def has_two_tokens(state: Mapping[str, Tensor]) -> bool:
    """Whether there is a distillation token beside the class token."""
    tokens = state.get("tokens", state.get("class_stage.tokens"))
    return "head.weight" not in state and tokens is not None and tokens.ndim == 3 and tokens.shape[1] == 2


def has_name(pattern: str) -> Callable[[Mapping[str, Tensor]], bool]:
    """Whether a name matches."""
    return lambda state: any(re.fullmatch(pattern, name) for name in state)


# Setting -> what it gives a model, and how to tell.
TRAITS: dict[str, tuple[str, Callable[[Mapping[str, Tensor]], bool]]] = {
    "distilled": ("a distillation token", has_two_tokens),
    "class_position": ("positions for special tokens", has_name(r"positions\.tokens")),
    "per_class_tokens": ("a token per class", has_name(r"head\.weight")),
    "talking_heads": ("talking heads", has_name(r"blocks\..*\.before_softmax\.weight")),
    "layer_scale": ("LayerScale", has_name(r"blocks\..*\.scale\.weight")),
}
