"""How a run is measured and computed."""

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from vitrail.settings.section import Section


class EvaluationSettings(Section):
    """How the run is measured."""

    every: PositiveFloat = 1.0
    """epochs between two evaluations"""
    batch_size: PositiveInt | None = None
    """images evaluated at a time, over all devices; null: the batch size of training, at most 64 a process"""


class RunSettings(Section):
    """How the run is computed; none of this changes what is learnt, but for rounding and batch normalisation."""

    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """type of numbers to compute in; auto: bf16 where the device is fast at it, else fp32"""
    device: str = "auto"
    """device to compute on: cpu, cuda or mps; auto: the best there is"""
    devices: PositiveInt = 1
    """processes that train together on this machine, one a GPU"""
    nodes: PositiveInt = 1
    """machines that train together"""
    sharding: Literal["none", "full"] = "none"
    """none: each process holds the whole model (DDP); full: a part of it, if it does not fit one GPU (FSDP2)"""
    sync_batch_norm: bool = True
    """statistics of batch normalisation over the images of all processes; false: each process has its own"""
    micro_batch: PositiveInt | None = None
    """images that a device computes at a time; null: what fits a GPU, and on a CPU by the model's size and the cores"""
    checkpointing: bool = False
    """recompute activations in the backward pass: less memory, more time"""
    compile: bool | Literal["blocks"] = False
    """compile the model with torch.compile; blocks: its blocks alone, of which those alike are compiled once"""
    channels_last: bool | None = None
    """store convolutions with their channels last; null: for convolutional models on a GPU"""
    tf32: bool = False
    """compute fp32 products in TF32 on GPUs that have it: faster, with three digits instead of seven"""
    save_minutes: PositiveFloat = 10.0
    """minutes between two checkpoints, besides the one at each evaluation"""
    keep: PositiveInt = 2
    """number of newest checkpoints to keep, besides the best"""
    on_nan: Literal["stop", "skip"] = "stop"
    """what to do when loss or gradients are not finite"""
    threads: PositiveInt | None = Field(default=None, le=1024)
    """cores of a CPU to compute on; null: as many as torch takes, which is all of them or OMP_NUM_THREADS"""
    trackers: tuple[Literal["tensorboard", "wandb"], ...] = ()
    """trackers that metrics are sent to, besides metrics.jsonl: tensorboard, wandb"""
