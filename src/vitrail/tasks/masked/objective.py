"""The loss of masked image modelling, and the watch over the codes that are learnt."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vitrail.data.patch_masks import MaskedBatch
from vitrail.tasks.contract import Losses, Objective
from vitrail.tasks.masked.targets import Targets, TokenTargets
from vitrail.tasks.tokenizer.code_use import CodeUse
from vitrail.tasks.unlabelled.collapse import CollapseWatch


class MaskedPrediction(Objective[MaskedBatch]):
    """What a model's outputs at masked patches cost.

    Targets stay as they are, so a model can't make its task easier by saying the same of every image: there is nothing
    to watch for in its steps. That it does so all the same, by too high a rate, evaluations see.
    """

    is_divisible: ClassVar[bool] = True

    def __init__(self, targets: Targets) -> None:
        self.targets = targets

    def __call__(self, model: nn.Module, batch: MaskedBatch) -> Losses:
        assert batch.wanted is not None, "prepare looks it up"
        return self.judge(model(batch.images, batch.masks).float(), batch.wanted)

    def judge(self, outputs: Tensor, wanted: Tensor) -> Losses:
        """What outputs [batch, masked, outputs] cost."""
        total = self.targets.cost(outputs, wanted)
        return Losses(total, {"masked": total.detach()})

    def state_dict(self) -> dict[str, Any]:
        """Which tokenizer or teacher is learnt from."""
        return {"targets": self.targets.fingerprint}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint; another tokenizer or teacher than before is refused."""
        if state["targets"] != self.targets.fingerprint:
            raise ValueError("the tokenizer or teacher is not the one that the run began with, bring that one back")


class TokenPrediction(MaskedPrediction):
    """The loss of tokens, and which codes there are to learn: a tokenizer may be dead."""

    targets: TokenTargets

    def __init__(self, targets: TokenTargets, *, use: CodeUse, watch: CollapseWatch) -> None:
        super().__init__(targets)
        self.use, self.watch = use, watch

    def judge(self, outputs: Tensor, wanted: Tensor) -> Losses:
        """What logits [batch, masked, codes] cost, how many are right, and what was there to learn."""
        total = self.targets.cost(outputs, wanted)
        parts = {
            "masked": total.detach(),
            "accuracy": count_right(outputs, wanted) / wanted.numel(),
            "share_of_codes": total.new_tensor(self.use.share),
        }
        return Losses(total, parts, torch.bincount(wanted.flatten(), minlength=self.targets.num_codes))

    def note(self, seen: Tensor) -> None:
        """Remember which codes there were to learn."""
        self.use.note(seen)

    def after_step(self, model: nn.Module) -> None:
        """Look at the codes of the step."""
        self.use.take_in()
        self.watch.see({"share_of_codes": self.use.share if self.use.is_known else 1.0})

    def skip_step(self) -> None:
        """Forget the codes of the step."""
        self.use.forget()

    def state_dict(self) -> dict[str, Any]:
        """Which tokenizer is learnt from, the use of its codes, and what the watch has seen."""
        return super().state_dict() | {"use": self.use.state_dict(), "watch": self.watch.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint with the same tokenizer."""
        super().load_state_dict(state)
        self.use.load_state_dict(state["use"])
        self.watch.load_state_dict(state["watch"])


@torch.no_grad()
def count_right(outputs: Tensor, wanted: Tensor) -> Tensor:
    """How many tokens [batch, masked] are the most probable ones of the outputs."""
    return (outputs.argmax(dim=2) == wanted).sum().float()
