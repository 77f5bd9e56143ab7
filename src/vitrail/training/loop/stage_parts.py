"""What a stage of a run consists of: built from its recipe or a checkpoint, saved, and handed on to the next."""

import math
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vitrail.data.draws import seed_of_stage
from vitrail.data.sampler import count_parts
from vitrail.evaluation.lanes import Lanes
from vitrail.settings.recipe import Recipe
from vitrail.storage import content_of
from vitrail.tasks import find_task
from vitrail.tasks.contract import Initial, Task, TaskData
from vitrail.tasks.results import Measure
from vitrail.tasks.site import Site
from vitrail.training.loop.acceleration import choose_memory_format
from vitrail.training.loop.ema import MovingAverage
from vitrail.training.loop.freezing import freeze
from vitrail.training.loop.gradients import StepGradients
from vitrail.training.loop.held_up import HeldUp
from vitrail.training.loop.last_weights import LastWeights
from vitrail.training.loop.planned import plan_compute
from vitrail.training.loop.stage_metrics import StageMetrics
from vitrail.training.loop.step_guard import StepGuard
from vitrail.training.loop.surroundings import Surroundings
from vitrail.training.parallel.batch_norm import synchronize_statistics
from vitrail.training.parallel.exchange import Exchange
from vitrail.training.parallel.sharding import (
    divide_average,
    is_sharded,
    load_optimizer,
    load_parts,
    shard,
    use_divided_updates,
    whole,
)
from vitrail.training.runs.checkpoint import STEPS_OF_STAGE
from vitrail.training.runs.checkpoint_content import REMEDY
from vitrail.training.runs.divided_checkpoint import make_whole
from vitrail.training.runs.reference_curves import load_curve
from vitrail.weights import save_model


class StageParts:
    """The data, model, optimizer and all else of a stage, which `Stage` takes its steps with."""

    def __init__(self, recipe: Recipe, *, number: int, around: Surroundings) -> None:
        self.recipe, self.number, self.around = recipe, number, around
        self.folder, self.world, self.progress = around.folder, around.world, around.progress
        self.device, self.dtype = around.device, around.dtype
        self.seed = seed_of_stage(recipe.seed, number)
        self.num_cores = around.num_cores
        self.task = self._make_task()
        self.data: TaskData = self.task.open()
        self.step = 0
        self.best_value, self.best_epoch = self.measure.worst, 0.0
        self.num_skipped = 0
        self.owes_evaluation = False  # whether the run was stopped when it was about to evaluate this step
        self.metrics = StageMetrics(number, around, load_curve(recipe.against) if recipe.against else None)

    def _make_task(self) -> Task[Any]:
        site = Site(
            device=self.device,
            dtype=self.dtype,
            world=self.world,
            reporter=self.progress,
            seed=self.seed,
            stage=self.number,
            folder=self.folder.path,
            num_lanes=1 if self._is_divided else self.num_cores,
            is_sharded=self._is_divided,
        )
        return find_task(self.recipe.task)(self.recipe, site)

    @property
    def _is_divided(self) -> bool:
        """Whether each process is to have a part of the model."""
        return self.recipe.run.sharding == "full" and self.world.num_ranks > 1

    @property
    def measure(self) -> Measure:
        """What decides which weights are the best."""
        return self.task.deciding

    @property
    def description(self) -> dict[str, Any]:
        """The content of task.json."""
        return self.task.describe(self.data.describe())

    def prepare(self, state: dict[str, Any] | None, *, initial: Initial | None) -> None:
        """Build everything; take the weights of the stage before, or the whole state of a checkpoint."""
        recipe = self.recipe
        self.model = self.task.make_model(self.description)
        source = initial or recipe.model.source
        if state is not None and not self._is_divided:
            with content_of(state["file"], remedy=REMEDY):
                self.model.load_state_dict(make_whole(state.pop("model")))
        elif state is None and source is not None:
            self.task.load_initial(self.model, source, description=self.description)
        freeze(self.model.trunk, recipe.model.train_only)
        self.model.train()
        if recipe.run.checkpointing:
            self.model.recompute_blocks()
        if self._is_divided:  # block after block: no device ever holds the whole
            shard(self.model, world=self.world, device=self.device, dtype=self.dtype)
            if state is not None:
                with content_of(state["file"], remedy=REMEDY):
                    load_parts(self.model, state.pop("model"))
        self.model.to(self.device)
        choose_memory_format(self.model, recipe.run, self.device)
        self.task.attach(self.model)
        if state is None:
            self.task.start_head()
        plan = plan_compute(
            self.model,
            self.task,
            stage=self.number,
            num_samples=self._rank_batch,
            num_cores=self.num_cores,
            folder=self.folder,
            world=self.world,
        )
        torch.set_num_threads(plan.threads)
        if recipe.run.sync_batch_norm and self.world.num_ranks > 1:  # from here on all processes keep step
            synchronize_statistics(self.model)
        self.optimizer = recipe.optimizer.build(self.model, lr=recipe.lr)
        if is_sharded(self.model):
            use_divided_updates(self.optimizer)
        decay = recipe.regularisation.ema
        self.average = MovingAverage(self.model, decay=decay, warmup=True) if decay else None
        self.last_weights = self._make_last_weights(is_new=state is None)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.dtype == torch.float16)
        self.num_parts = count_parts(
            self.task.count_step(self.data),
            num_ranks=self.world.num_ranks,
            micro_batch=plan.micro_batch,
            keeps_pairs=self.task.keeps_pairs,
        )
        self.loaders = self.task.make_loaders(num_parts=self.num_parts, listing=self.folder.quarantine_file)
        self.sampler = self.loaders.train.sampler
        self.total_steps = recipe.steps or math.ceil(recipe.epochs * self.sampler.num_steps)
        self.schedules = recipe.schedule.build(
            lr=recipe.lr,
            weight_decay=recipe.optimizer.weight_decay,
            steps_per_epoch=self.sampler.num_steps,
            total_steps=self.total_steps,
        )
        self.objective = self.task.make_objective(total_steps=self.total_steps)
        # Without a val nothing is measured, and no weights are the best.
        self.evaluators = self.task.make_evaluators(self.objective, self.loaders) if self.data.num_val else ()
        self.exchange = Exchange(self.world)
        self._restored_from = None if state is None else state["file"]
        self.guard = StepGuard(self.model, self.optimizer, self.objective)
        if state is not None:
            with content_of(state["file"], remedy=REMEDY):
                self._restore(state)
        self.gradients = StepGradients(
            self.model,
            self.task,
            objective=self.objective,
            sampler=self.sampler,
            scaler=self.scaler,
            world=self.world,
            lanes=Lanes(plan.num_lanes, threads=plan.threads),
        )
        self.held_up = HeldUp(self.gradients.lanes)

    def _make_last_weights(self, *, is_new: bool) -> LastWeights | None:
        count = self.recipe.regularisation.average_last
        if count == 1:
            return None
        if self._is_divided:
            raise ValueError("regularisation.average_last needs the whole model in a process: leave sharding=full out")
        folder = self.folder.path / "last_weights"
        last = LastWeights(folder, count=count, stage=self.number, world=self.world)
        if is_new:
            last.forget()
        return last

    @property
    def _rank_batch(self) -> int:
        """What a step holds in this process, in what the task counts."""
        return -(-self.task.count_step(self.data) // self.world.num_ranks)

    @property
    def epoch(self) -> float:
        """How many epochs are done."""
        return self.step / self.sampler.num_steps

    def save(self, *, is_best: bool, is_evaluated: bool = True) -> None:
        """Have a checkpoint written of everything that the rest of the run depends on; the state is copied before.

        Without `is_evaluated` the run is stopped before an evaluation of this step, which it then begins with.
        """
        self._last_save = time.monotonic()
        if self.world.is_main:
            self.folder.check_present()
        step = self.number * STEPS_OF_STAGE + self.step
        objective = self.objective.state_dict()  # of every process
        writer = self.around.writer
        state = {**self._state(objective), "is_evaluated": is_evaluated}
        if is_sharded(self.model):
            writer.save_divided(state, step=step, is_best=is_best, world=self.world)
        elif self.world.is_main:
            writer.save(state, step=step, is_best=is_best)

    def _state(self, objective: dict[str, Any]) -> dict[str, Any]:
        return {
            "stage": self.number,
            "step": self.step,
            "data": self.description,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": self.average.state_dict() if self.average else None,
            "scaler": self.scaler.state_dict(),
            "objective": objective,
            "best": {"value": self.best_value, "epoch": self.best_epoch},
            "num_skipped": self.num_skipped,
        }

    def _restore(self, state: dict[str, Any]) -> None:
        """Take in what a checkpoint holds beside the model; it is taken out of `state`, which frees its memory."""
        load_optimizer(self.optimizer, state.pop("optimizer"))
        average = state.pop("average")
        if self.average is not None:
            self.average.load_state_dict(divide_average(average, weights=self.average.weights))
        if state["scaler"]:  # nothing is in it unless the run was in fp16
            self.scaler.load_state_dict(state["scaler"])
        self.objective.load_state_dict(make_whole(state.pop("objective") or {}))
        best = state["best"]
        self.best_value, self.best_epoch = best.get("value", best.get("top1")), best["epoch"]
        self.step, self.num_skipped = state["step"], state["num_skipped"]
        self.owes_evaluation = not state.get("is_evaluated", True)
        if self.step > self.total_steps:
            raise ValueError(f"it is of step {self.step} of {self.total_steps}")

    def finish(self) -> Initial:
        """What the next stage begins with: the average, where there is one."""
        if self.average is not None:
            self.average.copy_to(self.model)
        if self.last_weights is not None and self.step == self.total_steps:
            self.last_weights.copy_to(self.model, step=self.step)
        self.world.share_buffers(self.model)
        saved = None
        if not is_sharded(self.model) and self.model.for_inference().trunk is not self.model.trunk:
            saved = _copy(self.model.for_inference().state_dict())
        return Initial(_copy(whole(self.model.state_dict())), self.model.grid, self.description, saved)

    def write_model(self, weights: Mapping[str, Tensor]) -> None:
        """The folder `model`, loadable by `vitrail.load_model`, with what its task says of it."""
        model = self.model
        if is_sharded(model):
            model = self.task.make_model(self.description)
            model.load_state_dict(weights)
        self.folder.check_present()
        save_model(model.for_inference(), self.folder.model, documents={self.folder.task_file.name: self.description})


def _copy(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights on the CPU, which no later step changes."""
    return {name: value.detach().cpu().clone() for name, value in state.items()}
