"""Prediction of rotations (Gidaris et al., 2018), from the contract of a task alone."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from toy_rotation.settings import RotationRecipe
from vitrail.data.augment import EvaluationView
from vitrail.data.blend import Normalize
from vitrail.data.checks import as_pair
from vitrail.data.contract import Dataset, Sample
from vitrail.data.draws import Draws
from vitrail.data.loader import Loader
from vitrail.data.sampler import Sampler
from vitrail.data.samples import SampleMaker, read_views
from vitrail.models.contract import Model
from vitrail.pages.frame import PageSection
from vitrail.settings.recipe import Recipe
from vitrail.tasks.contract import Initial, Loaders, Losses, Objective, RunReader, StepContext, Task
from vitrail.tasks.images.initial_weights import load_initial, make_backbone
from vitrail.tasks.results import Evaluator, Measure


class TurnedBatch(NamedTuple):
    """Images and how many quarters each was turned by."""

    images: Tensor
    turns: Tensor
    indices: Tensor

    @property
    def num_samples(self) -> int:
        return len(self.indices)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "TurnedBatch":
        return self._replace(images=self.images.to(device), turns=self.turns.to(device))


class TurnedImages(SampleMaker[tuple[Tensor, int], TurnedBatch]):
    """An image turned by what its draws say."""

    def __init__(self, view: EvaluationView, number: int) -> None:
        self.view, self.number = view, number

    def make(self, dataset: Dataset, sample: Sample, draws: Sequence[Draws]) -> tuple[Tensor, int]:
        [pixels] = read_views(dataset, sample.index, [self.view], draws)
        turn = draws[0].integer(self.number)
        return torch.rot90(pixels, turn, dims=(1, 2)), turn

    def collate(self, dataset: Dataset, made: Sequence[tuple[Tensor, int]], indices: Tensor) -> TurnedBatch:
        images, turns = zip(*made, strict=True)
        return TurnedBatch(torch.stack(images), torch.tensor(turns), indices)


class TurnData:
    """Two splits of images, with or without labels."""

    def __init__(self, train: Dataset, val: Dataset, number: int) -> None:
        self.train, self.val, self.number = train, val, number
        self.num_train, self.num_val = len(train), len(val)

    def locate(self, index: int) -> str:
        return self.train.locate(index)

    def describe(self) -> dict[str, Any]:
        return {"turns": self.number, "num_train": self.num_train, "num_val": self.num_val}


class TurnLoss(Objective[TurnedBatch]):
    """Cross-entropy of the turns, which counts the steps that were made as its state."""

    def __init__(self) -> None:
        self.num_steps = 0

    def __call__(self, model: nn.Module, batch: TurnedBatch) -> Losses:
        total = functional.cross_entropy(model(batch.images).float(), batch.turns)
        return Losses(total, {"turns": total.detach()})

    def after_step(self, model: nn.Module) -> None:
        self.num_steps += 1

    def state_dict(self) -> dict[str, Any]:
        return {"num_steps": self.num_steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.num_steps = state["num_steps"]


class TurnEvaluator(Evaluator):
    """How often the turn is told."""

    def __init__(self, task: "Rotation", loader: Loader[TurnedBatch]) -> None:
        self.task, self.loader = task, loader

    @torch.no_grad()
    def measure(self, model: nn.Module) -> Iterator[tuple[str, float]]:
        model.eval()
        sums = torch.zeros(2)
        for batch in self.task.site.reporter.evaluating(self.loader.epoch(0), len(self.loader)):
            answers = model(self.task.prepare(batch, StepContext(0, 0, 0)).images).argmax(dim=1)
            sums += torch.tensor([(answers.cpu() == batch.turns).sum(), batch.num_samples])
        model.train()
        right, count = self.task.site.world.sum(sums).tolist()
        yield "turn_error", 100.0 * (1.0 - right / count)

    def write(self, folder: Path) -> None:
        (folder / "turns.txt").write_text("seen")


class Rotation(Task[TurnedBatch]):
    """How far an image was turned."""

    Recipe: ClassVar[type[Recipe]] = RotationRecipe
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("turn_error", "error of turns", is_higher_better=False, chart="Errors on val, %"),
    )
    recipe: RotationRecipe
    data: TurnData

    def open(self) -> TurnData:
        self.data = TurnData(*self.recipe.data.open(labels="optional"), self.recipe.turns.number)
        return self.data

    def make_model(self, description: Mapping[str, Any]) -> Model:
        return make_backbone(self.recipe, num_classes=description["turns"])

    def load_initial(self, model: Model, source: str | Initial, *, description: Mapping[str, Any]) -> None:
        load_initial(model, source, classes=None)

    def attach(self, model: Model) -> None:
        self.normalize = Normalize(mean=model.preprocessing.mean, std=model.preprocessing.std)

    def make_loaders(self, *, num_parts: int, listing: Path | None) -> Loaders:
        view = EvaluationView(image_size=self.recipe.image_size, crop_ratio=1.0)
        make, ranks = TurnedImages(view, self.recipe.turns.number), self.site.world.ranks
        size = self.recipe.batch_size
        train = Sampler(
            self.data.num_train, batch_size=size, seed=self.site.seed, ranks=ranks, num_micro_batches=num_parts
        )
        val = Sampler(self.data.num_val, batch_size=size, is_training=False, ranks=ranks)
        return Loaders(Loader(self.data.train, make=make, sampler=train), Loader(self.data.val, make=make, sampler=val))

    def make_objective(self, *, total_steps: int, is_trial: bool = False) -> TurnLoss:
        return TurnLoss()

    def prepare(self, batch: TurnedBatch, at: StepContext) -> TurnedBatch:
        batch = batch.to(self.site.device)
        return batch._replace(images=self.normalize(batch.images))

    def example(self, count: int) -> TurnedBatch:
        images = torch.randint(256, (count, 3, *as_pair(self.recipe.image_size)), dtype=torch.uint8)
        return TurnedBatch(images, torch.randint(self.recipe.turns.number, (count,)), torch.arange(count))

    def respond(self, model: nn.Module, batch: TurnedBatch) -> Any:
        return model(batch.images)

    def make_evaluators(self, objective: Objective[TurnedBatch], loaders: Loaders) -> Sequence[Evaluator]:
        return [TurnEvaluator(self, loaders.val)]

    @classmethod
    def sections(cls, run: RunReader) -> Iterator[PageSection]:
        text = run.read("turns.txt", Path.read_text, "")
        yield PageSection("Turns", f"<p>{text}</p>", anchor="turns")
