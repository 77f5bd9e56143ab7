"""The target network: a moving average of the trained one, whose projections are what views are to predict (2.3.1)."""

import copy
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from vitrail.heads.embed import EmbeddingModel


class TargetNetwork:
    """xi <- tau xi + (1 - tau) theta, for the trunk and the projector.

    It normalises by the statistics of its own batch, as the trained network does, and drops nothing. tau is constant,
    or grows to 1 over `total_steps` by BYOL's schedule, 1 - (1 - tau) (cos(pi k / K) + 1) / 2. The thesis names no
    value: 0.996 is BYOL's.
    """

    def __init__(self, model: EmbeddingModel, *, decay: float = 0.996, total_steps: int | None = None) -> None:
        if not 0.0 <= decay <= 1.0:
            raise ValueError(f"the decay of the target network must be in [0, 1], e.g. 0.996, not {decay!r}")
        if total_steps is not None and total_steps < 1:
            raise ValueError(f"total_steps of the target network must be at least 1, not {total_steps!r}")
        self.decay, self.total_steps = decay, total_steps
        self.num_updates = 0
        self.network = copy.deepcopy(model)
        self.network.predictor = None
        self.network.head = nn.Identity()
        self.network.requires_grad_(False).eval()
        for part in self.network.modules():
            if isinstance(part, _BatchNorm):
                part.train()
                part.momentum = (
                    0.0  # running statistics are not used: batches that are judged together leave them alone
                )

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """The target's projection g_xi(x), not normalised: [batch, dim]."""
        return self.network.project(images)

    @property
    def current_decay(self) -> float:
        """The decay tau of the next update."""
        if self.total_steps is None:
            return self.decay
        progress = min(self.num_updates / self.total_steps, 1.0)
        return 1.0 - (1.0 - self.decay) * (math.cos(math.pi * progress) + 1.0) / 2.0

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Take in the weights as they are now."""
        online = dict(model.named_parameters())
        for name, value in self.network.named_parameters():
            # A step from xi to theta leaves parameters that are frozen bit by bit what they are.
            value.lerp_(online[name].to(value.dtype), 1.0 - self.current_decay)
        self.num_updates += 1

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"num_updates": self.num_updates, "weights": dict(self.network.state_dict())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint of the same model."""
        self.network.load_state_dict(state["weights"])
        self.num_updates = state["num_updates"]
