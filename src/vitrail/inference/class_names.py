"""Which classes of a model are those of data: by name, whatever other names the model's have."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from vitrail.inference.trained import Trained


def rename_classes(known: Sequence[str], wanted: Sequence[str], *, synonyms: Mapping[str, int]) -> tuple[str, ...]:
    """The `known` names of classes, those that `wanted` calls by a synonym under that."""
    names, own = list(known), set(known)
    for name in wanted:
        if name not in own and name in synonyms:
            names[synonyms[name]] = name
    return tuple(names)


def are_numbers(classes: Sequence[str], num_classes: int) -> bool:
    """Whether all classes of a model are called by their numbers, which say what they are in its order."""
    return tuple(classes) == tuple(map(str, range(num_classes)))


def match_classes(trained: "Trained", classes: Sequence[str], *, name: str) -> Tensor | None:
    """For each class of the data called `name` the model's index of it; None where the indices are the same.

    They are matched by name, so that the data may have fewer of them or another order. Without names the data must have
    as many classes as the model.
    """
    if trained.classes is None and len(classes) != trained.num_classes:
        raise ValueError(
            f"{name} has {len(classes)} classes and the model {trained.num_classes}, which have no names "
            "(there is no task.json beside it): they can't be matched"
        )
    if trained.classes is None or are_numbers(classes, trained.num_classes):
        return None
    own = rename_classes(trained.classes, classes, synonyms=trained.synonyms)
    if tuple(classes) == own:
        return None
    places = {known: place for place, known in enumerate(own)}
    unknown = [known for known in classes if known not in places]
    if unknown:
        some = ", ".join(map(repr, unknown[:3])) + (", ..." if len(unknown) > 3 else "")
        raise ValueError(
            f"the model does not know {len(unknown)} of the {len(classes)} classes of {name}: {some} "
            f"(its own, in its task.json, begin with {', '.join(map(repr, trained.classes[:3]))})"
        )
    return torch.tensor([places[known] for known in classes])


def map_targets(targets: Tensor, places: Tensor | None, *, num_classes: int) -> Tensor:
    """Targets of data in the model's order of classes: indices [batch], negative without a label, or masks."""
    if places is None:
        return targets
    if targets.ndim == 1:
        return torch.where(targets < 0, targets, places[targets.clamp(min=0)])
    mapped = targets.new_zeros(len(targets), num_classes)
    mapped[:, places] = targets
    return mapped
