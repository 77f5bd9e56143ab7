"""What a run is trained on."""

from typing import TYPE_CHECKING, NamedTuple

from pydantic import Field, NonNegativeInt

from vitrail.settings.section import Section

if TYPE_CHECKING:
    from vitrail.data.contract import Dataset, Labels, Note


NO_VAL = "none"  # what `data.val` says where a run is not evaluated


class OpenedSplits(NamedTuple):
    """What a run is trained and evaluated on."""

    train: "Dataset"
    val: "Dataset"
    is_held_out: bool  # whether val was taken from train, since there was none
    notes: "tuple[Note, ...]" = ()  # what was odd about the training data


class DataSettings(Section):
    """Data to train and evaluate on."""

    spec: str | None = None
    """training data: a folder, a manifest, or the name of a data set; usually given on the command line"""
    val: str | None = None
    """other data to evaluate on; null: the val split of the training data; none: no evaluations, all is trained on"""
    level: str | None = None
    """level of labels to learn, such as coarse, where the data has several; null: the first"""
    val_share: float = Field(default=0.1, gt=0.0, lt=1.0)
    """share of the training images that is set aside for val where there is none"""
    quarantine: str | None = None
    """a quarantine.csv of `vitrail check`: the samples in it are left out"""
    max_broken: float = Field(default=0.05, ge=0.0, le=1.0)
    """the share of samples that may turn out unreadable before the run stops"""
    balanced: bool = False
    """draw every class equally often"""
    workers: NonNegativeInt | None = None
    """processes that read and augment images; null: few or none on a CPU, else one a core, up to eight"""

    @property
    def is_measured(self) -> bool:
        """Whether a run has data to be evaluated on."""
        return self.val != NO_VAL

    def open(self, *, labels: "Labels" = "required") -> "tuple[Dataset, Dataset]":
        """The training and the validation data, without the samples in quarantine."""
        opened = self.open_splits(labels=labels)
        return opened.train, opened.val

    def open_splits(self, *, labels: "Labels" = "required") -> "OpenedSplits":
        """The training and the validation data, which may be empty, and whether one was taken from the other."""
        import numpy as np

        from vitrail.data.datasets import open_source, open_split, open_whole_val
        from vitrail.data.splits import AUTOMATIC
        from vitrail.data.stored import Subset

        if self.spec is None:
            raise ValueError("no data given: add data=FOLDER, or the name of a data set such as data=fashion")
        has_own = self.val in (None, self.spec)
        source = open_source(self.spec, val_share=self.val_share if has_own else 0.0, labels=labels)
        train = open_split(source, "train", exclude=self.quarantine)
        if not self.is_measured:
            val: Dataset = Subset(train, np.zeros(0, dtype=np.int64))
            val.split = "val"
        elif self.val is None or has_own:
            val = open_split(source, "val", exclude=self.quarantine)
        else:  # what is in quarantine is of the training data, so other data to evaluate on is whole
            val = open_whole_val(self.val, labels=labels)
        is_held_out = has_own and any(note.problem == AUTOMATIC for note in source.notes)
        return OpenedSplits(train, val, is_held_out, source.notes)
