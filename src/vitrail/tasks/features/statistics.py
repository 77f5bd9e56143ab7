"""What a teacher's features are like over the data: mean and deviation of each of their numbers."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.data.blend import Normalize
from vitrail.data.draws import Draws
from vitrail.data.quarantine import NotingQuarantine
from vitrail.data.stored import Subset
from vitrail.evaluation.predict import predict
from vitrail.tasks.teaching.feature_teacher import FeatureTeacher

if TYPE_CHECKING:
    from vitrail.tasks.features.task import FeatureTask

MOST_IMAGES = 1024  # of the training images, that the teacher is asked about before the first step
AS_PIXELS = Normalize(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))


class Statistics(NamedTuple):
    """Mean and deviation of each number of a level."""

    mean: Tensor  # [dim]
    deviation: Tensor  # [dim]


class TeacherModule(nn.Module):
    """A teacher as a model, to ask it about a whole data set."""

    def __init__(self, teacher: FeatureTeacher) -> None:
        super().__init__()
        self.teacher = teacher

    def forward(self, pixels: Tensor) -> Tensor:  # [batch, 3, height, width] of 0 ... 1 -> [batch, numbers]
        return self.teacher(pixels)


def find_statistics(task: "FeatureTask") -> dict[str, Statistics]:
    """The statistics of each level that is learnt, over training images as evaluation sees them; the same everywhere.

    Sums are in float64, so that it does not matter how images are divided among processes.
    """
    site, data, teacher = task.site, task.data.train, task.teacher
    order = Draws(site.seed, "statistics").array().permutation(len(data))
    chosen = Subset(data, np.sort(order[:MOST_IMAGES]))
    loader = task.load_plainly(
        chosen,
        batch_size=task.val_batch,
        quarantine=NotingQuarantine(lambda problem: None),  # the training tells of it
    )
    sums: dict[str, list[Tensor]] = {level: [] for level in teacher.levels}
    with site.reporter.counting("teacher's features", total=len(chosen)) as advance:
        found = predict(
            TeacherModule(teacher), loader.epoch(0), normalize=AS_PIXELS, device=site.device, num_lanes=site.num_lanes
        )
        for rows, batch in found:
            features = teacher.shape.split(rows.cpu().double())
            for level, of_level in sums.items():
                values = getattr(features, level).movedim(1, -1).flatten(0, -2)  # [images, or patches of all, dim]
                of_level.append(torch.stack([torch.ones_like(values), values, values.square()]).sum(dim=1))
            advance(batch.num_samples * site.world.num_ranks)
    found_everywhere = site.world.gather(sums)
    parts = {level: [part for found in found_everywhere for part in found[level]] for level in sums}
    if not all(parts.values()):
        raise ValueError(f"none of {len(chosen):,} images of {data.name} could be read, so the teacher saw nothing")
    return {level: _finish(of_level) for level, of_level in parts.items()}


def _finish(parts: list[Tensor]) -> Statistics:
    """Mean and deviation of sums [3, dim]: of ones, of values and of their squares."""
    count, total, squares = torch.stack(parts).sum(dim=0)
    mean = total / count
    deviation = (squares / count - mean.square()).clamp_min(0.0).sqrt()
    return Statistics(mean.float(), deviation.float())
