"""How codes are learnt: a discrete VAE's loss, or the distance to the nearest code; dead codes are put back to work."""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from vitrail.data.draws import Draws
from vitrail.evaluation.together import Together
from vitrail.models.tokenizer import Quantised, Tokenizer
from vitrail.tasks.contract import Losses, Objective
from vitrail.tasks.tokenizer.code_use import CodeUse
from vitrail.tasks.tokenizer.settings import TokenizerSettings
from vitrail.tasks.unlabelled.collapse import CollapseWatch


class TokenizerBatch(NamedTuple):
    """Images, or a teacher's patches of them, as a tokenizer takes them."""

    inputs: Tensor  # [batch, channels, height, width]
    picked: Tensor  # int64 [batch]: a patch of each image, which a dead code may be put on
    first: int  # the place of the first image in the global batch
    indices: Tensor  # [batch]: the sample's place in the data set

    @property
    def num_samples(self) -> int:
        """How many images the batch holds."""
        return len(self.indices)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "TokenizerBatch":
        """The batch with its tensors on the device."""
        return self._replace(inputs=self.inputs.to(device, non_blocking=non_blocking), picked=self.picked.to(device))


class SeenCodes(NamedTuple):
    """What a micro-batch leaves to the end of its step."""

    counts: Tensor  # [codes]: patches of each
    first: int
    picked: Tensor  # [batch, vector_dim]: a vector of each image


class Quantisation(Objective[TokenizerBatch]):
    """The loss of a tokenizer, and the care of its codes.

    A discrete VAE learns to give the image back, its codes move to the vectors that they stand for, and the vectors
    stay near them (van den Oord et al. 2017, equation 3). For k-means the loss is the distance alone, whose gradient
    moves a code to the mean of its patches. A code that no patch was mapped to for `window` steps is put on a patch of
    the step, chosen by the seed and the step.
    """

    is_divisible: ClassVar[bool] = True

    def __init__(
        self, settings: TokenizerSettings, *, seed: int, world: Together, watch: CollapseWatch | None = None
    ) -> None:
        self.settings, self.seed, self.world, self.watch = settings, seed, world, watch
        self.use = CodeUse(settings.codes, window=settings.window, world=world)
        self.revived = torch.zeros(settings.codes, dtype=torch.int64)  # step in which a code was put on a patch
        self._picked: list[tuple[int, Tensor]] = []

    def __call__(self, model: nn.Module, batch: TokenizerBatch) -> Losses:
        found = model(batch.inputs)
        assert isinstance(found, Quantised), "a tokenizer that is trained gives all of it"
        counts = torch.bincount(found.tokens.flatten(), minlength=self.settings.codes)
        rows = torch.arange(len(found.vectors), device=found.vectors.device)
        seen = SeenCodes(counts, batch.first, found.vectors.detach()[rows, batch.picked])
        total, parts = self._judge(found, batch.inputs)
        parts["share_of_codes"] = total.new_tensor(self.use.share)
        return Losses(total, parts, seen)

    def _judge(self, found: Quantised, inputs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        if found.pixels is None:
            distance = functional.mse_loss(found.codes.float(), found.vectors.float())
            return distance, {"distance": distance.detach()}
        picture = functional.mse_loss(found.pixels.float(), inputs.float())
        codes = (found.codes - found.vectors.detach()).square().sum(dim=2).mean()
        vectors = (found.vectors - found.codes.detach()).square().sum(dim=2).mean()
        total = picture + codes + self.settings.commitment * vectors
        return total, {"picture": picture.detach(), "codes": codes.detach()}

    def note(self, seen: SeenCodes) -> None:
        """Remember which codes were used, and patches that a dead one may be put on."""
        self.use.note(seen.counts)
        self._picked.append((seen.first, seen.picked))

    def after_step(self, model: nn.Module) -> None:
        """Count the codes that were used, and put dead ones back to work."""
        assert isinstance(model, Tokenizer), "a tokenizer is trained"
        picked, self._picked = self._picked, []
        self.use.take_in()
        if self.settings.revive:
            self._revive(model, picked)
        if self.watch is not None:
            self.watch.see({"share_of_codes": self.use.share if self.use.is_known else 1.0})

    @torch.no_grad()
    def _revive(self, model: Tokenizer, picked: list[tuple[int, Tensor]]) -> None:
        step = self.use.step
        dead = torch.nonzero(step - torch.maximum(self.use.last_seen, self.revived) >= self.use.window).squeeze(1)
        if len(dead) == 0 or not any(self.world.any(bool(picked))):
            return
        everyone = [part for parts in self.world.gather([(first, v.cpu()) for first, v in picked]) for part in parts]
        vectors = torch.cat([part for _, part in sorted(everyone, key=lambda part: part[0])])
        order = Draws(self.seed, step, "dead codes").array().permutation(len(vectors))
        places = torch.from_numpy(order[: len(dead)].copy())
        chosen = dead[: len(places)]
        model.codebook[chosen.to(model.codebook.device)] = vectors[places].to(model.codebook)
        self.revived[chosen] = step

    def skip_step(self) -> None:
        """Forget what the micro-batches left."""
        self.use.forget()
        self._picked = []

    def state_dict(self) -> dict[str, Any]:
        """When each code was used and revived, and what the watch has seen."""
        state = {"use": self.use.state_dict(), "revived": self.revived.clone()}
        return state if self.watch is None else state | {"watch": self.watch.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.use.load_state_dict(state["use"])
        self.revived = state["revived"].clone()
        if self.watch is not None and "watch" in state:
            self.watch.load_state_dict(state["watch"])
