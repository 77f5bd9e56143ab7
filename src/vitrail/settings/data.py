"""What a run is trained on."""

from typing import TYPE_CHECKING

from pydantic import Field, NonNegativeInt

from vitrail.settings.section import Section

if TYPE_CHECKING:
    from vitrail.data.contract import Dataset, Labels


class DataSettings(Section):
    """Data to train and evaluate on."""

    spec: str | None = None
    """training data: a folder, a manifest, or the name of a data set; usually given on the command line"""
    val: str | None = None
    """other data to evaluate on; null: the val split of the training data"""
    level: str | None = None
    """level of labels to learn, such as coarse, where the data has several; null: the first"""
    val_share: float = Field(default=0.1, gt=0.0, lt=1.0)
    """share of the training images that is set aside for val where there is no val split"""
    quarantine: str | None = None
    """a quarantine.csv of `vitrail check`: the samples in it are left out"""
    max_broken: float = Field(default=0.05, ge=0.0, le=1.0)
    """the share of samples that may turn out unreadable before the run stops"""
    balanced: bool = False
    """draw every class equally often"""
    workers: NonNegativeInt | None = None
    """processes that read and augment images; null: none on a CPU, else one a core, up to eight"""

    def open(self, *, labels: "Labels" = "required") -> "tuple[Dataset, Dataset]":
        """The training and the validation data, without the samples in quarantine."""
        from vitrail.data.datasets import open_dataset

        if self.spec is None:
            raise ValueError("no data given: add data=FOLDER, or the name of a data set such as data=fashion")
        train = open_dataset(self.spec, "train", val_share=self.val_share, exclude=self.quarantine, labels=labels)
        # What is in quarantine is of the training data, so other data to evaluate on is whole.
        spec, exclude = (self.spec, self.quarantine) if self.val is None else (self.val, None)
        return train, open_dataset(spec, "val", val_share=self.val_share, exclude=exclude, labels=labels)
