"""Which codes are in use: when each of them was last seen."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vitrail.evaluation.together import Together
from vitrail.tasks.unlabelled.collapse import Sign, dead_codes

LEAST_SHARE = 0.05  # of the codes, below which a codebook is dead


class CodeUse:
    """The step in which each code was last seen, in any process; one that is not seen for `window` steps is dead."""

    def __init__(self, num_codes: int, *, window: int, world: Together) -> None:
        self.window, self.world = window, world
        self.step = 0  # steps that were taken in
        self.last_seen = torch.zeros(num_codes, dtype=torch.int64)
        self._counts: Tensor | None = None

    def note(self, counts: Tensor) -> None:
        """Add what a micro-batch used: the number of patches of each code."""
        self._counts = counts if self._counts is None else self._counts + counts

    def forget(self) -> None:
        """Drop what was noted: the step is not made."""
        self._counts = None

    def take_in(self) -> None:
        """Count the step, with what all processes noted of it."""
        counts = torch.zeros(len(self.last_seen)) if self._counts is None else self._counts.float()
        self._counts = None
        self.step += 1
        is_used = (self.world.sum(counts) > 0).cpu()
        self.last_seen[is_used] = self.step

    @property
    def share(self) -> float:
        """The share of the codes that were seen in the last `window` steps."""
        return (self.last_seen > max(self.step - self.window, 0)).float().mean().item()

    @property
    def is_known(self) -> bool:
        """Whether enough steps were made to say which codes are dead."""
        return self.step >= self.window

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"step": self.step, "last_seen": self.last_seen.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint of as many codes."""
        if state["last_seen"].shape != self.last_seen.shape:
            raise ValueError(f"it counts {len(state['last_seen'])} codes and not {len(self.last_seen)}")
        self.step, self.last_seen = int(state["step"]), state["last_seen"].clone()


def dead_codebook(num_codes: int, *, remedies: tuple[str, str]) -> Sign:
    """The sign of a codebook that died: fewer than 5 % of its codes in use, or one alone where these are few."""
    return dead_codes(least_share=max(LEAST_SHARE, 1.0 / num_codes), remedies=remedies)
