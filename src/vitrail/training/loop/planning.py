"""What a recipe will take on this machine, from a few seconds of real steps and real loading."""

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from vitrail.data.contract import Batch
from vitrail.evaluation.lanes import Lanes
from vitrail.evaluation.predict import autocast, choose_device, choose_precision
from vitrail.settings.recipe import Recipe
from vitrail.settings.text import stage_of
from vitrail.tasks import find_task
from vitrail.tasks.contract import Losses, StepContext, StepLoader, Task, TaskData
from vitrail.tasks.site import Site
from vitrail.training.loop.ema import MovingAverage
from vitrail.training.loop.freezing import freeze
from vitrail.training.loop.micro_batch import choose_micro_batch
from vitrail.training.loop.planned import ComputePlan, can_have_lanes, make_trial
from vitrail.training.loop.replicas import Replicas
from vitrail.training.parallel.distributed import World

_SECONDS = 1.5  # of each measurement
_LOADED_AT_ONCE = 16  # samples; the speed of loading hardly depends on it
_AT = StepContext(0, 0, 0)  # of a step that is never made


@dataclass(frozen=True)
class StagePlan:
    """What one stage takes; speeds are images a second on one device."""

    model: str
    image_size: int | tuple[int, int] | None  # None where there are no images
    data: str  # its spec
    num_train: int  # images in it
    num_val: int
    num_steps: int
    batch_size: int  # of a step, over all devices
    num_answers: int  # images answered in all evaluations together, and for a memory or clusters
    micro_batch: int
    step_speed: float
    answer_speed: float
    loading_speed: float
    workers: int
    num_lanes: int  # micro-batches that a CPU computes side by side
    memory: int | None  # bytes at the peak; None: this kind of device does not tell
    counted: str = "images"  # what sizes of batches and speeds count

    @property
    def speed(self) -> float:
        """Images a second of training: workers load beside the steps; without them, the cores that compute do it."""
        return self._with_loading(self.step_speed)

    @property
    def loading_share(self) -> float:
        """The part of the time that the device spends waiting for images."""
        return 1.0 - self.speed / self.step_speed

    @property
    def workers_needed(self) -> int:
        """How many workers would load as fast as the device learns, if each is as fast as one is now."""
        return math.ceil(self.step_speed * max(1, self.workers) / self.loading_speed)

    @property
    def seconds(self) -> float:
        """Seconds of the stage on one device, evaluations included."""
        return self.num_steps * self.batch_size / self.speed + self.num_answers / self._with_loading(self.answer_speed)

    def _with_loading(self, speed: float) -> float:
        if self.workers:
            return min(speed, self.loading_speed)
        return 1.0 / (1.0 / speed + 1.0 / (self.num_lanes * self.loading_speed))


@dataclass(frozen=True, repr=False)
class Plan:
    """What a whole recipe takes."""

    stages: tuple[StagePlan, ...]
    device: str
    precision: str

    def __repr__(self) -> str:
        lines = [f"measured on {self.device} in {self.precision}"]
        for stage in self.stages:
            memory = "" if stage.memory is None else f", {stage.memory / 2**30:.1f} GB at the peak"
            lines.append(
                f"{stage.model}: {stage.num_steps:,} steps of {stage.batch_size:,}, {stage.speed:,.0f} samples/s, "
                f"{stage.seconds / 3600:.2f} hours on one device{memory}"
            )
        return "\n".join(lines)

    def hours(self, num_devices: int = 1) -> float:
        """Hours on so many devices like this one, each with its own workers, as if that many times as fast."""
        return sum(stage.seconds for stage in self.stages) / 3600 / num_devices


def make_plan(recipe: Recipe) -> Plan:
    """Measure every stage of a recipe. Nothing is written, and weights to start from are not needed."""
    threads = torch.get_num_threads()
    try:
        return _make_plan(recipe)
    finally:
        torch.set_num_threads(threads)


def _make_plan(recipe: Recipe) -> Plan:
    device = choose_device(recipe.run.device)
    dtype = choose_precision(recipe.run.precision, device)
    site = Site(device=device, dtype=dtype, seed=recipe.seed)
    tasks = [make_task(stage_of(recipe, number), site) for number in range(recipe.num_stages)]
    all_data = [task.open() for task in tasks]  # all of them first: what is missing shows at once
    memory = _Memory(device)
    plans: list[StagePlan] = []
    while tasks:  # a task that was measured goes, with its model
        plans.append(measure_stage(tasks.pop(0), all_data.pop(0), memory=memory))
    return Plan(tuple(plans), str(device), str(dtype).removeprefix("torch."))


def make_task(recipe: Recipe, site: Site) -> Task[Any]:
    """The task of a stage."""
    return find_task(recipe.task)(recipe, site)


def measure_stage(task: Task[Any], data: TaskData, *, memory: "_Memory") -> StagePlan:
    """Time training steps, answers and loading, each for itself."""
    memory.reset()
    recipe: Recipe = task.recipe
    trial = _Trial(task, data)
    micro_batch = trial.choose_micro_batch()
    step_speed, answer_speed = trial.measure_steps(micro_batch), trial.measure_answers(micro_batch)
    peak = memory.peak()
    loaders = task.make_loaders(num_parts=trial.count_parts(_LOADED_AT_ONCE), listing=None)
    sampler = loaders.train.sampler
    num_steps = recipe.steps or math.ceil(recipe.epochs * sampler.num_steps)
    num_evaluations = math.ceil(num_steps / max(1, round(recipe.evaluation.every * sampler.num_steps)))
    return StagePlan(
        model=recipe.model.name,
        image_size=getattr(recipe, "image_size", None),
        data=recipe.data.spec or "",
        num_train=data.num_train,
        num_val=data.num_val,
        num_steps=num_steps,
        batch_size=sampler.batch_size,
        num_answers=num_evaluations * task.count_measured(data) + task.num_passes,
        micro_batch=micro_batch,
        step_speed=step_speed,
        answer_speed=answer_speed,
        loading_speed=measure_loading(loaders.train, count=task.count_batch),
        workers=loaders.train.num_workers,
        num_lanes=trial.num_lanes,
        memory=peak,
        counted=task.counted,
    )


def measure_loading(loader: StepLoader, *, count: Callable[[Any], int]) -> float:
    """What is read and augmented in a second for training, in what the task counts, with nothing else going on."""
    num_first = max(1, loader.num_workers)  # every worker's first batch comes late, and all at once
    num_batches = num_counted = epoch = 0
    start = time.perf_counter()
    while True:
        for batch in loader.epoch(epoch):
            num_batches += 1
            if num_batches <= num_first:
                start = time.perf_counter()
                continue
            num_counted += count(batch)
            seconds = time.perf_counter() - start
            if seconds > _SECONDS:
                return num_counted / seconds
        epoch += 1


class _Trial:
    """A model that is trained on noise, as the loop would train it."""

    def __init__(self, task: Task[Any], data: TaskData) -> None:
        recipe: Recipe = task.recipe
        self.task, self.recipe = task, recipe
        self.device, self.dtype = task.site.device, task.site.dtype
        self.model = task.make_model(task.describe(data.describe()))
        freeze(self.model.trunk, recipe.model.train_only)
        self.model.to(self.device).train()
        if recipe.run.checkpointing:
            self.model.recompute_blocks()
        task.attach(self.model)
        self.objective = task.make_objective(total_steps=1, is_trial=True)
        self.optimizer = recipe.optimizer.build(self.model, lr=recipe.lr)
        decay = recipe.regularisation.ema
        self.average = MovingAverage(self.model, decay=decay) if decay else None
        self.num_lanes = 1
        num_ranks = recipe.run.devices * recipe.run.nodes
        self.num_samples = -(-task.count_step(data) // num_ranks)  # of a step on one device, in what the task counts

    def count_parts(self, micro_batch: int) -> int:
        """Micro-batches of about that size in a step."""
        return max(1, min(self.recipe.batch_size, self.num_samples) // max(2, micro_batch * self.task.counts_of_sample))

    def choose_micro_batch(self) -> int:
        """The recipe's micro-batch, or the one that the run would take; with how many lanes, is noted here."""
        num_cores = self.recipe.run.threads or torch.get_num_threads()
        has_lanes = can_have_lanes(self.model, self.objective, self.task, world=World())
        micro_batch = self.recipe.run.micro_batch or choose_micro_batch(
            self.model,
            make_trial(self.task, self.objective),
            num_samples=self.num_samples,
            num_views=self.task.num_views,
            unit=self.task.counts_of_sample,
            num_lanes=num_cores if has_lanes else 1,
            device=self.device,
        )
        if has_lanes:
            plan = ComputePlan.of(micro_batch, num_samples=self.num_samples, num_cores=num_cores)
            self.num_lanes = plan.num_lanes
            torch.set_num_threads(plan.threads)
        return micro_batch

    def measure_steps(self, micro_batch: int) -> float:
        """What whole steps get through in a second, the optimizer's share of them included."""
        num_parts = -(-self.num_samples // micro_batch)
        batch = self.task.example(min(micro_batch, self.num_samples))
        with Lanes(self.num_lanes, threads=torch.get_num_threads()) as lanes:
            replicas = Replicas(self.model, lanes=lanes) if self.num_lanes > 1 else None

            def compute() -> None:
                if replicas is None:
                    self._judge(self.model, batch).total.backward()
                else:
                    list(replicas.judge(lambda replica, part: self._learn(replica.model, part), [batch] * lanes.count))

            compute()
            self._finish()
            seconds = -(-num_parts // self.num_lanes) * _repeat(compute, self.device)
        return num_parts * self.task.count_batch(batch) / (seconds + _repeat(self._finish, self.device))

    def measure_answers(self, micro_batch: int) -> float:
        """What evaluation gets through in a second."""
        batch = self.task.example(min(micro_batch, self.num_samples))
        self.model.eval()

        def respond(part: Batch) -> None:
            with torch.inference_mode(), autocast(self.device, self.dtype):
                self.task.respond(self.model, self.task.prepare(part, _AT))

        with Lanes(self.num_lanes, threads=torch.get_num_threads()) as lanes:
            seconds = _repeat(lambda: list(lanes.map(respond, [batch] * lanes.count)), self.device)
        return self.num_lanes * self.task.count_batch(batch) / seconds

    def _learn(self, model: nn.Module, batch: Batch) -> Losses:
        losses = self._judge(model, batch)
        losses.total.backward()
        return losses

    def _judge(self, model: nn.Module, batch: Batch) -> Losses:
        with autocast(self.device, self.dtype):
            return self.objective(model, self.task.prepare(batch, _AT))

    def _finish(self) -> None:
        """What a step does once, after the passes."""
        nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.optimizer.clip or math.inf)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.objective.after_step(self.model)
        if self.average is not None:
            self.average.update(self.model)


class _Memory:
    """The most memory taken: a GPU's own account; on a CPU how much the whole process has grown since the beginning."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._before = _largest_size() if device.type == "cpu" else None

    def reset(self) -> None:
        """Forget earlier stages, where that can be done."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def peak(self) -> int | None:
        """The most memory taken, in bytes; None where the device does not tell."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        largest = _largest_size() if self.device.type == "cpu" else None
        return None if largest is None or self._before is None else largest - self._before


def _largest_size() -> int | None:
    """The largest size of this process in its life so far, in bytes; None on Windows, which does not tell."""
    try:
        import resource
    except ImportError:
        return None
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else 1024 * size  # macOS counts bytes, others kilobytes


def _repeat(function: Callable[[], object], device: torch.device) -> float:
    """The median of the seconds of a call, of two calls at least."""
    times: list[float] = []
    while len(times) < 2 or sum(times) < _SECONDS / 2:
        times.append(_time(function, device))
    return sorted(times)[(len(times) - 1) // 2]


def _time(function: Callable[[], object], device: torch.device) -> float:
    _synchronize(device)
    start = time.perf_counter()
    function()
    _synchronize(device)
    return time.perf_counter() - start


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
