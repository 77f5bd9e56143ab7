"""Masked image modelling: a trunk that completes images of which it sees a part, without labels."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch

from vitrail.data.checks import as_pair
from vitrail.data.draws import Draws
from vitrail.data.loader import Loader
from vitrail.data.patch_masks import BlockMask, MaskedBatch, MaskedImages, PatchMask, RandomMask
from vitrail.data.sampler import Sampler
from vitrail.data.samples import Transform
from vitrail.heads.masked import DecoderSettings, MaskedModel, at_masked
from vitrail.layers.grid import Grid
from vitrail.models.contract import Model
from vitrail.pages.frame import PageSection
from vitrail.settings.recipe import Recipe
from vitrail.tasks.contract import Loaders, RunReader, StepContext
from vitrail.tasks.images.image_task import count_workers
from vitrail.tasks.masked.evaluator import SHEET, MaskedEvaluator
from vitrail.tasks.masked.objective import MaskedPrediction, TokenPrediction
from vitrail.tasks.masked.settings import MaskedRecipe
from vitrail.tasks.masked.targets import Targets, TokenTargets, open_targets
from vitrail.tasks.results import Evaluator, Measure
from vitrail.tasks.tokenizer.code_use import CodeUse, dead_codebook
from vitrail.tasks.tokenizer.sheets import sheet_section
from vitrail.tasks.unlabelled.measures import MEASURES
from vitrail.tasks.unlabelled.task import UnlabelledTask
from vitrail.tasks.unlabelled.unlabelled_data import UnlabelledData

_REMEDIES = ("train a tokenizer of fewer tokenizer.codes", "set masked.target=pixels")


class MaskedModelling(UnlabelledTask[MaskedBatch]):
    """Masked patches are told from the others, measured by the loss on val at masks that stay the same."""

    Recipe: ClassVar[type[Recipe]] = MaskedRecipe
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure(
            "masked_loss",
            "loss at masked patches",
            unit="",
            is_higher_better=False,
            digits=4,
            chart="Loss at masked patches of val",
        ),
        Measure("token_accuracy", "right tokens", chart="Tokens, %"),
        Measure("share_of_codes", "codes in use", chart="Tokens, %"),
        *MEASURES,
    )
    measures_head: ClassVar[bool] = True
    recipe: MaskedRecipe
    targets: Targets
    grid: Grid

    @property
    def reads_patches(self) -> bool:
        """Masked patches teach patches alone."""
        return True

    def open(self) -> UnlabelledData:
        """Open the images and what masked patches are compared with; a model that can't be masked is refused."""
        self.check()
        self.grid = self._find_grid()
        size = as_pair(self.recipe.image_size)
        self.targets = open_targets(self.recipe.masked, grid=self.grid, size=size, device=self.site.device)
        return super().open()

    def _find_grid(self) -> Grid:
        """Rows and columns of the model's patches, of one that is built without memory."""
        with torch.device("meta"):
            trunk = self.make_trunk()
            check_form(trunk, form=self.recipe.masked.form)
            size = as_pair(self.recipe.image_size)
            known = trunk.patch_grid(*size)
            if known is not None:
                return known
            height, width = trunk.eval().features(torch.zeros(1, 3, *size)).patches.shape[-2:]
        return height, width

    @property
    def mask(self) -> PatchMask:
        """What draws masks."""
        settings = self.recipe.masked
        kind = BlockMask if settings.mask == "blocks" else RandomMask
        return kind(self.grid, settings.share)

    def describe(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """The content of task.json, with the grid of patches and what is said of one."""
        found = super().describe(data)
        if hasattr(self, "targets"):
            found |= {"grid": list(self.grid), "num_outputs": self.targets.num_outputs}
        return found

    def make_model(self, description: Mapping[str, Any]) -> MaskedModel:
        """The recipe's trunk with a token or a decoder for masked patches."""
        settings = self.recipe.masked
        self.grid = tuple(description["grid"])
        decoder = DecoderSettings(
            dim=settings.decoder_dim, depth=settings.decoder_depth, num_heads=settings.decoder_heads
        )
        return MaskedModel(
            self.make_trunk(),
            grid=self.grid,
            num_masked=self.mask.num_masked,
            num_outputs=int(description["num_outputs"]),
            decoder=decoder if settings.form == "mae" else None,
        )

    def make_samples(self) -> MaskedImages:
        """Augmented images with masks."""
        return self._with_masks(self.recipe.augmentation.build(image_size=self.recipe.image_size))

    def _with_masks(self, transform: Transform) -> MaskedImages:
        return MaskedImages(transform, self.mask, level=self.data.level)

    def make_objective(self, *, total_steps: int, is_trial: bool = False) -> MaskedPrediction:
        """The loss of the targets; tokens are watched for dead codes."""
        targets = self.targets
        if not isinstance(targets, TokenTargets):
            return MaskedPrediction(targets)
        use = CodeUse(targets.num_codes, window=self.recipe.masked.window, world=self.site.world)
        watch = self.make_watch([dead_codebook(targets.num_codes, remedies=_REMEDIES)], is_trial=is_trial)
        return TokenPrediction(targets, use=use, watch=watch)

    def prepare(self, batch: MaskedBatch, at: StepContext) -> MaskedBatch:
        """Images normalised, and what is wanted of their masked patches."""
        batch = batch.to(self.site.device, non_blocking=True)
        with torch.no_grad(), torch.autocast(self.site.device.type, enabled=False):
            wanted = self.targets(batch.images.float() / 255.0)
        wanted = at_masked(wanted, batch.masks, num_masked=self.mask.num_masked)
        return batch._replace(images=self.normalize(batch.images), wanted=wanted)

    def example(self, count: int) -> MaskedBatch:
        """A batch of noise with masks."""
        images = torch.randint(256, (count, 3, *as_pair(self.recipe.image_size)), dtype=torch.uint8)
        masks = torch.stack([torch.from_numpy(self.mask(Draws("example", place))) for place in range(count)])
        return MaskedBatch(
            images.contiguous(memory_format=torch.channels_last), masks, torch.full((count,), -1), torch.arange(count)
        )

    def own_evaluators(self, loaders: Loaders) -> Sequence[Evaluator]:
        """The loss at masked patches of val."""
        site, data = self.site, self.data.val
        loader = Loader(
            data,
            make=self._with_masks(replace(self.evaluation_view, image_size=self.recipe.image_size)),
            sampler=Sampler(len(data), batch_size=self.val_batch, is_training=False, ranks=site.world.ranks),
            num_workers=count_workers(self.recipe, site.device),
            quarantine=loaders.val.quarantine,
            pin_memory=site.device.type == "cuda",
        )
        return [MaskedEvaluator(self, loader)]

    @classmethod
    def sections(cls, run: RunReader) -> Iterator[PageSection]:
        """Images, masks and what is made of them."""
        yield from sheet_section(
            run,
            SHEET,
            title="Masked images",
            caption="Images of val; what the model sees of them; what it makes of that, if the target has a picture.",
            anchor="masked",
        )
        yield from super().sections(run)


def check_form(trunk: Model, *, form: str) -> None:
    """Refuse a model whose patches can't be masked, or not be left out."""
    if trunk.stem_dim is None:
        raise ValueError(
            f"{trunk.name} keeps no map of patches from a stem to its end, so that none can be masked: take a ViT, "
            "CaiT, ResMLP, PatchConvNet, or a transformer of timm with patch_embed"
        )
    if form == "mae" and not trunk.takes_any_patches:
        raise ValueError(
            f"masked.form=mae leaves patches out, and {trunk.name} needs the whole grid: take a ViT or CaiT, or "
            "masked.form=full"
        )
