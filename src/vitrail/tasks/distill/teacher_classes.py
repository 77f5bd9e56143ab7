"""Which of a teacher's classes stand for those of its student: by name, by number, or as a file says."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.storage import read_json_object

# For each class of the student the teacher's classes that stand for it; None: the same ones in the same order.
Groups = tuple[tuple[int, ...], ...] | None
ClassMapping = dict[str, list[Any]]  # for each class of the student, names or indices of the teacher's


def match_classes(
    classes: Sequence[str],
    *,
    teacher: str,
    num_known: int,
    known: Sequence[str] | None,
    mapping: ClassMapping | None = None,
) -> Groups:
    """For each of the student's `classes` the classes of `teacher`, of which it has `num_known`, called `known`.

    Without a `mapping` they are matched by name, so that the teacher may have another order and more classes; one whose
    classes have no names must have as many as the student, which are taken to be the same.
    """
    if mapping is not None:
        return _find_all(mapping, classes, teacher=teacher, num_known=num_known, known=known)
    if known is None:
        if num_known != len(classes):
            raise ValueError(
                f"the teacher {teacher} has {num_known} classes without names and the student {len(classes)}: say "
                "which is which in a JSON file {class: index of the teacher's}, teacher.classes=FILE.json"
            )
        return None
    if tuple(known) == tuple(classes):
        return None
    unknown = [name for name in classes if name not in set(known)]
    if unknown:
        raise ValueError(
            f"the teacher {teacher} has {num_known} classes and does not know {len(unknown)} of the student's "
            f"{len(classes)} ({_some(unknown)}; its own begin with {_some(known)}): say which is which in a JSON file "
            "{class: name or index of the teacher's}, teacher.classes=FILE.json"
        )
    return tuple(_places(known, name) for name in classes)


def select(logits: Tensor, groups: Groups) -> Tensor:
    """The student's logits [batch, classes] of the teacher's: those that stand for one class as their log-sum-exp."""
    if groups is None:
        return logits
    most = max(map(len, groups))
    if most == 1:
        return logits[:, torch.tensor([place for (place,) in groups], device=logits.device)]
    places = torch.tensor([[*group, *[-1] * (most - len(group))] for group in groups], device=logits.device)
    gathered = logits[:, places.clamp(min=0)]  # [batch, classes, most]
    return gathered.masked_fill(places < 0, -torch.inf).logsumexp(dim=-1)


def read_mapping(file: str, classes: Sequence[str]) -> ClassMapping:
    """The content of a JSON file {class of the student: name or index of the teacher's, or a list of them}."""
    remedy = "teacher.classes names a file {class of the student: name or index of the teacher's}"
    content = read_json_object(Path(file).expanduser(), remedy=remedy)
    missing = [name for name in classes if name not in content]
    if missing:
        raise ValueError(f"{file} does not say which class of the teacher stands for {_some(missing)}")
    strangers = [name for name in content if name not in set(classes)]
    if strangers:
        raise ValueError(f"{file} names {_some(strangers)}, which the student does not have among its classes")
    mapping = {name: entry if isinstance(entry, list) else [entry] for name, entry in content.items()}
    for name, entries in mapping.items():
        if not entries:
            raise ValueError(f"{file}: the list of {name!r} is empty; name at least one class of the teacher")
        for entry in entries:
            if isinstance(entry, bool) or not isinstance(entry, (int, str)):
                raise ValueError(f"{file}: {entry!r} is neither a name nor an index of one of the teacher's classes")
    return mapping


def _find_all(
    mapping: ClassMapping, classes: Sequence[str], *, teacher: str, num_known: int, known: Sequence[str] | None
) -> Groups:
    """The classes that a mapping means, each once."""
    groups = []
    for name in classes:
        found: dict[int, None] = {}
        for entry in mapping[name]:
            found |= dict.fromkeys(_find(entry, teacher=teacher, num_known=num_known, known=known))
        groups.append(tuple(found))
    return tuple(groups)


def _find(entry: int | str, *, teacher: str, num_known: int, known: Sequence[str] | None) -> tuple[int, ...]:
    """The teacher's classes that an entry of a mapping means."""
    if isinstance(entry, int):
        if not 0 <= entry < num_known:
            raise ValueError(f"teacher.classes: {teacher} has {num_known} classes, from 0 on; there is no {entry}")
        return (entry,)
    if known is None:
        raise ValueError(f"teacher.classes: those of {teacher} have no names; give an index in place of {entry!r}")
    found = _places(known, entry)
    if not found:
        raise ValueError(f"teacher.classes: {teacher} has no class {entry!r}; its own begin with {_some(known)}")
    return found


def _places(known: Sequence[str], name: str) -> tuple[int, ...]:
    """All classes of that name: a list may have one twice, as ImageNet's has the crane."""
    return tuple(place for place, other in enumerate(known) if other == name)


def _some(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:3])) + (", ..." if len(names) > 3 else "")
