"""One stage of a run: build, step, log, evaluate, save; and go on after a stop as if there had been none."""

import logging
import math
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.data.blend import Normalize
from vitrail.data.checks import as_pair
from vitrail.data.contract import Batch
from vitrail.data.draws import Draws
from vitrail.evaluation.predict import autocast, choose_precision
from vitrail.settings.recipe import Recipe
from vitrail.tasks.contract import Objective, Stateful
from vitrail.tasks.distill.distill import Distill
from vitrail.tasks.distill.teaching import find_teacher, open_cache
from vitrail.tasks.embed.memory import Processes
from vitrail.training.loop import build
from vitrail.training.loop.ema import MovingAverage
from vitrail.training.loop.interruption import Interrupted, StopSignal
from vitrail.training.loop.loaders import make_loaders
from vitrail.training.loop.measuring import measure, measure_layers, refresh_memory
from vitrail.training.loop.micro_batch import choose_micro_batch
from vitrail.training.loop.not_finite import describe_not_finite
from vitrail.training.loop.optimizer import set_lr
from vitrail.training.parallel.distributed import World, distribute, local_gradients
from vitrail.training.parallel.sharding import (
    clip_gradients,
    divide_average,
    is_sharded,
    load_optimizer,
    shard,
    use_divided_updates,
    whole,
)
from vitrail.training.runs.checkpoint import Checkpoints
from vitrail.training.runs.environment import describe_environment
from vitrail.training.runs.predictions import write_predictions
from vitrail.training.runs.progress import Progress
from vitrail.training.runs.reference_curves import Verdict, compare, load_curve
from vitrail.training.runs.run_folder import RunFolder
from vitrail.training.runs.trackers import Trackers
from vitrail.weights import save_model

_LOGGER = logging.getLogger(__name__)


class Stage:
    """One stage of a run, from its data to its weights."""

    def __init__(
        self,
        recipe: Recipe,
        *,
        number: int,
        data: build.Data,
        folder: RunFolder,
        checkpoints: Checkpoints,
        world: World,
        device: torch.device,
        progress: Progress,
        stop: StopSignal,
        trackers: Trackers,
    ) -> None:
        self.recipe, self.number, self.data = recipe, number, data
        self.folder, self.checkpoints = folder, checkpoints
        self.world, self.device, self.progress, self.stop = world, device, progress, stop
        self.trackers = trackers
        self.num_classes = len(data.labels.classes)
        # A later stage has its own random choices.
        self.seed = recipe.seed if number == 0 else Draws(recipe.seed, number, "stage").integer(2**31)
        self.dtype = choose_precision(recipe.run.precision, device)
        self.step = 0
        self.best: dict[str, float] = {"top1": -1.0, "epoch": 0.0}
        self.curve = load_curve(recipe.against) if recipe.against else None
        self.num_skipped = 0

    def prepare(self, state: dict[str, Any] | None, *, initial: build.Initial | None) -> None:
        """Build everything; take the weights of the stage before, or the whole state of a checkpoint."""
        recipe = self.recipe
        if initial is not None or state is not None:  # the weights come from there
            recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"init": None})})
        classes = self.data.labels.classes
        self.model = build.make_model(recipe, num_classes=self.num_classes, classes=classes)
        if initial is not None:
            build.load_initial(self.model, initial, classes=classes, interpolation=recipe.model.position_resize)
        if state is not None:
            self.model.load_state_dict(state["model"])
        self.model.to(self.device).train()
        if recipe.run.checkpointing:
            self.model.recompute_blocks()
        preprocessing = self.model.preprocessing
        self.normalize = Normalize(mean=preprocessing.mean, std=preprocessing.std)
        self.blend = build.make_blend(recipe, num_classes=self.num_classes)
        self.teacher = find_teacher(recipe, classes=classes, device=self.device)
        self.teacher_cache = open_cache(recipe, self.data, self.teacher)
        if self.teacher_cache is not None and self.world.is_main:
            _LOGGER.info("%s", self.teacher_cache.describe())
        self.micro_batch = self._plan()
        if recipe.run.sharding == "full" and self.world.num_ranks > 1:
            shard(self.model, world=self.world, device=self.device, dtype=self.dtype)
        self.optimizer = build.make_optimizer(recipe, self.model)
        if is_sharded(self.model):
            use_divided_updates(self.optimizer)
        decay = recipe.regularisation.ema
        self.average = MovingAverage(self.model, decay=decay, warmup=True) if decay else None
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.dtype == torch.float16)
        self.num_parts = -(-self._rank_batch // self.micro_batch)
        self.loader, self.val_loader = make_loaders(
            recipe,
            self.data,
            view=build.make_evaluation_view(recipe, self.model),
            seed=self.seed,
            ranks=self.world.ranks,
            num_parts=self.num_parts,
            device=self.device,
            listing=self.folder.quarantine_file if self.world.is_main else None,
        )
        self.sampler = self.loader.sampler
        total = recipe.steps or math.ceil(recipe.epochs * self.sampler.num_steps)
        self.total_steps = total
        self.schedule = build.make_schedule(recipe, steps_per_epoch=self.sampler.num_steps, total_steps=total)
        world = self.world
        self.objective = self._make_objective(
            Processes(rank=world.rank, num_ranks=world.num_ranks, all_reduce=world.sum), total_steps=total
        )
        if state is not None:
            self._restore(state)
        parallel = distribute(self.model, self.world, self.device)
        self.parallel: nn.Module = torch.compile(parallel) if recipe.run.compile else parallel  # type: ignore[assignment]

    def _make_objective(self, processes: Processes | None = None, *, total_steps: int = 1) -> Objective:
        return build.make_objective(
            self.recipe,
            self.data.labels,
            model=self.model,
            teacher=self.teacher if self.teacher_cache is None else None,
            normalize=self.normalize,
            processes=processes,
            total_steps=total_steps,
        )

    def _plan(self) -> int:
        """The micro-batch: given, as it was when the run began (sums round differently in other parts), or measured."""
        plan = self.folder.read_json(self.folder.plan_file)
        key = f"micro_batch_{self.number}"
        if self.recipe.run.micro_batch is not None:
            plan[key] = self.recipe.run.micro_batch
        elif key not in plan:
            plan[key] = choose_micro_batch(
                self.model,
                self._make_objective(),
                num_images=self._rank_batch,
                num_views=self.recipe.augmentation.views,
                image_size=as_pair(self.recipe.image_size),
                num_classes=self.num_classes,
                has_answers=self.teacher_cache is not None,
                device=self.device,
                dtype=self.dtype,
            )
        plan = self.world.share(plan)
        if self.world.is_main:
            self.folder.write_json(self.folder.plan_file, plan | describe_environment(self.device, self.dtype))
        return plan[key]

    @property
    def _rank_batch(self) -> int:
        """Images of a step in this process."""
        return -(-min(self.recipe.batch_size, len(self.data.train)) // self.world.num_ranks)

    @property
    def epoch(self) -> float:
        """Epochs done."""
        return self.step / self.sampler.num_steps

    def run(self) -> None:
        """All steps that are left."""
        self._last_save = time.monotonic()
        with self.progress.stage(self):
            while self.step < self.total_steps and not self._has_stalled():
                for batches in self._steps_of_epoch():
                    self._step(batches)
                    is_due = self._is_evaluation_due()
                    if is_due:
                        self.evaluate()
                    wants_save = time.monotonic() - self._last_save > 60 * self.recipe.run.save_minutes
                    must_stop, must_save = self.world.any(self.stop.is_set, wants_save)
                    if must_stop or must_save or is_due:
                        self.save(is_best=is_due and self.best["epoch"] == self.epoch)
                    if must_stop:
                        raise Interrupted
                    if self.step == self.total_steps or self._has_stalled():
                        break
            if self._has_stalled():
                self.progress.say(f"no better accuracy since epoch {self.best['epoch']:g}: stopped early")

    def _steps_of_epoch(self) -> Iterator[list[Batch]]:
        """The micro-batches of each step that is left of the current epoch."""
        number, start = divmod(self.step, self.sampler.num_steps)
        batches = self.loader.epoch(number, start_step=start)
        group: list[Batch] = []
        for batch in self.progress.waiting(batches):
            group.append(batch)
            if len(group) == self.num_parts:
                yield group
                group = []

    def _step(self, batches: list[Batch]) -> None:
        """One step of the optimizer: the gradient of the global batch, summed over its micro-batches."""
        epoch = self.step // self.sampler.num_steps
        set_lr(self.optimizer, self.schedule.lr_at(self.step))
        # Dropped paths are a function of the step too, so that a run that goes on needs no random state.
        torch.manual_seed(Draws(self.seed, self.step, self.world.rank, "model").integer(2**62))
        loss = torch.zeros((), device=self.device)
        parts: dict[str, Tensor] = {}
        for place, batch in enumerate(batches):
            share = len(batch.indices) * self.world.num_ranks / self.sampler.batch_size
            with local_gradients(self.parallel, is_last=place == len(batches) - 1):
                with autocast(self.device, self.dtype):
                    losses = self.objective(self.parallel, self.to_device(batch, epoch=epoch))
                self.scaler.scale(losses.total * share).backward()
            loss += losses.total.detach() * share
            for name, part in losses.parts.items():
                parts[name] = parts.get(name, 0.0) + part * share
        self.scaler.unscale_(self.optimizer)
        norm = clip_gradients(self.model, self.recipe.optimizer.clip)
        is_finite = self._check_finite(loss, norm, batches)
        if is_finite:
            self.scaler.step(self.optimizer)
            self.scaler.update()
            if isinstance(self.objective, Stateful):
                self.objective.after_step(self.model)
            if self.average is not None:
                self.average.update(self.model)
        elif self.scaler.is_enabled():
            self.scaler.update()  # its account of this step is closed, though no step was made
        if not is_finite and isinstance(self.objective, Stateful):
            self.objective.skip_step()
        self.optimizer.zero_grad()
        self.step += 1
        num_images = sum(len(batch.indices) for batch in batches) * self.world.num_ranks
        if self.progress.note_step(self, num_images=num_images, is_due=self.step == self.total_steps):
            self._log_step(loss, norm, parts)

    def to_device(self, batch: Batch, *, epoch: int) -> Batch:
        """A batch as the objective takes it: on the device, normalised, mixed, with a teacher's answers if kept."""
        pixels = batch.images.to(self.device, non_blocking=True)
        targets = batch.targets.to(self.device, non_blocking=True)
        answers = self._look_up(batch, pixels)
        batch = batch._replace(images=self.normalize(pixels), targets=targets, answers=answers)
        return self.blend(batch, seed=self.seed, epoch=epoch, step=self.step) if self.blend else batch

    def _look_up(self, batch: Batch, pixels: Tensor) -> Tensor | None:
        """What the teacher says about images not mixed yet; it is asked about those only that it has not seen."""
        if self.teacher_cache is None:
            return None
        assert batch.views is not None
        assert self.teacher is not None
        assert isinstance(self.objective, Distill)
        logits = self.teacher_cache.answer(
            batch.indices, batch.views, pixels=lambda: pixels.float() / 255.0, teacher=self.teacher
        )
        return self.objective.soften(logits.to(self.device))

    def _check_finite(self, loss: Tensor, norm: Tensor, batches: list[Batch]) -> bool:
        """Whether the step can be taken. fp16 overflows now and then, and its scaler then skips the step by itself."""
        is_fine = bool(torch.isfinite(loss)) and (self.scaler.is_enabled() or bool(torch.isfinite(norm)))
        [is_broken] = self.world.any(not is_fine)
        if not is_broken:
            return True
        if self.recipe.run.on_nan == "skip":
            self.num_skipped += 1
            _LOGGER.warning("step %d skipped: loss %s, gradient norm %s", self.step, loss.item(), norm.item())
            return False
        raise ValueError(describe_not_finite(self, loss, norm, batches))

    def _log_step(self, loss: Tensor, norm: Tensor, parts: dict[str, Tensor]) -> None:
        mean = self.world.sum(torch.stack([loss, *parts.values()])) / self.world.num_ranks
        record = {
            "kind": "train",
            "stage": self.number,
            "step": self.step,
            "epoch": round(self.epoch, 4),
            "loss": mean[0].item(),
            **(
                {f"loss_{name}": value.item() for name, value in zip(parts, mean[1:], strict=True)}
                if len(parts) > 1
                else {}
            ),
            "lr": self.optimizer.param_groups[-1]["lr"],
            "gradient_norm": norm.item(),
            **({"num_skipped": self.num_skipped} if self.num_skipped else {}),
            **self.progress.speed(),
        }
        if self.world.is_main:
            self._write_metrics(record)
            self.progress.show_step(record)

    def _write_metrics(self, record: dict[str, Any]) -> None:
        self.folder.append_metrics(record)
        self.trackers.log(record)

    def _is_evaluation_due(self) -> bool:
        every = max(1, round(self.recipe.evaluation.every * self.sampler.num_steps))
        return self.step % every == 0 or self.step == self.total_steps

    def _has_stalled(self) -> bool:
        """Whether early stopping ends the run here: judged where it is evaluated, and so also when it goes on."""
        patience = self.recipe.regularisation.early_stop
        if patience is None or self.step in (0, self.total_steps) or not self._is_evaluation_due():
            return False
        return self.epoch - self.best["epoch"] >= patience

    def evaluate(self) -> None:
        """Measure on val, with the moving average where there is one, and remember the best."""
        started = time.monotonic()
        results, columns = measure(self, is_final=self.step == self.total_steps)
        if results["top1"] > self.best["top1"]:
            self.best = {"top1": results["top1"], "epoch": self.epoch}
        if self._has_stalled():
            refresh_memory(self)
        if self.world.is_main:
            write_predictions(self.folder.predictions_file, columns)
            record: dict[str, Any] = {"kind": "eval", "stage": self.number, "step": self.step}
            record |= {"epoch": round(self.epoch, 4), **results, "seconds": round(time.monotonic() - started, 3)}
            if self.recipe.evaluation.layers and not is_sharded(self.model):
                place = {key: record[key] for key in ("stage", "step", "epoch")}
                self.folder.append_metrics({"kind": "layers", **place, "ratios": measure_layers(self)})
            verdict = self._compare(results["top1"])
            if verdict is not None:
                record["against"] = verdict.as_record()
            self._write_metrics(record)
            self.progress.show_evaluation(record)
            if verdict is not None:
                self.progress.say(verdict.describe())

    def _compare(self, top1: float) -> Verdict | None:
        """Where the accuracy lies beside the published curve, if the recipe has one."""
        if self.curve is None:
            return None
        return compare(self.curve, self.epoch, top1, epochs=self.total_steps / self.sampler.num_steps)

    def save(self, *, is_best: bool) -> None:
        """Write a checkpoint of everything that the rest of the run depends on."""
        self._last_save = time.monotonic()
        step = self.number * 10**9 + self.step
        objective = self.objective.state_dict() if isinstance(self.objective, Stateful) else None  # of every process
        if is_sharded(self.model):
            self.checkpoints.save_divided(self._state(objective), step=step, is_best=is_best, world=self.world)
        elif self.world.is_main:
            self.checkpoints.save(self._state(objective), step=step, is_best=is_best)

    def _state(self, objective: dict[str, Any] | None) -> dict[str, Any]:
        return {
            "stage": self.number,
            "step": self.step,
            "data": self.data.describe(),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": self.average.state_dict() if self.average else None,
            "scaler": self.scaler.state_dict(),
            "objective": objective,
            "best": self.best,
            "num_skipped": self.num_skipped,
        }

    def _restore(self, state: dict[str, Any]) -> None:
        load_optimizer(self.optimizer, state["optimizer"])
        if self.average is not None:
            self.average.load_state_dict(divide_average(state["average"], weights=self.average.weights))
        if state["scaler"]:  # nothing is in it unless the run was in fp16
            self.scaler.load_state_dict(state["scaler"])
        if isinstance(self.objective, Stateful):
            self.objective.load_state_dict(state["objective"])
        self.step, self.best, self.num_skipped = state["step"], state["best"], state["num_skipped"]

    def final_weights(self) -> dict[str, Tensor]:
        """What the next stage begins with: the average, where there is one."""
        if self.average is not None:
            self.average.copy_to(self.model)
        self.world.share_buffers(self.model)
        return {name: value.detach().cpu().clone() for name, value in whole(self.model.state_dict()).items()}

    def write_model(self, weights: dict[str, Tensor]) -> None:
        """The folder `model`, loadable by `vitrail.load_model`, with the names of its classes."""
        model = self.model
        if is_sharded(model):
            settings = self.recipe.model.model_copy(update={"init": None})
            recipe = self.recipe.model_copy(update={"model": settings})
            model = build.make_model(recipe, num_classes=self.num_classes)
            model.load_state_dict(weights)
        save_model(model.for_inference(), self.folder.model)
        self.folder.write_json(self.folder.model / "classes.json", self.data.describe())
