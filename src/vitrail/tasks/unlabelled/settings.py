"""What every recipe that learns without labels says beside what every image recipe does."""

from typing import ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from vitrail.settings.image_recipe import ImageRecipe
from vitrail.settings.running import RunSettings
from vitrail.settings.section import Section


class WatchSettings(Section):
    """How features are measured while they are learnt; labels, where the data has some, are read for this alone."""

    knn: bool = True
    """measure the classes of the nearest training images, where the data has labels"""
    probe_every: PositiveFloat | None = 10.0
    """epochs between two short linear probes, where the data has labels; one more at the end; null: none"""
    train_images: int = Field(default=5000, ge=2)
    """training images that a measurement looks at, at most: the neighbours are among them"""
    val_images: int = Field(default=1000, ge=2)
    """images of val that a measurement looks at, at most"""
    pictures: PositiveInt | None = 8
    """images that the report shows with their neighbours and attention maps; null: none"""


class UnlabelledRunSettings(RunSettings):
    """How the run is computed, and what happens when it has collapsed."""

    on_collapse: Literal["stop", "warn"] = "stop"
    """what to do when all images get the same features or answers: stop, or warn once and go on"""


class UnlabelledRecipe(ImageRecipe):
    """A recipe that learns from images without labels."""

    needs_labels: ClassVar[bool] = False
    watch: WatchSettings = WatchSettings()
    run: UnlabelledRunSettings = UnlabelledRunSettings()
