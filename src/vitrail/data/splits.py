"""Splits: their names, and the automatic one that is the same on every machine."""

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np

from vitrail.data.contract import Note

SPLITS = ("train", "val", "test")
AUTOMATIC = "automatic split"  # the note of a source whose val was taken from train
ALIASES = {"training": "train", "valid": "val", "validation": "val", "dev": "val", "testing": "test"}


def canonical(split: str) -> str:
    """The name this library has for a split: "Validation" is "val"; a name it does not know is kept as it is."""
    lower = split.strip().lower()
    name = ALIASES.get(lower, lower)
    return name if name in SPLITS else split.strip()


def in_order(splits: Iterable[str]) -> list[str]:
    """Each split once: train, val, test, then others by name."""
    present = set(splits)
    return [split for split in SPLITS if split in present] + sorted(present.difference(SPLITS))


def stratify(names: Sequence[str], labels: np.ndarray, *, share: float = 0.1, seed: int = 0) -> np.ndarray:
    """Which samples go to val: bool [samples], about `share` of each class.

    Each class is ranked by a hash of the seed and the sample's name (its path below the data folder, with "/"), and its
    first ones are taken: at least one where a class has two or more, never all of them. So the split depends neither
    on the order of the samples nor on the machine or the folder they lie in, and a file that is added moves few others.
    """
    if not 0.0 < share < 1.0:
        raise ValueError(f"the share of val must lie between 0 and 1, not {share}: try 0.1")
    prefix = f"{seed}/".encode()
    digests = (
        hashlib.blake2b(prefix + name.encode("utf-8", "surrogatepass"), digest_size=8).digest() for name in names
    )
    ranks = np.fromiter((int.from_bytes(digest, "little") for digest in digests), dtype=np.uint64, count=len(names))
    order = np.lexsort((ranks, labels))
    _, starts, classes, sizes = np.unique(labels[order], return_index=True, return_inverse=True, return_counts=True)
    wanted = np.minimum(np.maximum(np.rint(sizes * share).astype(np.int64), 1), sizes - 1)
    is_val = np.zeros(len(names), dtype=bool)
    is_val[order] = np.arange(len(names)) - starts[classes] < wanted[classes]
    return is_val


def complete(
    splits: np.ndarray | None, *, names: Sequence[str], labels: np.ndarray | None, share: float, seed: int
) -> tuple[np.ndarray, list[Note]]:
    """The split of every sample, with a val taken from train where there is none, and a note that says so.

    `splits` holds the split of each sample, or is None where there are none yet: then all of it counts as train.
    Samples without `labels` are split as those of one class are. With a `share` of 0 no val is taken.
    """
    if share == 0:
        return np.full(len(names), "train") if splits is None else splits, []
    labels = np.zeros(len(names), dtype=np.int64) if labels is None else labels
    if splits is None:
        given, splits = "splits", np.full(len(names), "train")
    else:
        given = "val"
        present = set(np.unique(splits).tolist())
        if "val" in present or "train" not in present:
            return splits, []
    candidates = np.flatnonzero(splits == "train")
    is_val = stratify([names[index] for index in candidates.tolist()], labels[candidates], share=share, seed=seed)
    splits = splits.astype(object)
    splits[candidates[is_val]] = "val"
    _, sizes = np.unique(labels[candidates], return_counts=True)
    detail = f"no {given} given: {is_val.sum()} of {len(candidates)} images of train were set aside as val"
    if singles := int((sizes == 1).sum()):
        detail += f"; classes with a single image, which stays in train: {singles}"
    return splits, [Note(AUTOMATIC, "train", detail, is_serious=False)]
