"""One stage of a run: step, log, evaluate, save; and go on after a stop as if there had been none."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from vitrail.data.contract import Batch
from vitrail.evaluation.predict import autocast
from vitrail.storage import content_of
from vitrail.tasks.contract import StepContext
from vitrail.training.loop.interruption import Interrupted
from vitrail.training.loop.not_finite import describe_not_finite, find_not_finite
from vitrail.training.loop.prefetch import on_device
from vitrail.training.loop.read_ahead import ReadAhead
from vitrail.training.loop.schedule import set_schedules
from vitrail.training.loop.stage_parts import StageParts
from vitrail.training.loop.step_guard import SeenStep, are_finite
from vitrail.training.parallel.batch_norm import is_synchronized
from vitrail.training.parallel.sharding import (
    clip_gradients,
    is_sharded,
)
from vitrail.training.runs.checkpoint_content import REMEDY

_LOGGER = logging.getLogger(__name__)


class Stage(StageParts):
    """One stage of a run, from its data to its weights."""

    def run(self) -> None:
        """Take all steps that are left."""
        self._last_save = time.monotonic()
        epochs = self.total_steps / self.sampler.num_steps
        bar = self.progress.stage(
            self.recipe.model.name,
            total=self.total_steps,
            completed=self.step,
            epochs=epochs,
            counted=self.task.counted,
        )
        with self.gradients.lanes, bar:
            if self.owes_evaluation:
                self._gather_once()
                self._evaluate_and_save()
            while self.step < self.total_steps and not self._has_stalled():
                steps = ReadAhead(self._steps_of_epoch())
                for batches in self.progress.waiting(steps):
                    self._step(batches, meanwhile=steps.read)
                    is_due = self._is_evaluation_due()
                    must_stop, must_save = self.exchange.results("stop", "save")
                    self.around.writer.check()
                    if must_stop or must_save or is_due:
                        self._catch_up()
                    if must_stop:
                        self._stop(is_evaluated=not is_due)
                    if is_due:
                        self._evaluate_and_save()
                    elif must_save:
                        self.save(is_best=False)
                    if self.step == self.total_steps or self._has_stalled():
                        break
            if self._has_stalled():
                self.progress.say(f"no better {self.measure.label} since epoch {self.best_epoch:g}: stopped early")

    def _evaluate_and_save(self) -> None:
        try:
            self.evaluate()
        except Interrupted:
            self._stop(is_evaluated=False)
        self.owes_evaluation = False
        self.save(is_best=self.best_epoch == self.epoch)

    def _gather_once(self) -> None:
        """Let a divided model make its buffers: those of a pass in inference mode could not be trained with."""
        if is_sharded(self.model):
            with self._evaluated_weights():
                batch = self.task.prepare(self.task.example(2), StepContext(self.seed, 0, self.step))
                with autocast(self.device, self.dtype):
                    self.task.respond(self.model, batch)

    def _stop(self, *, is_evaluated: bool) -> None:
        """Save and end: all processes come here together. An evaluation that is due is left to the run that goes on."""
        self.save(is_best=False, is_evaluated=is_evaluated)
        self.around.writer.wait()
        [is_terminated] = self.world.any(self.around.stop.is_terminated)
        raise Interrupted(is_terminated=is_terminated)

    def _steps_of_epoch(self) -> Iterator[list[Batch]]:
        """The micro-batches of each step that is left of the current epoch."""
        number, start = divmod(self.step, self.sampler.num_steps)
        batches = on_device(self.loaders.train.epoch(number, start_step=start), self.device)
        group: list[Batch] = []
        for batch in batches:
            group.append(batch)
            if len(group) == self.num_parts:
                yield group
                group = []

    def _step(self, batches: list[Batch], *, meanwhile: Callable[[], None]) -> None:
        """One step of the optimizer: the gradient of the global batch, summed over its micro-batches.

        `meanwhile` is called while micro-batches are computed.
        """
        set_schedules(self.optimizer, self.schedules, step=self.step)
        loss = torch.zeros((), device=self.device)
        parts: dict[str, Tensor] = {}
        judged = self.gradients.add(batches, step=self.step, meanwhile=meanwhile)
        for batch, losses in zip(batches, judged, strict=True):
            share = self.gradients.share_of(batch)
            self.objective.note(losses.seen)
            loss += losses.total.detach() * share
            for name, part in losses.parts.items():
                parts[name] = parts.get(name, 0.0) + part * share
        self.objective.before_step(self.model)
        self.scaler.unscale_(self.optimizer)
        norm = clip_gradients(self.model, self.recipe.optimizer.clip)
        seen = SeenStep(loss, norm, step=self.step, batches=batches)
        if self.guard.is_delayed:
            self._step_on_device(seen)
        elif self._can_be_made(seen):
            self._update()
            self.objective.after_step(self.model)
            if self.average is not None:
                self.average.update(self.model)
        else:
            self.objective.skip_step()
        if self.scaler.is_enabled():
            self.scaler.update()  # its account of this step is closed, whether one was made or not
        self.optimizer.zero_grad()
        self.step += 1
        self.progress.note_step(self.step, num_samples=self.sampler.batch_size)
        [is_time] = self.exchange.results("log")
        if is_time or self.step in (1, self.total_steps):
            self._log_step(loss, norm, parts)

    def _update(self) -> None:
        """Let the optimizer change the weights; where it can't with what a checkpoint gave it, that one is to blame."""
        if self._restored_from is None:
            self.scaler.step(self.optimizer)
            return
        with content_of(self._restored_from, remedy=REMEDY):
            self.scaler.step(self.optimizer)
        self._restored_from = None

    def _step_on_device(self, seen: SeenStep) -> None:
        """The step where the device finds it finite, which it tells later; the step before is judged now."""
        before = self.guard.exchange(seen)
        if before is None:
            self._tell_others(is_broken=False)
        elif not self._can_be_made(before) and not self._leave_out(before):
            self.guard.take()  # what is wrong with the step before showed too late for it: this one is left out
            self.objective.skip_step()
            return
        is_made = seen.is_finite(with_loss=self.world.num_ranks == 1)
        self.guard.step_where(is_made)
        if self.average is not None:
            self.average.update(self.model, where=is_made)

    def _catch_up(self) -> None:
        """Judge the last step, if the device has not told of it yet."""
        before = self.guard.take()
        if before is not None and not self._can_be_made(before, is_voted_on=False):
            self._leave_out(before)

    def _leave_out(self, seen: SeenStep) -> bool:
        """Whether a step that could not be made was left out by the device; then the average does not count it."""
        loss, norm = seen.read()
        is_left_out = not (are_finite(norm) if self.world.num_ranks > 1 else are_finite(loss, norm))
        if is_left_out and self.average is not None:
            self.average.take_back()
        return is_left_out

    def _tell_others(self, *, is_broken: bool) -> None:
        """Exchange, now and then, what one process knows and all must act on."""
        wants_save = time.monotonic() - self._last_save > 60 * self.recipe.run.save_minutes
        self.exchange.vote(
            broken=is_broken,
            stop=self.around.stop.is_set,
            save=wants_save,
            log=self.world.is_main and self.progress.is_time_for_metrics,
        )

    def _can_be_made(self, seen: SeenStep, *, is_voted_on: bool = True) -> bool:
        """Whether a step can be taken, or could be where the device has decided; without a vote others are not asked.

        The norm is that of the gradients of all processes, so all find by themselves that it is not finite, and then
        ask each other whose loss is not. fp16 overflows now and then: such a step is left out without a word. A loss
        that is not finite beside gradients that are shows at the next exchange.
        """
        loss, norm = seen.read()
        is_broken = are_finite(norm) and not are_finite(loss)
        if is_voted_on:
            self._tell_others(is_broken=is_broken)
            [is_broken] = self.exchange.results("broken")
        if are_finite(norm):
            if not is_broken or not (is_voted_on or self.world.num_ranks == 1):
                return True
        else:
            [has_bad_loss] = self.world.any(not are_finite(loss))
            if self.scaler.is_enabled() and not has_bad_loss:
                return False
        if self.recipe.run.on_nan == "skip":
            self.num_skipped += 1
            _LOGGER.warning("step %d skipped: loss %s, gradient norm %s", seen.step, loss, norm)
            return False
        raise ValueError(self._describe_not_finite(seen))

    def _describe_not_finite(self, seen: SeenStep) -> str:
        """One line that says what went wrong first; all processes come here together, and the main one speaks."""
        # What processes exchange with each other (parts of the model, of a memory, statistics) needs all of them to do
        # the same.
        is_exchanged = (
            is_sharded(self.model)
            or is_synchronized(self.model)
            or (self.objective.exchanges and self.world.num_ranks > 1)
        )
        loss, norm = seen.read()
        self.gradients.seed(seen.step)
        finding = find_not_finite(
            self.model,
            None if is_exchanged else lambda batch, place: self.gradients.judge(batch, place=place, step=seen.step),
            seen.batches,
            has_own_gradients=self.world.num_ranks == 1,
        )
        epoch = seen.step / self.sampler.num_steps
        return describe_not_finite(
            f"step {seen.step} (epoch {epoch:.2f}): loss {loss:g}, gradient norm {norm:g}",
            findings=self.world.gather(finding),
            batches=seen.batches,
            locate=self.data.locate,
            newest=self.around.writer.newest(),
        )

    def _log_step(self, loss: Tensor, norm: Tensor, parts: dict[str, Tensor]) -> None:
        mean = self.world.sum(torch.stack([loss, *parts.values()])) / self.world.num_ranks
        if not self.world.is_main:
            return
        several = zip(parts, mean[1:], strict=True) if len(parts) > 1 else ()
        attention = self.held_up.look()
        if attention.is_news and self.device.type == "cpu":
            self.progress.say(
                f"other programs use the cores of this machine: the run has them {attention.core_share:.0%} of its "
                "time, and is that much slower"
            )
        record = {
            "loss": mean[0].item(),
            **{f"loss_{name}": value.item() for name, value in several},
            "lr": self.optimizer.param_groups[-1]["lr"],
            "gradient_norm": norm.item(),
            **({"num_skipped": self.num_skipped} if self.num_skipped else {}),
            **({"core_share": attention.core_share} if self.device.type == "cpu" else {}),
        }
        self.metrics.note_step(record, step=self.step, epoch=self.epoch)

    def _is_evaluation_due(self) -> bool:
        every = max(1, round(self.recipe.evaluation.every * self.sampler.num_steps))
        return self.step % every == 0 or self.step == self.total_steps

    def _has_stalled(self) -> bool:
        """Whether early stopping ends the run here: judged where it is evaluated, and so also when it goes on."""
        patience = self.recipe.regularisation.early_stop
        if patience is None or self.step in (0, self.total_steps) or not self._is_evaluation_due():
            return False
        return self.epoch - self.best_epoch >= patience

    def evaluate(self) -> None:
        """Measure on held-out data, with the moving average where there is one, and remember the best."""
        started = time.monotonic()
        if self.last_weights is not None:
            self.last_weights.note(self.model, step=self.step)
        with self._evaluated_weights():
            if self.step == self.total_steps:
                self.task.finish(self.objective, self.loaders)
            for evaluator in self.evaluators:
                evaluator.begin(epoch=self.epoch, is_last=self.step == self.total_steps)
            with self._stopping_at_once():
                results = {
                    name: value for evaluator in self.evaluators for name, value in evaluator.measure(self.model)
                }
        if not self.evaluators:
            return
        value = results[self.measure.key]
        if self.measure.is_better(value, self.best_value):
            self.best_value, self.best_epoch = value, self.epoch
        if self._has_stalled():
            with self._evaluated_weights():
                self.task.finish(self.objective, self.loaders)
        if self.world.is_main:
            self.folder.check_present()
            for evaluator in self.evaluators:
                evaluator.write(self.folder.path)
            self.metrics.note_evaluation(
                {**results, "seconds": round(time.monotonic() - started, 3)},
                step=self.step,
                epoch=self.epoch,
                epochs=self.total_steps / self.sampler.num_steps,
                measures=self.task.measures,
                notes=self.task.notes(self.loaders) if not is_sharded(self.model) else (),
            )

    def _stopping_at_once(self) -> contextlib.AbstractContextManager[object]:
        """Where a signal to stop ends an evaluation in its middle: one process alone need not ask others.

        The last evaluation goes on to its end: what the task did before it can't be done twice.
        """
        is_alone = self.world.num_ranks == 1 and self.step < self.total_steps
        return self.around.stop.raising() if is_alone else contextlib.nullcontext()

    @contextlib.contextmanager
    def _evaluated_weights(self) -> Iterator[None]:
        """The model with its average, if it has one, and the same running statistics in every process.

        It is in eval mode, and nothing that is computed with it keeps gradients.
        """
        averaged: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if self.average is not None:
            averaged = self.average.applied_to(self.model)
        elif self.last_weights is not None and self.step == self.total_steps:
            averaged = self.last_weights.applied_to(self.model, step=self.step)
        with averaged, torch.no_grad():
            self.world.share_buffers(self.model)
            self.model.eval()
            try:
                yield
            finally:
                self.model.train()
