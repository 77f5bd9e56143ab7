"""What a recipe will take on this machine, from a few seconds of real steps and real loading."""

import math
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from vitrail.data.blend import Normalize
from vitrail.data.checks import as_pair
from vitrail.data.contract import Batch
from vitrail.data.loader import Loader
from vitrail.data.quarantine import Quarantine, QuarantineSettings
from vitrail.data.sampler import Sampler
from vitrail.evaluation.predict import autocast, choose_device, choose_precision
from vitrail.settings.recipe import Recipe
from vitrail.settings.text import stage_of
from vitrail.tasks.contract import Stateful
from vitrail.tasks.distill.teaching import find_teacher
from vitrail.tasks.embed.clustering import use_clusters
from vitrail.training.loop import build
from vitrail.training.loop.ema import MovingAverage
from vitrail.training.loop.micro_batch import choose_micro_batch

_SECONDS = 1.5  # of each measurement
_LOADED_AT_ONCE = 16  # images; the speed of loading hardly depends on it


@dataclass(frozen=True)
class StagePlan:
    """What one stage takes; speeds are images a second on one device."""

    model: str
    image_size: int | tuple[int, int]
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
    memory: int | None  # bytes at the peak; None: this kind of device does not tell

    @property
    def speed(self) -> float:
        """Of training: workers load beside the steps; without them loading happens in between."""
        return self._with_loading(self.step_speed)

    @property
    def loading_share(self) -> float:
        """The part of the time that the device spends waiting for images."""
        return 1.0 - self.speed / self.step_speed

    @property
    def workers_needed(self) -> int:
        """How many would load as fast as the device learns, if each is as fast as one is now."""
        return math.ceil(self.step_speed * max(1, self.workers) / self.loading_speed)

    @property
    def seconds(self) -> float:
        """On one device, evaluations included."""
        return self.num_steps * self.batch_size / self.speed + self.num_answers / self._with_loading(self.answer_speed)

    def _with_loading(self, speed: float) -> float:
        return min(speed, self.loading_speed) if self.workers else 1.0 / (1.0 / speed + 1.0 / self.loading_speed)


@dataclass(frozen=True)
class Plan:
    """What a whole recipe takes."""

    stages: tuple[StagePlan, ...]
    device: str
    precision: str

    def hours(self, num_devices: int = 1) -> float:
        """On so many devices like this one, each with its own workers, as if they were that many times as fast."""
        return sum(stage.seconds for stage in self.stages) / 3600 / num_devices


def make_plan(recipe: Recipe) -> Plan:
    """Measure every stage of a recipe. Nothing is written, and weights to start from are not needed."""
    stages = [stage_of(recipe, number) for number in range(recipe.num_stages)]
    all_data = [open_unclustered(stage) for stage in stages]  # all of them first: what is missing shows at once
    device = choose_device(recipe.run.device)
    dtype = choose_precision(recipe.run.precision, device)
    memory = _Memory(device)
    plans = tuple(
        measure_stage(stage, data, device=device, dtype=dtype, memory=memory)
        for stage, data in zip(stages, all_data, strict=True)
    )
    return Plan(plans, str(device), str(dtype).removeprefix("torch."))


def open_unclustered(recipe: Recipe) -> build.Data:
    """The data; where it is to be clustered, clusters of no meaning are as good."""
    data, num_clusters = build.open_data(recipe), recipe.data.clusters
    if num_clusters is None:
        return data
    train, val = (torch.arange(len(part)) % num_clusters for part in (data.train, data.val))
    return use_clusters(data, train, val, num_clusters=num_clusters)


def count_embedded(recipe: Recipe, data: build.Data) -> int:
    """Images that go through a model before the first step, to be clustered, or after the last, for the memory."""
    clustered = 0 if recipe.data.clusters is None else len(data.train) + len(data.val)
    return clustered + (len(data.train) if recipe.embedding.has_memory else 0)


def measure_stage(
    recipe: Recipe, data: build.Data, *, device: torch.device, dtype: torch.dtype, memory: "_Memory"
) -> StagePlan:
    """Time training steps, answers and loading, each for itself."""
    memory.reset()
    trial = _Trial(recipe, data, device=device, dtype=dtype)
    micro_batch = trial.choose_micro_batch()
    step_speed, answer_speed = trial.measure_steps(micro_batch), trial.measure_answers(micro_batch)
    peak = memory.peak()
    workers = build.count_workers(recipe, device)
    sampler = Sampler(len(data.train), batch_size=recipe.batch_size)
    num_steps = recipe.steps or math.ceil(recipe.epochs * sampler.num_steps)
    num_evaluations = math.ceil(num_steps / max(1, round(recipe.evaluation.every * sampler.num_steps)))
    return StagePlan(
        model=recipe.model.name,
        image_size=recipe.image_size,
        data=recipe.data.spec or "",
        num_train=len(data.train),
        num_val=len(data.val),
        num_steps=num_steps,
        batch_size=sampler.batch_size,
        num_answers=num_evaluations * len(data.val) + count_embedded(recipe, data),
        micro_batch=micro_batch,
        step_speed=step_speed,
        answer_speed=answer_speed,
        loading_speed=measure_loading(recipe, data, workers=workers),
        workers=workers,
        memory=peak,
    )


def measure_loading(recipe: Recipe, data: build.Data, *, workers: int) -> float:
    """Training images a second, read and augmented, with nothing else going on."""
    loader = Loader(
        data.train,
        transform=build.make_augmentation(recipe),
        sampler=Sampler(
            len(data.train),
            batch_size=_LOADED_AT_ONCE,
            seed=recipe.seed,
            num_repeats=recipe.augmentation.repeats,
            groups=data.train.groups,
        ),
        level=data.level,
        num_views=recipe.augmentation.views,
        num_workers=workers,
        quarantine=Quarantine(QuarantineSettings(max_share=recipe.data.max_broken)),
    )
    num_first = max(1, workers)  # every worker's first batch comes late, and all at once
    num_batches = num_images = epoch = 0
    start = time.perf_counter()
    while True:
        for batch in loader.epoch(epoch):
            num_batches += 1
            if num_batches <= num_first:
                start = time.perf_counter()
                continue
            num_images += len(batch.indices)
            seconds = time.perf_counter() - start
            if seconds > _SECONDS:
                return num_images / seconds
        epoch += 1


class _Trial:
    """A model that is trained on noise, as the loop would train it."""

    def __init__(self, recipe: Recipe, data: build.Data, *, device: torch.device, dtype: torch.dtype) -> None:
        self.recipe, self.device, self.dtype = recipe, device, dtype
        self.num_classes = len(data.labels.classes)
        untrained = recipe.model_copy(update={"model": recipe.model.model_copy(update={"init": None})})
        self.model = build.make_model(untrained, num_classes=self.num_classes).to(device).train()
        if recipe.run.checkpointing:
            self.model.recompute_blocks()
        self.normalize = Normalize(mean=self.model.preprocessing.mean, std=self.model.preprocessing.std)
        self.blend = build.make_blend(recipe, num_classes=self.num_classes)
        self.is_cached = recipe.teacher.model is not None and recipe.teacher.cache is not None
        teacher = None if self.is_cached else find_teacher(recipe, classes=data.labels.classes, device=device)
        self.objective = build.make_objective(
            recipe, data.labels, model=self.model, teacher=teacher, normalize=self.normalize
        )
        self.optimizer = build.make_optimizer(recipe, self.model)
        decay = recipe.regularisation.ema
        self.average = MovingAverage(self.model, decay=decay) if decay else None
        num_ranks = recipe.run.devices * recipe.run.nodes
        self.num_images = -(-min(recipe.batch_size, len(data.train)) // num_ranks)  # of a step on one device

    def choose_micro_batch(self) -> int:
        """The recipe's, or the one that measurement finds; on a slow device not from more than it does in seconds."""
        if self.recipe.run.micro_batch is not None:
            return self.recipe.run.micro_batch
        num_images = self.num_images
        if self.device.type == "cpu":
            pair = self._noise(2)
            self._pass(pair)  # the first pass of a process is slow
            pairs = 4 * _SECONDS / _time(lambda: self._pass(pair), self.device)
            num_images = min(num_images, 2 ** max(3, round(math.log2(2 * pairs))))
        self.optimizer.zero_grad()
        return choose_micro_batch(
            self.model,
            self.objective,
            num_images=num_images,
            num_views=self.recipe.augmentation.views,
            image_size=as_pair(self.recipe.image_size),
            num_classes=self.num_classes,
            has_answers=self.is_cached,
            device=self.device,
            dtype=self.dtype,
        )

    def measure_steps(self, micro_batch: int) -> float:
        """Images a second of whole steps, the optimizer's share of them included."""
        num_parts = -(-self.num_images // micro_batch)
        batch = self._noise(min(micro_batch, self.num_images))
        self._pass(batch)
        self._finish()
        seconds = num_parts * _repeat(lambda: self._pass(batch), self.device) + _repeat(self._finish, self.device)
        return num_parts * len(batch.indices) / seconds

    def measure_answers(self, micro_batch: int) -> float:
        """Images a second of evaluation."""
        images = self._noise(min(micro_batch, self.num_images)).images
        images = images if images.ndim == 4 else images[:, 0]
        self.model.eval()
        with torch.inference_mode(), autocast(self.device, self.dtype):
            seconds = _repeat(lambda: self.model(self.normalize(images.to(self.device))), self.device)
        return len(images) / seconds

    def _noise(self, count: int) -> Batch:
        views = self.recipe.augmentation.views
        images = torch.randint(256, (count * views, 3, *as_pair(self.recipe.image_size)), dtype=torch.uint8)
        images = images.contiguous(memory_format=torch.channels_last)
        if views > 1:
            images = images.unflatten(0, (count, views))
        return Batch(images, torch.randint(self.num_classes, (count,)), torch.arange(count))

    def _pass(self, batch: Batch) -> None:
        images, targets = self.normalize(batch.images.to(self.device)), batch.targets.to(self.device)
        batch = batch._replace(images=images, targets=targets)
        if self.is_cached:
            share = 1.0 / self.num_classes
            batch = batch._replace(answers=torch.full((len(targets), self.num_classes), share, device=self.device))
        if self.blend is not None:
            batch = self.blend(batch, seed=0, epoch=0, step=0)
        with autocast(self.device, self.dtype):
            losses = self.objective(self.model, batch)
        losses.total.backward()

    def _finish(self) -> None:
        """What a step does once, after the passes."""
        nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.optimizer.clip or math.inf)
        self.optimizer.step()
        if isinstance(self.objective, Stateful):
            self.objective.after_step(self.model)
        if self.average is not None:
            self.average.update(self.model)


class _Memory:
    """The most memory taken: a GPU's own account; on a CPU how much the whole process has grown since the beginning."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._before = _largest_size() if device.type == "cpu" else 0

    def reset(self) -> None:
        """Forget earlier stages, where that can be done."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def peak(self) -> int | None:
        """In bytes."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return _largest_size() - self._before if self.device.type == "cpu" else None


def _largest_size() -> int:
    """Of this process in its life so far, in bytes."""
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else 1024 * size  # macOS counts bytes, others kilobytes


def _repeat(function: Callable[[], object], device: torch.device) -> float:
    """The median of its seconds, of two calls at least."""
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
