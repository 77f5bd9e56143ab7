"""Two views of an image are drawn together, and images apart (or not, which collapses)."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from toy_views.settings import ViewRecipe
from vitrail.data.contract import CropsBatch
from vitrail.data.samples import Crops
from vitrail.heads.around_trunk import AroundTrunk
from vitrail.models.contract import Model
from vitrail.settings.recipe import Recipe
from vitrail.tasks.contract import Losses, Objective
from vitrail.tasks.unlabelled.collapse import CollapseWatch, constant_features
from vitrail.tasks.unlabelled.task import UnlabelledTask

_DIM = 8


class ViewModel(AroundTrunk):
    """A trunk, a linear projector, and a teacher of both that the saved model is of."""

    def __init__(self, trunk: Model, teacher_trunk: Model) -> None:
        super().__init__(trunk)
        self.projector = nn.Linear(self.trunk_dim, _DIM)
        self.teacher_trunk = teacher_trunk.requires_grad_(False)
        self.follow_trunk()

    def init_heads(self) -> None:
        nn.init.orthogonal_(self.projector.weight)
        self.teacher_trunk.load_state_dict(self.trunk.state_dict())

    def forward(self, images: Tensor) -> Tensor:
        return functional.normalize(self.projector(self.trunk_vectors(images)), dim=1)

    def saved_trunk(self) -> Model:
        return self.teacher_trunk


class ViewLoss(Objective[CropsBatch]):
    """Minus the cosine of two views, plus the log-mean-exp of cosines between images."""

    is_divisible = True

    def __init__(self, watch: CollapseWatch, *, repulsion: float) -> None:
        self.watch, self.repulsion = watch, repulsion
        self._seen: list[Tensor] = []

    def __call__(self, model: nn.Module, batch: CropsBatch) -> Losses:
        [crops] = batch.crops
        views = model(crops.flatten(0, 1)).unflatten(0, crops.shape[:2])
        alike = -(views[:, 0] * views[:, 1]).sum(dim=1).mean()
        others = torch.logsumexp(4.0 * (views[:, 0] @ views[:, 0].T), dim=1).mean()
        deviation = views[:, 0].detach().std(dim=0, correction=0).mean()
        parts = {"alike": alike.detach(), "feature_deviation": deviation}
        return Losses(alike + self.repulsion * others, parts, deviation)

    def note(self, seen: Any) -> None:
        self._seen.append(seen)

    def after_step(self, model: nn.Module) -> None:
        assert isinstance(model, ViewModel)
        with torch.no_grad():
            for mine, new in zip(model.teacher_trunk.parameters(), model.trunk.parameters(), strict=True):
                mine.lerp_(new, 0.5)
        if self._seen:  # a plan's trial steps leave nothing
            self.watch.see({"feature_deviation": torch.stack(self._seen).mean()})
        self.skip_step()

    def skip_step(self) -> None:
        self._seen.clear()

    def state_dict(self) -> dict[str, Any]:
        return {"watch": self.watch.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.watch.load_state_dict(state["watch"])


class Views(UnlabelledTask[CropsBatch]):
    """Views that are to be alike."""

    Recipe: ClassVar[type[Recipe]] = ViewRecipe
    recipe: ViewRecipe

    @property
    def num_views(self) -> int:
        return 2

    def make_samples(self) -> Crops:
        return Crops([self.recipe.augmentation.build(image_size=self.recipe.image_size)] * 2)

    def make_model(self, description: Mapping[str, Any]) -> ViewModel:
        return ViewModel(self.make_trunk(), self.make_trunk())

    def make_objective(self, *, total_steps: int, is_trial: bool = False) -> ViewLoss:
        sign = constant_features(dim=_DIM, remedies=("raise views.repulsion", "lower lr"))
        return ViewLoss(
            self.make_watch([sign], is_trial=is_trial, patience=20, grace=0), repulsion=self.recipe.views.repulsion
        )

    def example(self, count: int) -> CropsBatch:
        size = self.recipe.image_size
        assert isinstance(size, int)
        crops = torch.randint(256, (count, 2, 3, size, size), dtype=torch.uint8)
        return CropsBatch((crops,), torch.full((count,), -1), torch.arange(count))
