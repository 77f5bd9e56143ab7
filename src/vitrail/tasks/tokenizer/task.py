"""Tokenizers: a small discrete VAE, or k-means of patches, trained on images without labels."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.data.draws import Draws
from vitrail.data.quarantine import Quarantine
from vitrail.data.samples import Images, SampleMaker
from vitrail.data.stored import Subset
from vitrail.evaluation.kmeans import cluster
from vitrail.models.contract import Model
from vitrail.models.tokenizer import Tokenizer, TokenizerConfig
from vitrail.pages.frame import PageSection
from vitrail.settings.recipe import Recipe
from vitrail.tasks.contract import Loaders, Objective, RunReader, StepContext
from vitrail.tasks.results import Evaluator, Measure
from vitrail.tasks.tokenizer.code_use import dead_codebook
from vitrail.tasks.tokenizer.evaluator import SHEET, TokenizerEvaluator
from vitrail.tasks.tokenizer.objective import Quantisation, TokenizerBatch
from vitrail.tasks.tokenizer.patch_teacher import PatchTeacher
from vitrail.tasks.tokenizer.settings import TokenizerRecipe
from vitrail.tasks.tokenizer.sheets import sheet_section
from vitrail.tasks.unlabelled.task import UnlabelledTask
from vitrail.tasks.unlabelled.unlabelled_data import UnlabelledData

NAME = "tokenizer"
_BATCH = 64  # images of which patches are taken at a time, before the first step
_REMEDIES = ("lower tokenizer.codes", "set tokenizer.revive=true with a lower tokenizer.window")


class Tokenize(UnlabelledTask[Any]):
    """Codes for patches, measured by what is lost where an image is put together from them."""

    Recipe: ClassVar[type[Recipe]] = TokenizerRecipe
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure(
            "reconstruction",
            "error of the tokens",
            unit="",
            is_higher_better=False,
            digits=4,
            chart="Error of the tokens",
        ),
        Measure("share_of_codes", "codes in use", is_headline=True, chart="Codes in use on val, %"),
        Measure("perplexity", "perplexity of the codes", unit="", digits=1),
    )
    recipe: TokenizerRecipe
    model: Tokenizer
    teacher: PatchTeacher | None = None

    def check(self) -> None:
        """A tokenizer has a model of its own."""
        super().check()
        model, settings = self.recipe.model, self.recipe.tokenizer
        if model.name != NAME or model.settings or model.source is not None:
            raise ValueError(
                "a tokenizer has a model of its own: leave model and init out, see tokenizer.dim and depth"
            )
        self._config(teacher_dim=1 if settings.teacher else 0)

    def _config(self, *, teacher_dim: int) -> TokenizerConfig:
        settings = self.recipe.tokenizer
        has_teacher = settings.kind == "kmeans" and settings.teacher is not None
        return TokenizerConfig(
            image_size=self.recipe.image_size,
            patch_size=settings.patch_size,
            kind=settings.kind,
            num_codes=settings.codes,
            code_dim=settings.code_dim,
            dim=settings.dim,
            depth=settings.depth,
            teacher=settings.teacher if has_teacher else None,
            teacher_dim=teacher_dim if has_teacher else 0,
        )

    def open(self) -> UnlabelledData:
        """Open the images, and the teacher whose patches are clustered."""
        data = super().open()
        config = self._config(teacher_dim=1)
        if config.teacher is not None:
            self.teacher = PatchTeacher(
                config.teacher, grid=config.grid, image_size=self.recipe.image_size, device=self.site.device
            )
        return data

    def describe(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """The content of task.json, with the width of the teacher's patches."""
        return super().describe(data) | ({} if self.teacher is None else {"teacher_dim": self.teacher.dim})

    def make_model(self, description: Mapping[str, Any]) -> Tokenizer:
        """A tokenizer with initial weights, which the seed decides."""
        torch.manual_seed(self.recipe.seed)
        model = Tokenizer.made(self._config(teacher_dim=int(description.get("teacher_dim", 0))))
        assert isinstance(model, Tokenizer)
        model.name = NAME
        if (ratio := self.recipe.evaluation.crop_ratio) is not None:
            model.preprocessing = replace(model.preprocessing, crop_ratio=ratio)
        return model

    def make_plain_model(self) -> Tokenizer:
        """A tokenizer, whatever its teacher."""
        return self.make_model({"teacher_dim": 1})

    def attach(self, model: Model) -> None:
        """Get ready to prepare batches for a tokenizer."""
        assert isinstance(model, Tokenizer), "make_model gives one"
        super().attach(model)

    def start_head(self) -> None:
        """Let k-means of some patches be the first codes; those of a discrete VAE begin at random."""
        if self.recipe.tokenizer.kind != "kmeans" or self.site.folder is None:
            return
        vectors = self._sample_vectors()
        num_codes = self.recipe.tokenizer.codes
        if len(vectors) < num_codes:
            raise ValueError(
                f"tokenizer.codes={num_codes:,} is more than the {len(vectors):,} patches there are: lower it"
            )
        found = None
        if self.site.world.is_main:
            found = cluster(vectors, num_clusters=num_codes, seed=self.recipe.seed).centroids.cpu()
        with torch.no_grad():
            self.model.codebook.copy_(self.site.world.share(found))

    def _sample_vectors(self) -> Tensor:
        """Patches of some training images, the same in every process."""
        site, settings = self.site, self.recipe.tokenizer
        num_patches = math.prod(self.model.config.grid)
        order = Draws(self.recipe.seed, "k-means").array().permutation(self.data.num_train)
        chosen = np.sort(order[: max(1, math.ceil(settings.sampled / num_patches))])
        loader = self.load_plainly(Subset(self.data.train, chosen), batch_size=_BATCH, quarantine=Quarantine())
        rows = []
        with torch.no_grad():
            for batch in loader.epoch(0):
                inputs = self.prepare(batch, StepContext(0, 0, 0)).inputs
                rows.append((batch.indices, self.model.vectors_of(inputs).cpu()))
        everyone = [row for part in site.world.gather(rows) for row in part]
        indices, vectors = (torch.cat(column) for column in zip(*everyone, strict=True))
        return vectors[indices.argsort()].flatten(0, 1)[: settings.sampled]

    def make_samples(self) -> SampleMaker[Any, Any]:
        """Augmented images."""
        return Images(self.recipe.augmentation.build(image_size=self.recipe.image_size), level=self.data.level)

    def make_objective(self, *, total_steps: int, is_trial: bool = False) -> Quantisation:
        """The loss of the kind, watched for dead codes."""
        settings = self.recipe.tokenizer
        watch = self.make_watch([dead_codebook(settings.codes, remedies=_REMEDIES)], is_trial=is_trial)
        return Quantisation(settings, seed=self.site.seed, world=self.site.world, watch=watch)

    def prepare(self, batch: Any, at: StepContext) -> TokenizerBatch:
        """Normalised images, or the teacher's patches of them, and a patch of each that is picked."""
        pixels = batch.images.to(self.site.device, non_blocking=True)
        if self.teacher is None:
            inputs = self.normalize(pixels)
        else:
            with torch.autocast(self.site.device.type, enabled=False):
                inputs = self.teacher(pixels.float() / 255.0)
        num_patches, places = math.prod(self.model.config.grid), range(at.first, at.first + batch.num_samples)
        picked = torch.tensor([Draws(at.seed, at.step, place, "picked").integer(num_patches) for place in places])
        return TokenizerBatch(inputs, picked.to(self.site.device), at.first, batch.indices)

    def respond(self, model: nn.Module, batch: Any) -> Any:
        """The tokens of images."""
        assert isinstance(model, Tokenizer), "a tokenizer is trained"
        return model.tokens_of(batch.inputs)

    def measure_trained(self, model: Model) -> dict[str, float]:
        """The figures of a run's evaluations: a tokenizer has no features to look at."""
        return super(UnlabelledTask, self).measure_trained(model)

    @classmethod
    def refusal_of_classes(cls, label: str) -> str:
        """What to say where classes are asked of a tokenizer, with whose weights no classifier begins."""
        return (
            f"{label} is a tokenizer, which gives codes of patches and names no classes: learn from them with vitrail "
            f"pretrain RECIPE masked.tokenizer={label}, measure it with vitrail evaluate"
        )

    def make_evaluators(self, objective: Objective[Any], loaders: Loaders) -> Sequence[Evaluator]:
        """Error of the tokens, and the codes in use."""
        return [TokenizerEvaluator(self, loaders.val)]

    @classmethod
    def sections(cls, run: RunReader) -> Iterator[PageSection]:
        """Images above what their tokens make of them."""
        yield from sheet_section(
            run,
            SHEET,
            title="Images from tokens",
            caption="Images of val, and below them the same put together from their tokens, one code a patch.",
            anchor="tokens",
        )
