"""The micro-batch of a stage: measured when a run begins, written into its folder, and kept when it goes on."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from vitrail.evaluation.predict import autocast
from vitrail.models.contract import Model
from vitrail.tasks.contract import StepContext, Task
from vitrail.training.loop.micro_batch import choose_micro_batch
from vitrail.training.parallel.distributed import World
from vitrail.training.parallel.sharding import is_sharded
from vitrail.training.runs.environment import describe_environment
from vitrail.training.runs.run_folder import RunFolder

_MICRO_BATCH = "micro_batch_"  # before the number of the stage, a key of plan.json


def plan_micro_batch(
    model: Model, task: Task[Any], *, stage: int, num_samples: int, folder: RunFolder, world: World
) -> int:
    """The micro-batch for `num_samples` a step: the recipe's, the one the run began with, or one that is measured.

    Sums round differently in other parts, so that a run goes on with the same. All processes get the same.
    """
    site, key, given = task.site, f"{_MICRO_BATCH}{stage}", task.recipe.run.micro_batch
    plan = world.share(read_plan(folder) if world.is_main else None)
    if given is not None:
        plan[key] = given
    elif key not in plan:
        plan[key] = choose_micro_batch(
            model,
            make_trial(task),
            num_samples=num_samples,
            num_views=task.num_views,
            device=site.device,
            together=world if is_sharded(model) else None,
        )
    plan = world.share(plan)
    if world.is_main:
        folder.write_json(folder.plan_file, plan | describe_environment(site.device, site.dtype))
    return plan[key]


def read_plan(folder: RunFolder) -> dict[str, Any]:
    """The content of plan.json, where micro-batches are whole numbers."""
    plan = folder.read_json(folder.plan_file)
    for key, value in plan.items():
        if key.startswith(_MICRO_BATCH) and (type(value) is not int or value < 1):
            raise ValueError(
                f"{folder.plan_file}: {key} must be a whole number of at least 1, not {str(value)[:80]!r}: restore "
                "it, or delete the file to have it made anew"
            )
    return plan


def make_trial(task: Task[Any]) -> Callable[[nn.Module, int], Tensor]:
    """From a model and a number of samples to the loss of a batch of noise, after which nothing remembers it."""
    objective, site = task.make_objective(total_steps=1, is_trial=True), task.site

    def judge(model: nn.Module, count: int) -> Tensor:
        batch = task.prepare(task.example(count), StepContext(site.seed, 0, 0))
        with autocast(site.device, site.dtype):
            loss = objective(model, batch).total
        objective.skip_step()
        return loss

    return judge
