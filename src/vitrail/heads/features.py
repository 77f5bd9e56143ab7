"""Features of a teacher: a trunk whose summary and patches are projected to the teacher's, to learn them from it."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from vitrail.heads.around_trunk import AroundTrunk, AroundTrunkConfig
from vitrail.layers.grid import Grid
from vitrail.models.config import CheckedSettings
from vitrail.models.contract import Model, initialize

PROJECTORS = ("linear", "mlp")
_LEAST_DEVIATION = 0.01  # of a number, as a share of what all of them have: some never change in a teacher


@dataclass(frozen=True, kw_only=True)
class FeatureHeadSettings(CheckedSettings):
    """Settings of what stands on a student's trunk."""

    summary: int = 0  # numbers of the teacher's summary; 0: it is not learnt
    patches: int = 0  # channels of the teacher's patches; 0: they are not learnt
    grid: Grid | None = None  # rows and columns that patches are compared on; None: those of the trunk
    projector: str = "mlp"  # one of PROJECTORS
    hidden_dim: int = 1024  # width inside the MLPs

    def __post_init__(self) -> None:
        self.check_choice("projector", PROJECTORS)
        self.check_counts("summary", "patches", least=0)
        self.check_counts("hidden_dim")


@dataclass(frozen=True, kw_only=True)
class FeatureConfig(AroundTrunkConfig):
    """All that a student of features is built from."""

    head: FeatureHeadSettings


class ProjectedFeatures(NamedTuple):
    """Features in the space of a teacher: what a student says, or the teacher itself."""

    summary: Tensor | None  # [batch, dim]
    patches: Tensor | None  # [batch, dim, height, width]


@dataclass(frozen=True, kw_only=True)
class FeatureShape:
    """Sizes of the features of an image, and how they lie in one row of numbers: the summary, then the patches."""

    summary: int  # numbers; 0: there is no summary
    patches: int  # channels; 0: there are no patches
    grid: Grid  # rows and columns of the patches

    @property
    def size(self) -> int:
        """Numbers of an image in all."""
        return self.summary + self.patches * self.grid[0] * self.grid[1]

    def join(self, features: ProjectedFeatures) -> Tensor:
        """Features as rows [batch, size]; patches of another grid are resampled."""
        parts = []
        if features.summary is not None:
            parts.append(features.summary)
        if features.patches is not None:
            parts.append(resample(features.patches, self.grid).flatten(1))
        return torch.cat(parts, dim=1)

    def split(self, rows: Tensor) -> ProjectedFeatures:
        """Features of rows [batch, size]."""
        summary, patches = rows.split([self.summary, self.size - self.summary], dim=1)
        return ProjectedFeatures(
            summary if self.summary else None,
            patches.unflatten(1, (self.patches, *self.grid)) if self.patches else None,
        )


class FeatureModel(AroundTrunk):
    """A trunk with a projector for its summary and one for its patches, and the statistics of its teacher's features.

    Its answer is in the space of the teacher's features after their standardisation, on the grid they are compared on.
    """

    config: FeatureConfig
    family = "features"

    def __init__(self, trunk: Model, settings: FeatureHeadSettings) -> None:
        super().__init__(
            trunk,
            FeatureConfig(trunk_family=trunk.family, trunk_name=trunk.name, trunk=trunk.config, head=settings),
        )
        self.shape = FeatureShape(summary=settings.summary, patches=settings.patches, grid=settings.grid or (0, 0))
        self.summary_projector = _make_projector(self.trunk_dim, settings.summary, settings)
        self.patch_projector: nn.Module | None = None
        if settings.patches:
            dim, grid = look_at_patches(trunk)
            self.shape = FeatureShape(summary=settings.summary, patches=settings.patches, grid=settings.grid or grid)
            self.patch_projector = _make_projector(dim, settings.patches, settings)
        for level, dim in (("summary", settings.summary), ("patches", settings.patches)):
            self.register_buffer(f"{level}_mean", torch.zeros(dim))
            self.register_buffer(f"{level}_deviation", torch.ones(dim))
        self.follow_trunk()

    def init_heads(self) -> None:
        for projector in (self.summary_projector, self.patch_projector):
            if projector is not None:
                initialize(projector, std=None)
        for level in ("summary", "patches"):
            self.get_buffer(f"{level}_mean").zero_()
            self.get_buffer(f"{level}_deviation").fill_(1.0)

    def forward(self, images: Tensor) -> ProjectedFeatures:  # type: ignore[override]  # it has no logits
        if self.patch_projector is None:
            summary, patches = self.trunk.summarize(images), None
        else:
            summary, patches, _ = self.trunk.features(images)
        summary = summary.flatten(1)
        if self.patch_projector is not None and patches is not None:
            patches = self.patch_projector(patches.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
            patches = resample(patches, self.shape.grid)
        if self.summary_projector is not None:
            summary = self.summary_projector(summary)
        return ProjectedFeatures(summary, patches)

    def set_statistics(self, level: str, *, mean: Tensor, deviation: Tensor) -> None:
        """Remember what the teacher's features are like over the data, for a level: "summary" or "patches"."""
        least = _LEAST_DEVIATION * deviation.square().mean().sqrt()
        self.get_buffer(f"{level}_mean").copy_(mean)
        self.get_buffer(f"{level}_deviation").copy_(deviation.clamp_min(least.clamp_min(1e-6)))

    def standardize(self, features: ProjectedFeatures) -> ProjectedFeatures:
        """A teacher's features with mean 0 and deviation 1 of each number over the data."""
        summary, patches = features
        if summary is not None:
            summary = (summary - self.get_buffer("summary_mean")) / self.get_buffer("summary_deviation")
        if patches is not None:
            shape = (-1, 1, 1)
            mean, deviation = self.get_buffer("patches_mean"), self.get_buffer("patches_deviation")
            patches = (patches - mean.view(shape)) / deviation.view(shape)
        return ProjectedFeatures(summary, patches)


def resample(maps: Tensor, grid: Grid) -> Tensor:
    """Maps [batch, dim, height, width] on another grid: means of what lies below a cell, or values in between."""
    if tuple(maps.shape[2:]) == tuple(grid):
        return maps
    return functional.interpolate(maps.float(), size=grid, mode="bilinear", antialias=True, align_corners=False)


def look_at_patches(trunk: Model) -> tuple[int, Grid]:
    """Channels and grid of a trunk's patches, found by looking at an image that is empty."""
    parameter, was_training = next(trunk.parameters()), trunk.training
    trunk.eval()
    try:
        with torch.no_grad():
            maps = trunk.features(parameter.new_zeros(1, trunk.config.in_channels, *trunk.config.size)).patches
    except ValueError as error:
        raise ValueError(
            f"the student can't learn patches, features.patches=0 learns the summary alone ({error})"
        ) from None
    finally:
        trunk.train(was_training)
    return maps.shape[1], (maps.shape[2], maps.shape[3])


def _make_projector(width: int, dim: int, settings: FeatureHeadSettings) -> nn.Module | None:
    """From a student's features to a teacher's; None where that level is not learnt."""
    if not dim:
        return None
    if settings.projector == "linear":
        return nn.Linear(width, dim)
    return nn.Sequential(nn.Linear(width, settings.hidden_dim), nn.GELU(), nn.Linear(settings.hidden_dim, dim))
