"""The loss of masked image modelling, and the watch over the codes that are learnt."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vitrail.data.patch_masks import MaskedBatch
from vitrail.tasks.contract import Losses, Objective
from vitrail.tasks.masked.targets import Targets
from vitrail.tasks.tokenizer.code_use import CodeUse
from vitrail.tasks.unlabelled.collapse import CollapseWatch


class MaskedPrediction(Objective[MaskedBatch]):
    """What a model's outputs at masked patches cost; of tokens also which codes there are to learn.

    Targets stay as they are, so a model can't make its task easier by saying the same of every image. Tokens can be the
    same: `use` and `watch` look at them, where there are some.
    """

    is_divisible: ClassVar[bool] = True

    def __init__(self, targets: Targets, *, use: CodeUse | None = None, watch: CollapseWatch | None = None) -> None:
        self.targets, self.use, self.watch = targets, use, watch

    def __call__(self, model: nn.Module, batch: MaskedBatch) -> Losses:
        assert batch.wanted is not None, "prepare looks it up"
        outputs = model(batch.images, batch.masks).float()
        total = self.targets.cost(outputs, batch.wanted)
        if self.use is None or self.targets.num_codes is None:
            return Losses(total, {"masked": total.detach()})
        parts = {
            "masked": total.detach(),
            "accuracy": count_right(outputs, batch.wanted) / batch.wanted.numel(),
            "share_of_codes": total.new_tensor(self.use.share),
        }
        return Losses(total, parts, torch.bincount(batch.wanted.flatten(), minlength=self.targets.num_codes))

    def note(self, seen: Tensor | None) -> None:
        """Remember which codes there were to learn."""
        if self.use is not None and seen is not None:
            self.use.note(seen)

    def after_step(self, model: nn.Module) -> None:
        """Look at the codes of the step."""
        if self.use is None:
            return
        self.use.take_in()
        if self.watch is not None:
            self.watch.see({"share_of_codes": self.use.share if self.use.is_known else 1.0})

    def skip_step(self) -> None:
        """Forget the codes of the step."""
        if self.use is not None:
            self.use.forget()

    def state_dict(self) -> dict[str, Any]:
        """The codes' use, and which tokenizer or teacher is learnt from."""
        state: dict[str, Any] = {"targets": self.targets.fingerprint}
        if self.use is not None:
            state["use"] = self.use.state_dict()
        if self.watch is not None:
            state["watch"] = self.watch.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint; another tokenizer or teacher than before is refused."""
        if state["targets"] != self.targets.fingerprint:
            raise ValueError("the tokenizer or teacher is not the one that the run began with, bring that one back")
        if self.use is not None:
            self.use.load_state_dict(state["use"])
        if self.watch is not None and "watch" in state:
            self.watch.load_state_dict(state["watch"])


@torch.no_grad()
def count_right(outputs: Tensor, wanted: Tensor) -> Tensor:
    """How many tokens [batch, masked] are the most probable ones of the outputs."""
    return (outputs.argmax(dim=2) == wanted).sum().float()
