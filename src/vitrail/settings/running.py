"""How a run is measured and computed."""

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from vitrail.settings.section import Section


class EvaluationSettings(Section):
    """How it is measured."""

    every: PositiveFloat = 1.0
    """epochs between two evaluations"""
    batch_size: PositiveInt | None = None
    """images at a time; null: as in training"""


class RunSettings(Section):
    """How it is computed; none of this changes what is learnt, but for rounding."""

    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """auto: bf16 where the device is fast at it, else fp32"""
    device: str = "auto"
    """cpu, cuda, mps; auto: the best there is"""
    devices: PositiveInt = 1
    """processes on this machine, one a GPU"""
    nodes: PositiveInt = 1
    """machines"""
    sharding: Literal["none", "full"] = "none"
    """none: DDP; full: FSDP2, for models that do not fit one GPU"""
    micro_batch: PositiveInt | None = None
    """images at a time on a device; null: found by measurement"""
    checkpointing: bool = False
    """recompute activations in the backward pass: less memory, more time"""
    compile: bool = False
    """torch.compile"""
    save_minutes: PositiveFloat = 10.0
    """between two checkpoints, besides one at each evaluation"""
    keep: PositiveInt = 2
    """newest checkpoints kept; the best is kept beside them"""
    on_nan: Literal["stop", "skip"] = "stop"
    """what to do when loss or gradients are not finite"""
    threads: PositiveInt | None = Field(default=None, le=1024)
    """of torch on a CPU; null: torch's choice"""
    trackers: tuple[Literal["tensorboard", "wandb"], ...] = ()
    """where metrics are sent besides metrics.jsonl"""
