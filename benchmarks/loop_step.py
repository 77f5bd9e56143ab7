"""The step of `vitrail train` for benchmarks: micro-batches by its rule, in lanes, one a core."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vitrail.data.sampler import Sampler
from vitrail.evaluation.lanes import Lanes
from vitrail.models.contract import AnyModel
from vitrail.tasks.contract import Losses, Objective, Task
from vitrail.training.loop.gradients import StepGradients
from vitrail.training.loop.micro_batch import choose_micro_batch
from vitrail.training.loop.planned import ComputePlan, make_trial
from vitrail.training.parallel.distributed import World


@dataclass(frozen=True)
class LoopStep:
    """How a run divides a step, and what computes its gradients."""

    plan: ComputePlan
    gradients: StepGradients
    sizes: list[int]  # of its micro-batches

    @classmethod
    def of(cls, model: AnyModel, task: Task[Any], objective: Objective[Any], *, batch: int, threads: int) -> "LoopStep":
        """For so many samples on so many cores; the task has been attached to the model."""
        micro_batch = choose_micro_batch(
            model,
            make_trial(task, task.make_objective(total_steps=1, is_trial=True)),
            num_samples=batch,
            num_views=task.num_views,
            num_lanes=threads,
            device=task.site.device,
        )
        plan = ComputePlan.of(micro_batch, num_samples=batch, num_cores=threads)
        num_parts = -(-batch // micro_batch)
        gradients = StepGradients(
            model,
            task,
            objective=objective,
            sampler=Sampler(batch, batch_size=batch, num_micro_batches=num_parts, keeps_pairs=False),
            scaler=torch.amp.GradScaler("cpu", enabled=False),
            world=World(),
            lanes=Lanes(plan.num_lanes, threads=plan.threads),
        )
        return cls(plan, gradients, [len(part) for part in torch.arange(batch).tensor_split(num_parts)])

    def add_gradients(self, batches: Sequence[Any]) -> Iterator[Losses]:
        """Compute the gradients of a step, and give the losses of its micro-batches."""
        torch.set_num_threads(self.plan.threads)
        return self.gradients.add(batches, step=0, meanwhile=lambda: None)
