"""DINO: a trunk with a projection head that learns from their own moving average, the teacher (arXiv 2104.14294)."""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional


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
        logits = functional.linear(vectors, functional.normalize(self.weight, dim=1))
        return logits if self.gain is None else logits * self.gain


class ProjectionHead(nn.Module):
    """Linear layers with GELU between them, to vectors of length 1, and the prototypes behind them."""

    def __init__(
        self,
        in_dim: int,
        *,
        hidden_dim: int = 2048,
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
