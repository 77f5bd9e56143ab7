"""From the micro-batches of a step to the gradients of a model: one after the other, or side by side in lanes."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from vitrail.data.contract import Batch
from vitrail.data.draws import Draws
from vitrail.evaluation.lanes import Lanes
from vitrail.evaluation.predict import autocast
from vitrail.layers.sample_draws import SampleDraws, give_draws
from vitrail.models.contract import AnyModel
from vitrail.tasks.contract import Losses, Objective, StepContext, StepSampler, Task
from vitrail.training.loop.acceleration import compile_blocks
from vitrail.training.loop.replicas import Replica, Replicas
from vitrail.training.parallel.distributed import World, distribute, local_gradients


class StepGradients:
    """What a stage computes in each of its steps, before the optimizer's."""

    def __init__(
        self,
        model: AnyModel,
        task: Task[Any],
        *,
        objective: Objective[Any],
        sampler: StepSampler,
        scaler: torch.amp.GradScaler,
        world: World,
        lanes: Lanes,
    ) -> None:
        self.task, self.objective, self.sampler, self.scaler = task, objective, sampler, scaler
        self.world, self.lanes = world, lanes
        site, is_compiled = task.site, task.recipe.run.compile
        # One process on a CPU adds up gradients in the same way for any number of lanes.
        has_replicas = site.device.type == "cpu" and world.num_ranks == 1 and objective.is_divisible and not is_compiled
        self.replicas = Replicas(model, lanes=lanes) if has_replicas else None
        self.draws = give_draws(model)
        if is_compiled == "blocks":
            compile_blocks(model)
        parallel = distribute(model, world, site.device)
        self.parallel: nn.Module = torch.compile(parallel) if is_compiled is True else parallel  # type: ignore[assignment]

    def share_of(self, batch: Batch) -> float:
        """The weight of a micro-batch in the mean of a step, as each process computes it."""
        return self.task.share_of(batch, sampler=self.sampler, num_ranks=self.world.num_ranks)

    def add(self, batches: Sequence[Batch], *, step: int, meanwhile: Callable[[], None]) -> Iterator[Losses]:
        """What each micro-batch of a step costs, after its gradients have been added to those of the model.

        `meanwhile` is called while lanes compute.
        """
        self.seed(step)
        if self.replicas is None:
            for place, batch in enumerate(batches):
                with local_gradients(self.parallel, is_last=place == len(batches) - 1):
                    losses = self.judge(batch, place=place, step=step)
                    self.scaler.scale(losses.total * self.share_of(batch)).backward()
                yield losses
            return

        def learn(replica: Replica, part: tuple[int, Batch]) -> Losses:
            place, batch = part
            losses = self._judge(replica.model, batch, place=place, step=step, draws=replica.draws)
            self.scaler.scale(losses.total * self.share_of(batch)).backward()
            return losses._replace(total=losses.total.detach())

        def parts() -> Iterator[tuple[int, Batch]]:
            yield from enumerate(batches)
            if self.lanes.count > 1:  # all micro-batches have been handed to them
                meanwhile()

        yield from self.replicas.judge(learn, parts())

    def judge(self, batch: Batch, *, place: int, step: int) -> Losses:
        """What the micro-batch at that place of a step costs."""
        return self._judge(self.parallel, batch, place=place, step=step, draws=self.draws)

    def _judge(self, model: nn.Module, batch: Batch, *, place: int, step: int, draws: SampleDraws) -> Losses:
        site, first = self.task.site, self.task.first_of(batch, place=place, sampler=self.sampler)
        draws.begin(
            Draws(site.seed, step, "layers").integer(2**62),
            first=first,
            num_samples=batch.num_samples,
            num_views=self.task.num_views,
            views_of_passes=self.task.views_of_passes,
            device=site.device,
        )
        at = StepContext(site.seed, step // self.sampler.num_steps, step, first)
        with autocast(site.device, site.dtype):
            return self.objective(model, self.task.prepare(batch, at))

    def seed(self, step: int) -> None:
        """Make what is drawn from torch's generator a function of the step too: a resumed run needs no random state."""
        torch.manual_seed(Draws(self.task.site.seed, step, self.world.rank, "model").integer(2**62))
