"""How alike student and teacher are on images that were not trained on."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.data.contract import ImageBatch
from vitrail.data.draws import Draws
from vitrail.data.stored import Subset
from vitrail.evaluation.lanes import Lanes
from vitrail.evaluation.predict import autocast
from vitrail.heads.features import FeatureModel
from vitrail.tasks.contract import Loaders
from vitrail.tasks.features.objective import similarity
from vitrail.tasks.results import Evaluator

if TYPE_CHECKING:
    from vitrail.tasks.features.task import FeatureTask


class SimilarityEvaluator(Evaluator):
    """The cosine of the student's projected features and the teacher's standardised ones, the mean over val.

    A model without projectors, such as the trunk that a run leaves, has no such measure.
    """

    def __init__(self, task: "FeatureTask", loaders: Loaders) -> None:
        self.task = task
        order = Draws(task.recipe.seed, "similarity").array().permutation(task.data.num_val)
        self.val = Subset(task.data.val, np.sort(order[: task.recipe.watch.val_images]))
        self.answers = task.keep_answers(self.val)
        self.loader = task.load_plainly(
            self.val, batch_size=loaders.val.sampler.batch_size, quarantine=loaders.val.quarantine
        )

    def measure(self, model: nn.Module) -> Iterator[tuple[str, float]]:
        """The similarity, the same in all processes."""
        if not isinstance(model, FeatureModel):
            return
        task, site = self.task, self.task.site

        def judge(batch: ImageBatch) -> Tensor:
            with torch.inference_mode(), autocast(site.device, site.dtype):
                teacher = self.answers(batch._replace(views=torch.zeros_like(batch.indices)))
                student = model(task.normalize(batch.images.to(site.device)))
                return similarity(student, model.shape.split(teacher), settings=task.recipe.features).double().cpu()

        num_lanes = (site.num_lanes or torch.get_num_threads()) if site.device.type == "cpu" else 1
        with Lanes(num_lanes) as lanes:
            found = list(lanes.map(judge, task.evaluation_batches(self.loader)))
        values = torch.cat([part for parts in site.world.gather(found) for part in parts])
        if not len(values):
            raise ValueError(f"none of the {len(self.val):,} images of val of {self.val.name} could be read")
        yield "similarity", values.mean().item()
