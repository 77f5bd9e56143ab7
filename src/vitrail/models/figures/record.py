"""The form in which the papers' printed figures are kept: numbers as printed, each with its place in the papers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Result(NamedTuple):
    """One published accuracy of the model as its paper trains it, in percent."""

    image_size: int  # test resolution
    training: str  # data, epochs and whatever differs from the paper's main recipe
    top1: float  # ImageNet validation set
    real: float | None  # ImageNet-ReaL
    v2: float | None  # ImageNet-V2, matched frequency
    source: str


class Variant(NamedTuple):
    """A row of an ablation: the model with one thing changed, at 224 pixels where the setting names no other size."""

    setting: str  # what was changed
    parameters: str | None  # millions, as printed
    flops: str | None  # 1e9 multiply-adds, as printed
    top1: float
    real: float | None
    v2: float | None
    source: str


class Score(NamedTuple):
    """A published figure that is no accuracy on ImageNet's validation set: of another data set, or another measure."""

    what: str  # training and measure, unique for its model
    value: float
    unit: str
    source: str


# How throughput and memory were measured; the letters stand beside the figures in `vitrail models`.
SETUPS = {
    "a": "one V100 of 32 GB, batch 256, mixed precision",
    "b": "one V100 of 32 GB, batch 128, fp16, PyTorch 1.8, CUDA 11",
    "c": "one V100 of 16 GB, the largest batch that fits, mean of 30 runs",
    "d": "one V100 of 32 GB, batch 32",
    "e": "hardware and batch not printed",
    "f": "a V100, one image at a time",
    "g": "a V100, batch 64",
}


class Speed(NamedTuple):
    """What inference takes, as printed."""

    image_size: int
    throughput: str | None  # images a second
    memory: str | None  # peak, in MB
    setup: str  # a key of SETUPS
    source: str


@dataclass(frozen=True)
class Figures:
    """What the papers print about one model.

    Counts are decimal literals exactly as printed: the last digit tells the precision ("86.6" is to 0.1, "22" to 1,
    "1e3" to 1000).
    """

    source: str  # where parameters and multiply-adds are printed
    parameters: str | None = None  # millions, with 1000 classes, at 224 pixels
    flops: Mapping[int, str] = field(default_factory=dict)  # image size -> 1e9 multiply-adds
    drop_path: float | None = None  # rate of the main ImageNet-1k recipe; None: not stated
    layer_scale: float | None = None  # initial value; None: no LayerScale in the main recipe, or its value not stated
    results: tuple[Result, ...] = ()
    variants: tuple[Variant, ...] = ()
    speeds: tuple[Speed, ...] = ()  # of several at an image size the one that most models have is first
    resized_parameters: Mapping[int, str] = field(default_factory=dict)  # image size -> millions, other than at 224
    contradictions: tuple[str, ...] = ()  # other printed values that the ones above were preferred to
    doubts: Mapping[str, str] = field(
        default_factory=dict
    )  # "parameters", "parameters 384", ... -> why it can't be right

    def speed_at(self, image_size: int) -> Speed | None:
        """The first measurement at that size."""
        return next((speed for speed in self.speeds if speed.image_size == image_size), None)
