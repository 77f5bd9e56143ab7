"""DINO: a trunk with a projection head that learns from their own moving average, the teacher (arXiv 2104.14294)."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from vitrail.heads.around_trunk import AroundTrunk, AroundTrunkConfig
from vitrail.models.config import CheckedSettings
from vitrail.models.contract import Model, initialize

PAPER_WIDTH = 2048  # of the hidden layers of the head
NUM_GLOBAL = 2  # crops of an image that the teacher sees


class Prototypes(nn.Module):
    """A linear layer without bias whose rows have length 1, or a gain that is learnt: outputs are cosines.

    The length of a row of `weight` is not used, but it decides how far a step of the optimizer turns the row.
    """

    def __init__(self, in_dim: int, *, num_outputs: int, learns_gain: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_outputs, in_dim))
        self.gain = nn.Parameter(torch.empty(num_outputs)) if learns_gain else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = self.weight.shape[1] ** -0.5  # torch's own start of a linear layer, which the official code leaves
        nn.init.uniform_(self.weight, -bound, bound)
        if self.gain is not None:
            nn.init.ones_(self.gain)

    def forward(self, vectors: Tensor) -> Tensor:  # [..., in_dim] -> [..., outputs]
        cosines = functional.linear(vectors, self.weight) / self.weight.norm(dim=1).clamp_min(1e-12)
        return cosines if self.gain is None else cosines * self.gain


class ProjectionHead(nn.Module):
    """Linear layers with GELU between them, to vectors of length 1, and the prototypes behind them."""

    def __init__(
        self,
        in_dim: int,
        *,
        hidden_dim: int = PAPER_WIDTH,
        bottleneck_dim: int = 256,
        num_layers: int = 3,
        num_outputs: int = 65536,
        learns_gain: bool = False,
    ) -> None:
        super().__init__()
        widths = [in_dim, *[hidden_dim] * (num_layers - 1), bottleneck_dim]
        layers: list[nn.Module] = []
        for place, (width, following) in enumerate(pairwise(widths)):
            layers += [nn.GELU()] * (place > 0) + [nn.Linear(width, following)]
        self.mlp = nn.Sequential(*layers)
        self.prototypes = Prototypes(bottleneck_dim, num_outputs=num_outputs, learns_gain=learns_gain)

    def project(self, features: Tensor) -> Tensor:  # [rows, in_dim] -> [rows, bottleneck_dim]
        """Vectors of length 1, in float32, which the prototypes are compared with."""
        return functional.normalize(self.mlp(features).float(), dim=-1)

    def forward(self, features: Tensor) -> Tensor:  # [rows, in_dim] -> [rows, outputs]
        return self.prototypes(self.project(features))


@dataclass(frozen=True, kw_only=True)
class ProjectionSettings(CheckedSettings):
    """Sizes of the projection head; the defaults are the paper's."""

    num_outputs: int = 65536  # prototypes
    hidden_dim: int = PAPER_WIDTH  # width inside the MLP
    bottleneck_dim: int = 256  # length of the vectors that prototypes are compared with
    num_layers: int = 3  # of the MLP
    learns_gain: bool = False  # whether each prototype has a length of its own, instead of 1

    def __post_init__(self) -> None:
        self.check_counts("num_outputs", "hidden_dim", "bottleneck_dim", "num_layers")
        self.check_flags("learns_gain")


@dataclass(frozen=True, kw_only=True)
class DinoConfig(AroundTrunkConfig):
    """All that a model of DINO is built from."""

    head: ProjectionSettings


class CropVectors(NamedTuple):
    """What student and teacher say about the crops of some images."""

    student: Tensor  # [batch, crops, dim], of length 1, in the order of the crops
    teacher: Tensor  # [batch, 2, dim], of length 1
    features: Tensor  # [batch, 2, dim of the trunk]: the teacher's, before its head


class DinoModel(AroundTrunk):
    """A student, trunk and head, and a teacher of the same form, which follows it and is what is saved.

    The teacher drops nothing. Where it has batch normalisation, that normalises by the statistics of its own batch, as
    the student's and as in the official code, and follows them: so the saved teacher's are of its own weights.
    """

    config: DinoConfig
    head: ProjectionHead
    family = "dino"

    def __init__(self, trunk: Model, settings: ProjectionSettings) -> None:
        super().__init__(
            trunk, DinoConfig(trunk_family=trunk.family, trunk_name=trunk.name, trunk=trunk.config, head=settings)
        )
        self.head = ProjectionHead(self.trunk_dim, **asdict(settings))
        self.teacher_trunk = deepcopy(trunk).requires_grad_(False)
        self.teacher_head = deepcopy(self.head).requires_grad_(False)
        self.follow_trunk()
        self.train(trunk.training)

    def init_heads(self) -> None:
        # The official deviation of 0.02 is 1 / sqrt(inputs) of the paper's width; in narrow heads it would vanish.
        initialize(self.head, std=0.02 if self.config.head.hidden_dim >= PAPER_WIDTH else None)
        self.start_teacher()

    def start_teacher(self) -> None:
        """Make the teacher what the student is: how a training begins."""
        self.teacher_trunk.load_state_dict(self.trunk.state_dict())
        self.teacher_head.load_state_dict(self.head.state_dict())

    @torch.no_grad()
    def move_teacher(self, momentum: float) -> None:
        """teacher <- momentum * teacher + (1 - momentum) * student, for all parameters."""
        teacher: list[Tensor] = [*self.teacher_trunk.parameters(), *self.teacher_head.parameters()]
        student = [value.detach() for part in (self.trunk, self.head) for value in part.parameters()]
        torch._foreach_lerp_(teacher, student, 1.0 - momentum)

    def saved_trunk(self) -> Model:
        return self.teacher_trunk

    def train(self, mode: bool = True) -> "DinoModel":
        super().train(mode)
        for part in (self.teacher_trunk, self.teacher_head):
            part.eval()
            for layer in part.modules():
                if isinstance(layer, _BatchNorm):
                    layer.train(mode)
        return self

    def forward(self, crops: Sequence[Tensor]) -> CropVectors:  # type: ignore[override]  # crops, by size
        """Vectors of crops [batch, crops, 3, height, width] of each size; the first two are global, and the teacher's.

        Crops of one size go through the trunk together, and all through the head.
        """
        num_images = crops[0].shape[0]
        found = [self.trunk_vectors(part.flatten(0, 1)) for part in crops]
        counts = [len(rows) for rows in found]
        projected = self.head.project(torch.cat(found)).split(counts)
        student = torch.cat([rows.unflatten(0, (num_images, -1)) for rows in projected], dim=1)
        with torch.inference_mode():
            features = self.teacher_trunk.summarize(crops[0][:, :NUM_GLOBAL].flatten(0, 1)).flatten(1)
            teacher = self.teacher_head.project(features)
        shape = (num_images, NUM_GLOBAL)
        return CropVectors(student, teacher.unflatten(0, shape), features.unflatten(0, shape))
