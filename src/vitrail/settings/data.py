"""What a run is trained on."""

from pydantic import Field, NonNegativeInt

from vitrail.settings.section import Section


class DataSettings(Section):
    """What it is trained on."""

    spec: str | None = None
    """a folder, a manifest, or the name of a data set; usually given on the command line"""
    val: str | None = None
    """other data to evaluate on; null: the val split of the same"""
    level: str | None = None
    """which labels, where there are several, such as coarse; null: the first"""
    val_share: float = Field(default=0.1, gt=0.0, lt=1.0)
    """of the training images, set aside where there is no val split"""
    quarantine: str | None = None
    """a quarantine.csv of `vitrail check`: the samples in it are left out"""
    max_broken: float = Field(default=0.05, ge=0.0, le=1.0)
    """the share of samples that may turn out unreadable before the run stops"""
    balanced: bool = False
    """draw every class equally often"""
    workers: NonNegativeInt | None = None
    """processes that read and augment; null: by the number of cores"""
