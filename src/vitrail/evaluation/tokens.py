"""How alike the class and the distillation token are, layer by layer (thesis 3.3)."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from vitrail.evaluation.heads import SeparateHeads
from vitrail.evaluation.together import Together
from vitrail.layers.pooling import ClassStage
from vitrail.models.contract import Model
from vitrail.models.vit import VisionTransformer


@dataclass(frozen=True, eq=False)
class _Path:
    """Where the two tokens of a model start and which blocks change them."""

    tokens: Tensor  # [1, 2, dim], as learned
    blocks: Sequence[nn.Module]
    first: int  # number of the first of these blocks among those of its stage, from 1
    stage: str  # what a block of it is called
    norm: nn.Module  # what follows the last block


class TokenMeter:
    """Sums the cosine of the two tokens over all images that pass through the model it watches."""

    def __init__(self, path: _Path) -> None:
        self._path = path
        self._sums = [0.0] * (len(path.blocks) + 1)
        self._count = 0

    def results(self) -> Iterator[tuple[str, float]]:
        """Names and numbers: the learned tokens, the mean over images after each block, and after the final norm."""
        if self._count == 0:
            raise ValueError("no image has passed through the model yet: there are no tokens to compare")
        path = self._path
        yield "learned", _cosine(path.tokens.detach()).item()
        names = [f"{path.stage} {path.first + place}" for place in range(len(path.blocks))]
        yield from zip([*names, "norm"], (total / self._count for total in self._sums), strict=True)

    def share(self, world: Together) -> None:
        """Count in the images that other processes have seen."""
        *self._sums, count = world.sum(torch.tensor([*self._sums, self._count], dtype=torch.float64)).tolist()
        self._count = int(count)

    @torch.no_grad()
    def note(self, place: int, output: Tensor) -> None:
        """Count what a block gave: the two tokens, and perhaps patches after them."""
        tokens = output[:, :2]
        self._sums[place] += _cosine(tokens).sum().item()
        if place == len(self._path.blocks) - 1:
            self._sums[-1] += _cosine(self._path.norm(tokens)).sum().item()
            self._count += len(tokens)


@contextlib.contextmanager
def watched_tokens(model: Model) -> Iterator[TokenMeter]:
    """A meter of the tokens of `model` while images pass through it; what the model answers stays the same.

    The thesis gives 0.06 for the learned tokens of DeiT-B and 0.93 for the
    last layer. The tokens of a ViT pass through its blocks, those of a CaiT through the class-attention stage, those of
    a PatchConvNet through the pooling.
    """
    path = _find_path(model.model if isinstance(model, SeparateHeads) else model)
    meter = TokenMeter(path)
    hooks = [
        block.register_forward_hook(lambda _module, _inputs, output, place=place: meter.note(place, output))
        for place, block in enumerate(path.blocks)
    ]
    try:
        yield meter
    finally:
        for hook in hooks:
            hook.remove()


def _tokens_of(model: Model) -> Tensor | None:
    owner = model if isinstance(model, VisionTransformer) else model.class_stage
    tokens = getattr(owner, "tokens", None)
    is_pair = model.has_two_heads and isinstance(tokens, Tensor) and tokens.shape[1] == 2
    return tokens if is_pair else None


def _find_path(model: Model) -> _Path:
    tokens = _tokens_of(model)
    if tokens is None:
        raise ValueError(
            f"{model.name or type(model).__name__} has no class token and distillation token to compare: "
            "it takes a ViT, CaiT or PatchConvNet with distilled=True"
        )
    norm = model.norm
    assert isinstance(norm, nn.Module)
    if isinstance(model, VisionTransformer):
        first = model.config.class_layer
        return _Path(tokens, list(model.blocks)[first:], first + 1, "block", norm)
    stage = model.class_stage
    assert isinstance(stage, ClassStage)
    return _Path(tokens, list(stage.blocks), 1, "class block", norm)


def _cosine(tokens: Tensor) -> Tensor:
    """The cosine between the two tokens of each image: [batch, 2, dim] -> [batch]."""
    first, second = tokens.float().unbind(dim=1)
    return functional.cosine_similarity(first, second, dim=1)
