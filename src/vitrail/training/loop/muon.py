"""Torch's Muon, which takes hidden matrices only, and AdamW for all other parameters, as one optimizer."""

from collections.abc import Callable
from typing import Any

import torch


class MuonWithAdamW(torch.optim.Optimizer):
    """Muon for the groups that are not marked `use_fallback`, AdamW for those that are.

    Both work on the groups and the state of this object: there is one `state_dict`, and a schedule sets one list of
    groups. By default Muon's steps are as long as AdamW's would be, so that one learning rate is right for both.
    """

    def __init__(
        self,
        params: list[dict[str, Any]],
        lr: float = 1e-3,
        betas: tuple[float, ...] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = "match_rms_adamw",
    ) -> None:
        of_muon = {"momentum": momentum, "nesterov": nesterov, "ns_steps": ns_steps, "adjust_lr_fn": adjust_lr_fn}
        of_adamw = {"betas": tuple(betas), "eps": eps}
        kinds = ((False, torch.optim.Muon, of_muon), (True, torch.optim.AdamW, of_adamw))
        # Each fills its own groups with what it takes.
        self._parts = {
            is_fallback: make(own, lr=lr, weight_decay=weight_decay, **arguments)
            for is_fallback, make, arguments in kinds
            if (own := [group for group in params if group["use_fallback"] is is_fallback])
        }
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step of both optimizers."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for is_fallback, part in self._parts.items():
            # Loading a state puts others in their place.
            part.param_groups = [group for group in self.param_groups if group["use_fallback"] is is_fallback]
            part.state = self.state
            part.step()
        return loss
