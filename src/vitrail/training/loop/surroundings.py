"""What all stages of a run share."""

from dataclasses import dataclass

import torch

from vitrail.training.loop.interruption import StopSignal
from vitrail.training.parallel.distributed import World
from vitrail.training.runs.checkpoint_writer import CheckpointWriter
from vitrail.training.runs.progress import Progress
from vitrail.training.runs.run_folder import RunFolder
from vitrail.training.runs.trackers import Trackers


@dataclass(frozen=True, eq=False)
class Surroundings:
    """What all stages of a run share."""

    folder: RunFolder
    writer: CheckpointWriter
    world: World
    device: torch.device
    dtype: torch.dtype
    progress: Progress
    stop: StopSignal
    trackers: Trackers
    num_cores: int  # that this process computes on, where the device is a CPU
