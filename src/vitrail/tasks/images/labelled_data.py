"""Images with labels: both splits of a run, their classes and coarser ones."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from vitrail.data.contract import Dataset, Level
from vitrail.settings.data import DataSettings


@dataclass(frozen=True, eq=False)
class LabelledData:
    """Labelled images that a run is trained and evaluated on."""

    train: Dataset
    val: Dataset
    level: str  # the name of the labels that are trained on
    coarse: str | None  # the name of coarser labels, if there are any
    coarse_of: tuple[int, ...] | None  # the coarse class of each class
    is_held_out: bool = False  # whether val was taken from train, since there was none

    @property
    def num_train(self) -> int:
        """How many training images there are."""
        return len(self.train)

    @property
    def num_val(self) -> int:
        """How many images there are to evaluate on."""
        return len(self.val)

    @property
    def labels(self) -> Level:
        """Classes and labels of the training images."""
        return self.train.level(self.level)

    @property
    def num_classes(self) -> int:
        """How many classes are told apart."""
        return len(self.labels.classes)

    def locate(self, index: int) -> str:
        """Where a training image is."""
        return self.train.locate(index)

    def remark(self) -> str | None:
        """One line where the data did not say by itself what is trained on."""
        if self.num_val == 0:
            return f"data.val=none: all {self.num_train:,} images of train are trained on, and nothing is evaluated"
        if not self.is_held_out:
            return None
        num_all = self.num_train + self.num_val
        return (
            f"{self.train.name} has no val: {self.num_val:,} of {num_all:,} images are held out of training to "
            "evaluate on (data.val_share); data.val=SPEC evaluates on others, data.val=none trains on all"
        )

    def describe(self) -> dict[str, Any]:
        """The classes, for task.json."""
        coarse = None
        if self.coarse is not None and self.coarse_of is not None:
            classes = self.train.level(self.coarse).classes
            coarse = {"name": self.coarse, "classes": list(classes), "of": list(self.coarse_of)}
        return {
            "level": self.level,
            "classes": list(self.labels.classes),
            "coarse": coarse,
            "num_train": self.num_train,
            "num_val": self.num_val,
            **({"is_multiple": True} if self.labels.is_multiple else {}),
        }


def open_labelled(settings: DataSettings) -> LabelledData:
    """Both splits, without the samples in quarantine."""
    train, val, is_held_out, _ = settings.open_splits()
    level = settings.level or next(iter(train.levels))
    if val.level(level).classes != train.level(level).classes:
        raise ValueError(
            f"the classes of {val.name} ({settings.val}) are not those of {train.name}: they must be the same"
        )
    coarse, coarse_of = find_coarse(train, level)
    return LabelledData(train, val, level, coarse, coarse_of, is_held_out)


def check_several_classes(data: LabelledData) -> None:
    """Refuse data of one class where classes are told apart."""
    if data.num_classes < 2:
        raise ValueError(f"{data.train.name} has {data.num_classes} class: there is nothing to tell apart")


def find_coarse(dataset: Dataset, level: str) -> tuple[str | None, tuple[int, ...] | None]:
    """The first labels that follow from those of `level` and are fewer, with the coarse class of each class."""
    fine = dataset.level(level)
    for name, coarse in dataset.levels.items():
        if name == level or fine.is_multiple or coarse.is_multiple or len(coarse.classes) >= len(fine.classes):
            continue
        pairs = np.unique(np.stack([fine.labels, coarse.labels]), axis=1)
        if len(np.unique(pairs[0])) == pairs.shape[1] == len(fine.classes):
            return name, tuple(pairs[1].tolist())
    return None, None


def count_labels(labels: Level) -> np.ndarray:
    """How many images each class has."""
    if labels.is_multiple:
        return labels.labels.sum(axis=0)
    return np.bincount(labels.labels, minlength=len(labels.classes))


def balanced_weights(labels: Level) -> np.ndarray:
    """How often each sample is to be drawn so that all classes come equally often."""
    if labels.is_multiple:
        raise ValueError("images of this data have several labels: their classes can't be balanced (data.balanced)")
    counts = count_labels(labels)
    return 1.0 / counts[labels.labels]
