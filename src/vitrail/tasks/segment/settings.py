"""What a recipe of segmentation says beside what every recipe does."""

from collections.abc import Set
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, PositiveInt, field_validator, model_validator
from pydantic_core import PydanticCustomError

from vitrail.settings.dense import SegmentAugmentationSettings
from vitrail.settings.image_recipe import ImageEvaluationSettings, ImageRecipe
from vitrail.settings.section import ImageSize, Section, Side

if TYPE_CHECKING:
    from vitrail.evaluation.segmenting import Looking
    from vitrail.heads.segment import SegmentSettings

_NUM_LEVELS = 4  # of the pyramid that UperNet reads


class SegmentHeadSettings(Section):
    """The head that says classes of pixels."""

    head: Literal["upernet", "linear"] = "upernet"
    """kind of head: UperNet on a pyramid of the trunk, or batch norm and one linear layer on its last patches"""
    channels: PositiveInt = 512
    """width of UperNet; DeiT III took that of the trunk where it is smaller"""
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    """share of channels that are dropped before UperNet's classifier"""
    pyramid: Literal["blocks", "last", "chained", "simple"] = "blocks"
    """maps that UperNet reads: of four blocks, of the last one at all levels (PatchConvNet), or ViTDet's simple ones"""
    blocks: tuple[int, int, int, int] | None = None
    """four blocks that are read, counted from 0; null: 3, 5, 7 and 11 of 12, in proportion for other depths"""
    auxiliary: float = Field(default=0.4, ge=0.0)
    """weight of the loss of an auxiliary FCN head on the trunk's resolution, used in training only; 0: there is none"""
    balance: float = Field(default=0.0, ge=0.0, le=1.0)
    """how much more pixels of rare classes weigh: share of the class to the power of minus this; 0: all the same"""
    ignore: tuple[str, ...] = ()
    """names of classes whose pixels count as unlabelled: neither learnt nor measured"""

    @field_validator("blocks", mode="before")
    @classmethod
    def check_blocks(cls, blocks: Any) -> Any:
        """Refuse another number of blocks in one line."""
        if isinstance(blocks, (list, tuple)) and len(blocks) != _NUM_LEVELS:
            raise PydanticCustomError(
                "blocks", "four blocks are read, counted from 0: name four, such as [2, 5, 8, 11]"
            )
        return blocks

    def unused(self) -> Set[str]:
        """What UperNet alone reads."""
        if self.head == "linear":
            return {"channels", "dropout", "pyramid", "blocks", "auxiliary"}
        return set() if self.pyramid == "blocks" else {"blocks"}

    def build(self, *, num_classes: int) -> "SegmentSettings":
        """Settings of the head for so many classes."""
        from vitrail.heads.segment import SegmentSettings

        if self.head == "linear":
            return SegmentSettings(num_classes=num_classes, kind="linear", has_auxiliary=False)
        return SegmentSettings(
            num_classes=num_classes,
            channels=self.channels,
            dropout=self.dropout,
            has_auxiliary=self.auxiliary > 0.0,
            pyramid=self.pyramid,
            blocks=self.blocks,
        )


class SegmentEvaluationSettings(ImageEvaluationSettings):
    """How the run is measured: on whole images of any size, at the size of their masks."""

    short_side: Side | None = None
    """short side that images are resized to before the model sees them; null: they keep their size"""
    long_side: Side | None = None
    """length that the long side does not go beyond then; null: four times the short side"""
    window: ImageSize | None = None
    """side of windows that slide over an image, or height and width; null: whole, or the one size the model takes"""
    overlap: float = Field(default=1 / 3, ge=0.0, lt=1.0)
    """share of a window that the next one sees too"""
    scales: tuple[float, ...] = (1.0,)
    """factors of that size at which images are seen, whose probabilities are averaged"""
    flip: bool = False
    """see images mirrored too"""

    @field_validator("scales")
    @classmethod
    def check_scales(cls, scales: tuple[float, ...]) -> tuple[float, ...]:
        """Refuse an empty list, and sizes that are a slip."""
        if not scales or not all(0.1 <= scale <= 10.0 for scale in scales):
            raise PydanticCustomError("no_scales", "give one factor at least, each from 0.1 to 10")
        return scales

    def unused(self) -> Set[str]:
        """What is read where images are cropped or resized."""
        return {"image_size", "crop_ratio", "layers"} | (set() if self.short_side else {"long_side"})

    @model_validator(mode="after")
    def check_whole(self) -> "SegmentEvaluationSettings":
        """Refuse a crop: whole images are measured."""
        if self.image_size is not None or self.crop_ratio is not None or self.layers:
            raise PydanticCustomError(
                "no_crop", "whole images are measured: set short_side, window or scales; layers is for classifiers"
            )
        return self

    def build(self) -> "Looking":
        """How images are looked at."""
        from vitrail.evaluation.segmenting import Looking

        window = (self.window, self.window) if isinstance(self.window, int) else self.window
        return Looking(
            short_side=self.short_side,
            long_side=self.long_side,
            window=window,
            overlap=self.overlap,
            scales=self.scales,
            flip=self.flip,
        )


class SegmentRecipe(ImageRecipe):
    """A recipe that learns a class for every pixel."""

    task: str = "segment"
    image_size: ImageSize = 512
    """side of the training crops, or height and width"""
    segment: SegmentHeadSettings = SegmentHeadSettings()
    augmentation: SegmentAugmentationSettings = SegmentAugmentationSettings()  # type: ignore[assignment]
    evaluation: SegmentEvaluationSettings = SegmentEvaluationSettings()
