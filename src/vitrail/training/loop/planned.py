"""How a stage is computed: planned when a run begins, written into its folder, and kept when it goes on."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vitrail.evaluation.predict import autocast
from vitrail.models.contract import Model
from vitrail.tasks.contract import Objective, StepContext, Task
from vitrail.training.loop.micro_batch import choose_micro_batch
from vitrail.training.loop.replicas import draws_elsewhere
from vitrail.training.parallel.distributed import World
from vitrail.training.parallel.sharding import is_sharded
from vitrail.training.runs.environment import describe_environment
from vitrail.training.runs.run_folder import RunFolder


class ComputePlan(NamedTuple):
    """How the samples of a step are divided."""

    micro_batch: int
    num_lanes: int  # micro-batches that are computed side by side
    threads: int  # of torch in each of them


def plan_compute(
    model: Model, task: Task[Any], *, stage: int, num_samples: int, num_cores: int, folder: RunFolder, world: World
) -> ComputePlan:
    """The plan for `num_samples` a step in this process: the recipe's, the one the run began with, or by rule.

    Sums round differently in other parts and with other threads, so that a run goes on with the same. The number of
    lanes changes no bit. All processes get the same.
    """
    site, recipe = task.site, task.recipe
    keys = (f"micro_batch_{stage}", f"threads_{stage}")
    objective = task.make_objective(total_steps=1, is_trial=True)
    has_lanes = can_have_lanes(model, objective, task, world=world)
    plan = world.share(folder.read_json(folder.plan_file) if world.is_main else None)
    if recipe.run.micro_batch is not None:
        plan[keys[0]] = recipe.run.micro_batch
    elif keys[0] not in plan:
        plan[keys[0]] = choose_micro_batch(
            model,
            make_trial(task, objective),
            num_samples=num_samples,
            num_views=task.num_views,
            num_lanes=num_cores if has_lanes else 1,
            device=site.device,
            together=world if is_sharded(model) else None,
        )
    num_parts = -(-num_samples // plan[keys[0]])
    if recipe.run.threads is not None or keys[1] not in plan:
        plan[keys[1]] = max(1, num_cores // num_parts) if has_lanes else num_cores
    plan = world.share(plan)
    if world.is_main:
        folder.write_json(folder.plan_file, plan | describe_environment(site.device, site.dtype))
    micro_batch, threads = plan[keys[0]], plan[keys[1]]
    return ComputePlan(micro_batch, max(1, min(num_parts, num_cores // threads)) if has_lanes else 1, threads)


def can_have_lanes(model: Model, objective: Objective[Any], task: Task[Any], *, world: World) -> bool:
    """Whether micro-batches may be computed side by side: by one process, on a CPU, where no order matters."""
    is_alone = task.site.device.type == "cpu" and world.num_ranks == 1 and not task.recipe.run.compile
    return is_alone and objective.is_divisible and not draws_elsewhere(model)


def make_trial(task: Task[Any], objective: Objective[Any]) -> Callable[[nn.Module, int], Tensor]:
    """From a model and a number of samples to the loss of a batch of noise, after which nothing remembers it."""
    site = task.site

    def judge(model: nn.Module, count: int) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            batch = task.prepare(task.example(count), StepContext(site.seed, 0, 0))
            with autocast(site.device, site.dtype):
                loss = objective(model, batch).total
        objective.skip_step()
        return loss

    return judge
