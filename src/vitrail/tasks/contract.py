"""What a task gives, so that loop, checkpoints, progress, plan, report and command line need to know none by name."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.data.contract import Batch, Dataset
from vitrail.data.quarantine import Problem
from vitrail.evaluation.predict import choose_device, choose_precision
from vitrail.evaluation.together import Alone, Together
from vitrail.models.contract import AnyModel
from vitrail.pages.frame import PageSection
from vitrail.settings.recipe import Recipe
from vitrail.settings.text import change
from vitrail.tasks.results import Answer, Evaluation, Evaluator, Measure
from vitrail.tasks.site import Site

if TYPE_CHECKING:
    from PIL.Image import Image

    from vitrail.inference.passes import Passes
    from vitrail.inference.trained import Loaded, Trained

B = TypeVar("B", bound=Batch)
Item = TypeVar("Item")


class Losses(NamedTuple):
    """What a batch costs."""

    total: Tensor  # a scalar to call backward on
    parts: dict[str, Tensor]  # detached scalars by name, logged as they are
    seen: Any = None  # what the objective is to note of this batch


class StepContext(NamedTuple):
    """Which step a batch belongs to, and where in it: with the sample, all that a random choice may depend on."""

    seed: int
    epoch: int
    step: int
    first: int = 0  # the place of the batch's first sample in the global batch


class Objective(ABC, Generic[B]):
    """A training procedure: it runs the model on a prepared batch and says what the answers cost.

    One that remembers something from step to step (a memory of embeddings, a target network) overrides the methods of
    state. What a micro-batch leaves to the end of the step is `Losses.seen`, which `note` gets in the order of the
    micro-batches. Before the optimizer's step comes `before_step`, after it `after_step`, or `skip_step` where no step
    was made (a loss that is not finite, a trial of the batch size). Between steps the state is all that the rest of a
    run depends on, so it belongs into checkpoints. Where several processes train together, all of them make every one
    of these calls, in the same order.
    """

    exchanges: ClassVar[bool] = False  # whether processes talk to each other while a batch is judged
    is_divisible: ClassVar[bool] = False  # whether threads may judge several batches at a time: a call changes nothing

    @abstractmethod
    def __call__(self, model: nn.Module, batch: B) -> Losses:
        """Judge a batch that the task has prepared."""

    def note(self, seen: Any) -> None:
        """Remember what a micro-batch of the step left."""

    def before_step(self, model: nn.Module) -> None:
        """Change or drop gradients of the global batch, before they are clipped and used; of the bare model."""

    def after_step(self, model: nn.Module) -> None:
        """Take in what the micro-batches left and the model's new weights; the bare model, not one that wraps it."""

    def skip_step(self) -> None:
        """Forget what the micro-batches left."""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps: plain tensors, numbers and dicts, whole also where processes share it."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint, with any number of processes."""


@dataclass(frozen=True, eq=False)
class Initial:
    """What a stage leaves to the next one."""

    weights: Mapping[str, Tensor]
    grid: tuple[int, int] | None  # rows and columns of the patches they were made for
    description: Mapping[str, Any]  # the task.json of that stage
    saved: Mapping[str, Tensor] | None = None  # weights of the model that the stage would save, where it is another

    def of_saved(self) -> "Initial":
        """What the stage would save, which is what another task begins with."""
        return self if self.saved is None else replace(self, weights=self.saved, saved=None)


class TaskData(Protocol):
    """What a run is trained and evaluated on, as far as loop and plan look at it."""

    @property
    def num_train(self) -> int: ...

    @property
    def num_val(self) -> int: ...

    def locate(self, index: int) -> str:
        """Where a training sample is, as a person would name it."""

    def describe(self) -> dict[str, Any]:
        """What a model is built from and used with besides its weights, such as the names of classes."""


class StepSampler(Protocol):
    """Which samples make up each step, as far as the loop asks."""

    @property
    def num_steps(self) -> int:
        """Steps of an epoch, as many in every one."""

    @property
    def batch_size(self) -> int:
        """What a step holds over all processes, in what the task counts."""

    @property
    def first_places(self) -> list[int]:
        """The places in a global batch at which this process's micro-batches begin, where steps are all alike."""


class StepLoader(Protocol):
    """The batches of a data set, as far as the loop asks."""

    num_workers: int

    @property
    def sampler(self) -> Any: ...

    def epoch(self, number: int, *, start_step: int = 0) -> Iterator[Any]:
        """The micro-batches of an epoch, from a step on."""


SomeLoader = TypeVar("SomeLoader", bound=StepLoader)


@dataclass(frozen=True, eq=False)
class Loaders(Generic[SomeLoader]):
    """The batches of a stage."""

    train: SomeLoader
    val: SomeLoader


class RunReader(Protocol):
    """A run's folder, as the report looks at it."""

    @property
    def stage(self) -> int:
        """The stage that the run has come to, from 0."""

    @property
    def stage_recipe(self) -> Recipe | None:
        """The recipe of the stage that the run has come to, where it can be read."""

    def read(self, name: str, reader: Callable[[Path], Item], otherwise: Item) -> Item:
        """What a file of the folder holds; one that can't be read is named in the report."""


@dataclass(frozen=True, eq=False)
class EvaluationRequest:
    """What is to be measured on what."""

    source: str  # the run or model, for messages
    trained: Any  # a Trained; of a model that takes no images a Loaded
    settings: Mapping[str, Any]  # data, split, level, batch_size, device ... of `vitrail evaluate`
    options: Mapping[str, Any]  # what only some tasks know: sizes, crop ratios, tokens
    recipe: Recipe | None = None  # of the run that the model is of
    learnt: Callable[[], Initial] | None = None  # all that the run has learnt, of which a part is saved as its model
    world: Together = field(default_factory=Alone)  # the processes that measure together: each a share of the data


class Task(ABC, Generic[B]):
    """What is learnt in one stage of a run, by a recipe.

    The loop calls, in this order: `open`; `make_model`, and `load_initial` where there are weights to start from;
    `attach`, when the model is on its device, and `start_head`, unless the run goes on; `make_loaders`,
    `make_objective`, `make_evaluators`; then for each step `objective(model, prepare(batch, at))`. To load a trained
    model `make_model` is enough.
    """

    Recipe: ClassVar[type[Recipe]]
    measures: ClassVar[tuple[Measure, ...]]  # what evaluations give; the first decides "best", and heads the report
    signals: ClassVar[tuple[Measure, ...]] = ()  # of the parts of losses, by name, those that the report draws
    counted: ClassVar[str] = "images"  # what batch_size, micro-batches and speeds count
    counts_of_sample: ClassVar[int] = 1  # how many of these a usual sample has
    answering: ClassVar[str | None] = None  # the verb for what models of it do with an image: predict, segment ...
    answers_by_logits: ClassVar[bool] = False  # whether its answer about an image is `read_logits` of the whole image

    def __init__(self, recipe: Any, site: Site) -> None:
        self.recipe, self.site = recipe, site
        self.unmeasured = ""  # what could not be measured of a trained model, and why

    @property
    def deciding(self) -> Measure:
        """What decides which weights are the best, once the data is open: the first measure that evaluations give."""
        return self.measures[0]

    def check(self) -> None:
        """Refuse a recipe that can't be learnt; asked of every stage before the first one begins."""

    @abstractmethod
    def open(self) -> TaskData:
        """The data, which the task keeps; what is wrong with it or with the recipe is told here."""

    def describe(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """The content of task.json, beside the weights: what the data says of itself, and what the task adds."""
        return {"task": self.recipe.task, **data}

    @abstractmethod
    def make_model(self, description: Mapping[str, Any]) -> AnyModel:
        """Trunk and head with their initial weights, which the seed decides, for data of that description."""

    @abstractmethod
    def load_initial(self, model: Any, source: str | Initial, *, description: Mapping[str, Any]) -> None:
        """Weights to start from: of a run, a file or the stage before."""

    @abstractmethod
    def attach(self, model: Any) -> None:
        """Get ready to prepare batches for a model, which is on its device now."""

    def start_head(self) -> None:
        """Give a new head on weights to start from its first weights, where they are not those of `make_model`."""

    @abstractmethod
    def make_loaders(self, *, num_parts: int, listing: Path | None) -> Loaders[Any]:
        """The batches of train, in `num_parts` micro-batches a step, and of val; broken samples go to `listing`."""

    @abstractmethod
    def make_objective(self, *, total_steps: int, is_trial: bool = False) -> Objective[B]:
        """What is minimised; one of a trial is this process's own and shares nothing with others."""

    @abstractmethod
    def prepare(self, batch: B, at: StepContext) -> B:
        """A batch as the objective takes it: on the device, normalised, mixed, with answers looked up."""

    @abstractmethod
    def example(self, count: int) -> B:
        """A batch of noise, as `prepare` takes it: for the trial of micro-batches and the plan."""

    @abstractmethod
    def respond(self, model: nn.Module, batch: B) -> Any:
        """What the model says about a prepared batch in evaluation, for the plan."""

    @abstractmethod
    def make_evaluators(self, objective: Objective[B], loaders: Loaders[Any]) -> Sequence[Evaluator]:
        """How the run is measured."""

    def finish(self, objective: Objective[B], loaders: Loaders[Any]) -> None:
        """What the end of a stage needs, with the weights it ends with, before the last evaluation."""

    def notes(self, loaders: Loaders[Any]) -> Iterator[Mapping[str, Any]]:
        """Further lines of metrics beside an evaluation; the main process asks, where the model is whole."""
        return iter(())

    @classmethod
    def evaluate(cls, request: EvaluationRequest) -> Evaluation:
        """Measure a trained model; by default as its run measured it, on the data of the run or on other data."""
        if request.recipe is None:
            raise ValueError(f"{request.source} is no run, whose recipe would say how it is measured")
        refused = [name for name, value in request.options.items() if value]
        refused += [name for name in request.settings if name not in ("data", "device", "precision")]
        if refused:
            raise ValueError(f"a model of the task {request.recipe.task} is measured without {', '.join(refused)}")
        recipe = change(
            request.recipe, {"data": request.settings["data"], "data.val": None} if "data" in request.settings else {}
        )
        device = choose_device(str(request.settings.get("device", "auto")))
        dtype = choose_precision(str(request.settings.get("precision", "auto")), device)
        task = cls(recipe, Site(device=device, dtype=dtype, seed=recipe.seed, world=request.world))
        data = task.open()
        if data.num_val == 0:
            raise ValueError(f"{request.source} was trained without val (data.val=none): add data=SPEC")
        model = task.take_trained(request)
        with torch.no_grad():
            figures = task.measure_trained(model)
        lines = [f"{request.source} on {data.num_val:,} samples of {recipe.data.spec}", ""]
        lines += [f"{one.label:<24}{one.show(figures[one.key])}" for one in cls.measures if one.key in figures]
        lines += ["", task.unmeasured] if task.unmeasured else []
        return Evaluation(figures, {"task": recipe.task, "data": recipe.data.spec, **figures}, "\n".join(lines))

    def take_trained(self, request: EvaluationRequest) -> Any:
        """Attach the model of a request, which is to be measured."""
        model = request.trained.model.to(self.site.device)
        self.attach(model)
        return model

    def measure_trained(self, model: Any) -> dict[str, float]:
        """The figures of a model that is attached and trained, by the evaluators of its run."""
        loaders = self.make_loaders(num_parts=1, listing=None)
        objective = self.make_objective(total_steps=1, is_trial=True)
        self.finish(objective, loaders)
        return dict(pair for one in self.make_evaluators(objective, loaders) for pair in one.measure(model))

    @classmethod
    def compare(cls, requests: Sequence[EvaluationRequest]) -> Evaluation:
        """Measure several trained models of this task on the same data, and say whether they differ by chance."""
        raise ValueError(f"models of the task {requests[0].trained.task} are not compared")

    @classmethod
    def explain(cls, loaded: "Loaded", words: Sequence[str], *, folder: Path) -> list[Path]:
        """Pictures of what a model that takes no images looks at in what the words say; the files written."""
        raise ValueError(f"a model of the task {loaded.task} has no pictures")

    @classmethod
    def answer(
        cls, trained: "Trained", data: Dataset, *, passes: "Passes", top: int, note_unread: Callable[[Problem], object]
    ) -> Iterator[Answer]:
        """What a trained model says about each sample of data that has no labels."""
        raise ValueError(f"a model of the task {trained.task} does not answer about single images")

    @classmethod
    def read_logits(cls, trained: "Trained", logits: Tensor, *, places: Sequence[str], top: int) -> list[Answer]:
        """What logits [images, classes] say about images at these places, where `answers_by_logits`."""
        raise ValueError(f"a model of the task {trained.task} does not answer by logits")

    @classmethod
    def draw_answer(cls, answer: Answer, *, trained: "Trained", pixels: np.ndarray) -> dict[str, "Image"]:
        """Pictures of an answer by name, such as an overlay, on uint8 pixels [3, height, width] of the image."""
        return {}

    @classmethod
    def refusal_of_classes(cls, label: str) -> str:
        """What to say where classes are asked of a model that names none."""
        return (
            f"{label} has no classifier, it gives embeddings: search with vitrail gallery, measure with vitrail "
            f"retrieve or probe, learn classes with vitrail train init={label}"
        )

    @classmethod
    def keep(cls, answers: Iterator[Answer], *, trained: "Trained", data: Dataset, folder: Path) -> Iterator[Answer]:
        """The answers as they come, of which pictures and files are left in a folder."""
        raise ValueError(f"a model of the task {trained.task} leaves no files of its answers: leave --out out")

    @classmethod
    def sections(cls, run: RunReader) -> Iterator[PageSection]:
        """What the report of a run has to show of this task beside the course of its measures."""
        return iter(())

    @classmethod
    def remarks(cls, run: RunReader) -> Iterator[str]:
        """Lines for the terminal, when a run has ended."""
        return iter(())

    def count_step(self, data: TaskData) -> int:
        """What a step holds over all processes, in what the task counts."""
        return min(self.recipe.batch_size, data.num_train)

    def count_batch(self, batch: B) -> int:
        """What a batch holds, in what the task counts."""
        return batch.num_samples

    def share_of(self, batch: B, *, sampler: StepSampler, num_ranks: int) -> float:
        """The weight of a micro-batch's mean loss in that of its step, as each of so many processes computes it."""
        return batch.num_samples * num_ranks / sampler.batch_size

    def first_of(self, batch: B, *, place: int, sampler: StepSampler) -> int:
        """The place in the global batch at which a step's micro-batch of that place begins."""
        return sampler.first_places[place]

    @property
    def keeps_pairs(self) -> bool:
        """Whether neighbours in a batch are mixed with each other, so that it is cut between pairs only."""
        return False

    @property
    def num_views(self) -> int:
        """Parts of a sample that go through the model at once."""
        return 1

    def count_measured(self, data: TaskData) -> int:
        """Samples that an evaluation looks at, for the plan."""
        return data.num_val

    @property
    def views_of_passes(self) -> tuple[int, ...]:
        """Parts of a sample that go through the model together, one number for each pass: those of one size."""
        return (self.num_views,)

    @property
    def num_passes(self) -> int:
        """Samples that go through a model besides steps and evaluations, for the plan."""
        return 0
