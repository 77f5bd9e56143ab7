"""Say what a recipe will take on this machine, after measuring it for some seconds; nothing is written."""

import argparse
import dataclasses
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitrail.settings.recipe import Recipe
    from vitrail.training.loop.planning import Plan, StagePlan

SUMMARY = "measure what a recipe will take on this machine"

_DEVICES = (1, 2, 4, 8, 16, 32, 64)
_FEW_DEVICES, _FEW_HOURS = 8, 0.25  # more devices have a line of their own only while there are hours to save


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `vitrail plan` takes."""
    parser.add_argument("recipe", help="a name of `vitrail recipes` or a YAML file")
    parser.add_argument(
        "settings",
        nargs="*",
        metavar="key=value",
        help="as for `vitrail train`: data=SPEC and any setting of the recipe, such as epochs=30 workers=4",
    )
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Measure, then print."""
    from vitrail.recipes import find_recipe
    from vitrail.settings.overriding import override
    from vitrail.settings.text import parse_assignments

    changes = parse_assignments(arguments.settings)
    changes.pop("out", None)  # so that the words after `vitrail train` can be taken as they are
    recipe = override(find_recipe(arguments.recipe), changes)

    from vitrail.api import plan as measure_plan

    plan = measure_plan(recipe)
    if arguments.json:
        import json

        print(json.dumps(_as_record(plan), indent=2))
    else:
        print("\n".join(_show(plan, recipe)))
    return 0


def _as_record(plan: "Plan") -> dict[str, Any]:
    record = dataclasses.asdict(plan)
    for stage, content in zip(plan.stages, record["stages"], strict=True):
        content |= {
            "speed": stage.speed,
            "loading_share": stage.loading_share,
            "workers_needed": stage.workers_needed,
            "hours": stage.seconds / 3600,
        }
    return record | {"hours": {str(count): plan.hours(count) for count in _DEVICES}}


def _show(plan: "Plan", recipe: "Recipe") -> Iterator[str]:
    yield f"{recipe.name}, measured on {plan.device} in {plan.precision}"
    for number, stage in enumerate(plan.stages, start=1):
        yield ""
        yield from _show_stage(stage, plan, title=f"stage {number}: " if len(plan.stages) > 1 else "")
    yield ""
    yield "the whole recipe, evaluations included, on devices like this one if they scale linearly:"
    for count in _DEVICES:
        yield f"  {count:>2} {'device ' if count == 1 else 'devices'}  {_duration(plan.hours(count))}"
        if count >= _FEW_DEVICES and plan.hours(count) < _FEW_HOURS:
            break
    if recipe.run.compile or recipe.run.sharding != "none":
        yield "measured without torch.compile and without sharding, which the recipe asks for"


def _show_stage(stage: "StagePlan", plan: "Plan", *, title: str) -> Iterator[str]:
    sides = stage.image_size
    size = f" at {sides if isinstance(sides, int) else ' x '.join(map(str, sides))} px" if sides else ""
    place = f"with workers={stage.workers}" if stage.workers else "between the steps (workers=0)"
    yield f"{title}{stage.model}{size}, {stage.num_steps:,} steps of {stage.batch_size:,} {stage.counted}"
    trained_on = f"{stage.num_train:,} {_samples(stage)} to train on"
    yield f"  data            {stage.data}: {trained_on}, {stage.num_val:,} to evaluate on"
    yield f"  micro-batch     {stage.micro_batch:,} {stage.counted} on a device at a time"
    yield f"  training steps  {_speed(stage.step_speed)} {stage.counted}/s"
    yield f"  data loading    {_speed(stage.loading_speed)} {stage.counted}/s {place}"
    yield f"  bottleneck      {_judge(stage, plan.device)}"
    yield f"  both together   {_speed(stage.speed)} {stage.counted}/s, {_duration(stage.seconds / 3600)} on one device"
    yield f"  peak memory     {_memory(stage.memory, plan.device)}"


def _judge(stage: "StagePlan", device: str) -> str:
    """Whether the model or the loading of data decides the speed, and what to do about it."""
    share = f"{stage.loading_share:.0%}"
    cores = os.cpu_count() or 1
    keep_up = f"workers={stage.workers_needed} would keep up (this machine has {cores} cores)"
    if stage.workers == 0 and stage.loading_share < 0.5:
        verdict = f"the model; loading takes {share} of the time"
        return verdict if device == "cpu" else f"{verdict}, {keep_up}"
    if stage.workers == 0:
        return f"data loading, {share} of the time: {keep_up}"
    if stage.loading_share == 0.0:
        note = "; on a CPU workers take cores from it, which this does not count" if device == "cpu" else ""
        factor = stage.loading_speed / stage.step_speed
        return f"the model: loading is {factor:.1f} times as fast as it needs to be{note}"
    return f"data loading: the device waits {share} of the time, {keep_up}"


def _samples(stage: "StagePlan") -> str:
    return "images" if stage.counted == "images" else "samples"


def _speed(speed: float) -> str:
    return f"{speed:,.0f}" if speed >= 10 else f"{speed:.2g}"


def _memory(memory: int | None, device: str) -> str:
    if memory is None:
        return "not known on this kind of device"
    amount = f"{memory / 2**30:.1f} GB" if memory >= 2**30 else f"{memory / 2**20:.0f} MB"
    if device == "cpu":
        return f"{amount} that the process grew by, trials of other micro-batches included"
    return f"{amount} on the device"


def _duration(hours: float) -> str:
    if hours >= 48:
        return f"{hours / 24:,.1f} days"
    if hours >= 1:
        return f"{hours:.1f} hours"
    return f"{60 * hours:.1f} minutes" if hours >= 1 / 60 else f"{3600 * hours:.0f} seconds"
