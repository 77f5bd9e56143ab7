"""How a stage is computed: planned when a run begins, written into its folder, and kept when it goes on."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vitrail.evaluation.predict import autocast
from vitrail.models.contract import AnyModel
from vitrail.tasks.contract import Objective, StepContext, Task
from vitrail.training.loop.micro_batch import choose_micro_batch
from vitrail.training.loop.replicas import draws_elsewhere
from vitrail.training.parallel.distributed import World
from vitrail.training.parallel.sharding import is_sharded
from vitrail.training.runs.environment import describe_environment
from vitrail.training.runs.run_folder import RunFolder

_MICRO_BATCH, _THREADS = "micro_batch_", "threads_"  # before the number of the stage, keys of plan.json
_LARGEST = 2**20  # of either


class ComputePlan(NamedTuple):
    """How the samples of a step are divided."""

    micro_batch: int
    num_lanes: int  # micro-batches that are computed side by side
    threads: int  # of torch in each of them

    @classmethod
    def of(cls, micro_batch: int, *, num_samples: int, num_cores: int, threads: int | None = None) -> "ComputePlan":
        """The cores divided among the micro-batches of a step; `threads` are those that a run has begun with."""
        num_parts = -(-num_samples // micro_batch)
        threads = threads or max(1, num_cores // num_parts)
        return cls(micro_batch, max(1, min(num_parts, num_cores // threads)), threads)


def plan_compute(
    model: AnyModel, task: Task[Any], *, stage: int, num_samples: int, num_cores: int, folder: RunFolder, world: World
) -> ComputePlan:
    """The plan for `num_samples` a step in this process: the recipe's, the one the run began with, or by rule.

    Sums round differently in other parts and with other threads, so that a run goes on with the same. The number of
    lanes changes no bit. All processes get the same.
    """
    site, recipe = task.site, task.recipe
    keys = (f"{_MICRO_BATCH}{stage}", f"{_THREADS}{stage}")
    objective = task.make_objective(total_steps=1, is_trial=True)
    has_lanes = can_have_lanes(model, objective, task, world=world)
    plan = world.share(read_plan(folder) if world.is_main else None)
    if recipe.run.micro_batch is not None:
        plan[keys[0]] = recipe.run.micro_batch
    elif keys[0] not in plan:
        plan[keys[0]] = choose_micro_batch(
            model,
            make_trial(task, objective),
            num_samples=num_samples,
            num_views=task.num_views,
            unit=task.counts_of_sample,
            num_lanes=num_cores if has_lanes else 1,
            device=site.device,
            together=world if is_sharded(model) else None,
        )
    known = None if recipe.run.threads is not None else plan.get(keys[1])
    if has_lanes:
        divided = ComputePlan.of(plan[keys[0]], num_samples=num_samples, num_cores=num_cores, threads=known)
    else:
        divided = ComputePlan(plan[keys[0]], 1, known or num_cores)
    plan[keys[1]] = divided.threads
    plan = world.share(plan)
    if world.is_main:
        folder.write_json(folder.plan_file, plan | describe_environment(site.device, site.dtype))
    return divided._replace(micro_batch=plan[keys[0]], threads=plan[keys[1]])


def read_plan(folder: RunFolder) -> dict[str, Any]:
    """The content of plan.json, where micro-batches and threads are whole numbers."""
    plan = folder.read_json(folder.plan_file)
    for key, value in plan.items():
        if key.startswith((_MICRO_BATCH, _THREADS)) and (type(value) is not int or not 1 <= value <= _LARGEST):
            raise ValueError(
                f"{folder.plan_file}: {key} must be a whole number of at least 1, not {str(value)[:80]!r}: restore "
                "it, or delete the file to have it made anew"
            )
    return plan


def can_have_lanes(model: AnyModel, objective: Objective[Any], task: Task[Any], *, world: World) -> bool:
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
