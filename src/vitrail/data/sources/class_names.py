"""Lists of class names: their order, and what looks wrong about them."""

import difflib
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping

import numpy as np

from vitrail.data.contract import Level, Note
from vitrail.data.splits import in_order

SUGGESTION_LIMIT = 200  # comparing more names than this with each other takes long, and helps nobody


def ordered(names: Iterable[str]) -> tuple[str, ...]:
    """Each name once: by number if all are integers, else by plain comparison of strings (capitals come first)."""
    distinct = set(names)
    if all(re.fullmatch(r"[+-]?[0-9]+", name) for name in distinct):
        return tuple(sorted(distinct, key=lambda name: (int(name), name)))
    return tuple(sorted(distinct))


def note_classes(level: Level, splits: np.ndarray | None) -> list[Note]:
    """What is odd about the classes that occur; `splits` holds the split of each sample, where there are splits."""
    used = _find_used(level.labels)
    notes = note_alike(level.classes[label] for label in used)
    if len(used) == 1:
        notes.append(Note("single class", level.classes[used[0]], "all images are of one class", is_serious=False))
    if splits is not None:
        held = {
            split: [level.classes[label] for label in _find_used(level.labels[splits == split])]
            for split in in_order(splits.tolist())
        }
        notes += note_missing(held, places=dict.fromkeys(held, "{}"))
    return notes


def _find_used(labels: np.ndarray) -> np.ndarray:
    """The classes that some image has."""
    return np.flatnonzero(labels.any(axis=0)) if labels.ndim == 2 else np.unique(labels)


def note_missing(present: Mapping[str, Collection[str]], *, places: Mapping[str, str]) -> list[Note]:
    """A note for every class that one split has and another lacks.

    `present` holds the classes of each split; `places` the form in which a split's class is named, such as "val/{}".
    """
    sets = {split: set(names) for split, names in present.items()}
    notes = []
    for name in sorted(set().union(*sets.values())):
        holders = [split for split in sets if name in sets[split]]
        for lacking in (split for split in sets if name not in sets[split]):
            detail = f"in {' and '.join(holders)} but not in {lacking}"
            near = _nearest(name, sets[lacking] - sets[holders[0]])
            if near is not None:
                detail += f"; {lacking} has {near!r}: is it misspelt?"
            notes.append(Note("class missing", places[holders[0]].format(name), detail, is_serious=True))
    return notes


def note_alike(names: Iterable[str]) -> list[Note]:
    """A note for every group of names that differ only in capitals or in how accents are encoded."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(unicodedata.normalize("NFC", name).casefold(), []).append(name)
    return [
        Note(
            "class names alike",
            group[0],
            f"{' and '.join(map(repr, group))} are counted as {len(group)} classes: "
            "give the folders or labels one spelling if they are one class",
            is_serious=True,
        )
        for group in groups.values()
        if len(group) > 1
    ]


def _nearest(name: str, others: Collection[str]) -> str | None:
    if len(others) > SUGGESTION_LIMIT:
        return None
    lower = {other.casefold(): other for other in sorted(others)}
    matches = difflib.get_close_matches(name.casefold(), lower, n=1, cutoff=0.7)
    return lower[matches[0]] if matches else None
