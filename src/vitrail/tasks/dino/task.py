"""Learning by self-distillation without labels (DINO, arXiv 2104.14294; with ResMLP in thesis 4.3.2)."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from vitrail.data.augment import Augmentation
from vitrail.data.checks import as_pair
from vitrail.data.contract import CropsBatch
from vitrail.data.samples import Crops
from vitrail.heads.around_trunk import summary_width
from vitrail.heads.dino import NUM_GLOBAL, DinoModel, ProjectionSettings
from vitrail.models.contract import Model
from vitrail.settings.images import AugmentationSettings
from vitrail.settings.recipe import Recipe
from vitrail.tasks.dino.objective import Course, Dino
from vitrail.tasks.dino.settings import DinoRecipe
from vitrail.tasks.unlabelled.collapse import (
    constant_answers,
    constant_features,
    same_answers,
    uniform_answers,
)
from vitrail.tasks.unlabelled.task import UnlabelledTask

_LIVELY_SCALE = 0.1  # LayerScale from which on branches are heard at the start (CaiT, section 2: of shallow networks)


class DinoTask(UnlabelledTask[CropsBatch]):
    """A student learns to say of every crop of an image what its moving average says of the large ones."""

    Recipe: ClassVar[type[Recipe]] = DinoRecipe
    recipe: DinoRecipe

    def check(self) -> None:
        """Refuse settings that have no effect here, or that can't be met."""
        super().check()
        recipe = self.recipe
        if recipe.regularisation.ema is not None:
            raise ValueError("the teacher of dino is a moving average already: leave regularisation.ema out")
        if recipe.augmentation != AugmentationSettings(repeats=recipe.augmentation.repeats):
            raise ValueError("crops of dino have their own settings, crops.first, .second and .local: not augmentation")
        local, size = as_pair(recipe.crops.local_size), as_pair(recipe.image_size)
        if recipe.crops.num_local and (local[0] > size[0] or local[1] > size[1]):
            raise ValueError(
                f"local crops of {_show(local)} px are larger than the global ones of {_show(size)} px: "
                "lower crops.local_size, or raise image_size"
            )

    def make_model(self, description: Mapping[str, Any]) -> DinoModel:
        """Student and teacher, each the recipe's model with a projection head."""
        settings = self.recipe.dino
        return DinoModel(
            self.make_trunk(),
            ProjectionSettings(
                num_outputs=settings.outputs,
                hidden_dim=settings.hidden_dim,
                bottleneck_dim=settings.bottleneck_dim,
                num_layers=settings.layers,
                learns_gain=settings.learns_gain,
            ),
        )

    def attach(self, model: Model) -> None:
        """Get ready for a model, and say where its local crops are of another size than was asked for."""
        super().attach(model)
        crops, asked = self.recipe.crops, as_pair(self.recipe.crops.local_size)
        if not crops.num_local:
            return
        if self.local_size != asked and self.site.world.is_main:
            self.site.reporter.say(
                f"{model.trunk.name} takes images of one size: its local crops are brought from {_show(asked)} to "
                f"{_show(self.local_size)} px, and cost as much as the global ones"
            )
        try:
            model.trunk.patch_grid(*self.local_size)
        except ValueError as error:
            raise ValueError(f"crops.local_size={_show(asked)}: {error}") from None

    def start_head(self) -> None:
        """Begin with a teacher that is the student, also where that has weights to start from."""
        assert isinstance(self.model, DinoModel), "make_model gives one"
        self.model.start_teacher()

    @property
    def local_size(self) -> tuple[int, int]:
        """Height and width of the local crops: those of the recipe, or the one size that the model takes."""
        model = getattr(self, "model", None)  # before there is one, a preview shows what is asked for
        is_bound = model is not None and model.trunk.takes_one_size
        return as_pair(self.recipe.image_size if is_bound else self.recipe.crops.local_size)

    @property
    def num_views(self) -> int:
        """Crops of an image."""
        return NUM_GLOBAL + self.recipe.crops.num_local

    @property
    def views_of_passes(self) -> tuple[int, ...]:
        """Crops of each size, which go through the model together."""
        num_local = self.recipe.crops.num_local
        if num_local == 0 or self.local_size == as_pair(self.recipe.image_size):
            return (self.num_views,)
        return (NUM_GLOBAL, num_local)

    @property
    def crops_of_image(self) -> tuple[Augmentation, ...]:
        """How each crop is made: two global ones, then the local ones."""
        crops, size = self.recipe.crops, self.recipe.image_size
        local = crops.local.build(image_size=self.local_size)
        return (*(one.build(image_size=size) for one in (crops.first, crops.second)), *[local] * crops.num_local)

    def make_samples(self) -> Crops:
        """All crops of an image."""
        return Crops(self.crops_of_image)

    def make_objective(self, *, total_steps: int, is_trial: bool = False) -> Dino:
        """The loss with its centre, and the watch for collapse."""
        settings, site = self.recipe.dino, self.site
        outputs, sharper, steadier = settings.outputs, "lower dino.teacher_temperature", "raise dino.teacher_momentum"
        signs = [
            constant_answers(
                num_answers=outputs,
                num_images=self.recipe.batch_size,
                remedies=("lower dino.centre_momentum to 0.9", steadier),
            ),
            uniform_answers(num_answers=outputs, remedies=(sharper, steadier)),
            same_answers(num_answers=outputs, remedies=(steadier, "lower lr")),
            constant_features(dim=summary_width(self.model.trunk), remedies=(steadier, "lower lr")),
        ]
        return Dino(
            settings,
            course=Course(settings, total_steps, self.steps_per_epoch),
            watch=self.make_watch(signs, is_trial=is_trial, beginning=_livelier_start(self.model.trunk)),
            world=None if is_trial else site.world,
            device=site.device,
        )

    def example(self, count: int) -> CropsBatch:
        """A batch of noise."""
        sizes = [as_pair(self.recipe.image_size), self.local_size]
        crops = []
        for views, size in zip(self.views_of_passes, sizes, strict=False):
            noise = torch.randint(256, (count, views, *size, 3), dtype=torch.uint8)
            crops.append(noise.movedim(-1, 2))
        return CropsBatch(tuple(crops), torch.full((count,), -1), torch.arange(count))


def _livelier_start(trunk: Model) -> tuple[str, str]:
    """What gives images features that differ from the first step on, in a model whose first weights do not."""
    weights, scale = "start from weights by init=", getattr(trunk.config, "layer_scale", None)
    settings = ["init_std: null"] * (getattr(trunk.config, "init_std", None) is not None)
    settings += ["layer_scale: 0.1"] * (scale is not None and scale < _LIVELY_SCALE)
    return (f"add {', '.join(settings)} to model.settings", weights) if settings else (weights, "raise lr")


def _show(size: tuple[int, int]) -> str:
    return str(size[0]) if size[0] == size[1] else f"{size[0]}x{size[1]}"
