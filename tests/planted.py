"""Models whose weights are set by hand: they look at, and answer by, the one bright patch of a dark image."""

from typing import Any

import torch
from torch import Tensor, nn

import vitrail
from vitrail.layers.attention import ClassAttention, SelfAttention, TalkingHeadsAttention
from vitrail.layers.classifier import Classifier, DistilledClassifier, PerClassClassifier
from vitrail.layers.norm import Affine
from vitrail.layers.pooling import ClassStage
from vitrail.layers.residual import LayerScale
from vitrail.models.contract import Model

PATCH, DIM, HEADS, CLASSES = 8, 16, 2, 5
CLASS = 1  # the class that the bright patch speaks for
SIZES = [(32, 32), (24, 40)]
# Channels: a bright patch is +1 in 0 and -1 in 1; a token that looks for it +1 in 2 and -1 in 3; what it finds it puts
# into 4 and 5, with opposite signs. So each is of mean zero, as layer norms leave it.
BRIGHT, ASKING, FOUND, IDLE = 0, 2, 4, 6
SHARPNESS = 10.0  # of the softmax


def plant(name: str, *, size: tuple[int, int], **settings: Any) -> Model:
    """A shrunk row of the catalogue in which nothing happens but the looking."""
    shape: dict[str, Any] = {"dim": DIM, "depth": 2, "num_classes": CLASSES, "patch_size": PATCH, "stem": "linear"}
    if name.startswith(("deit", "cait")):
        shape["num_heads"] = HEADS
    model = vitrail.create_model(name, image_size=size, **(shape | settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        for part in model.modules():
            _set_part(part)
        attentions = [part for part in model.modules() if isinstance(part, (SelfAttention, ClassAttention))]
        for attention in attentions:
            _set_attention(attention, puts=attention is attentions[-1] or isinstance(attention, ClassAttention))
        assert isinstance(model.stem, nn.Module)
        convolution = next(part for part in model.stem.modules() if isinstance(part, nn.Conv2d))
        convolution.weight[BRIGHT] = 1 / convolution.weight[0].numel()
        convolution.weight[BRIGHT + 1] = -1 / convolution.weight[0].numel()
        has_tokens = getattr(model, "tokens", None) is not None or getattr(model, "class_stage", None) is not None
        _set_head(model.head, channel=FOUND if has_tokens else BRIGHT)
        tokens = getattr(model, "tokens", None)
        if isinstance(tokens, Tensor):
            _set_tokens(tokens)
    return model


def _set_part(part: nn.Module) -> None:
    if isinstance(part, (nn.LayerNorm, Affine, LayerScale)):
        part.weight.fill_(1.0)
    if isinstance(part, ClassStage):
        _set_tokens(part.tokens)
    if isinstance(part, TalkingHeadsAttention):
        for mixing in (part.before_softmax, part.after_softmax):
            mixing.weight.copy_(torch.eye(HEADS))


def _set_tokens(tokens: Tensor) -> None:
    """They all ask; with a token per class only that of CLASS does."""
    tokens.zero_()
    asks = torch.arange(tokens.shape[1]) == CLASS if tokens.shape[1] == CLASSES else torch.ones(tokens.shape[1])
    for token, is_asking in enumerate(asks.tolist()):
        channel = ASKING if is_asking else IDLE
        tokens[0, token, channel], tokens[0, token, channel + 1] = 1.0, -1.0


def _set_attention(attention: SelfAttention | ClassAttention, *, puts: bool) -> None:
    for head in range(attention.num_heads):
        row = head * (DIM // attention.num_heads)
        if isinstance(attention, ClassAttention):
            attention.query.weight[row, ASKING] = SHARPNESS
            attention.key.weight[row, BRIGHT] = 1.0
            attention.value.weight[row, BRIGHT] = 1.0
        else:
            attention.qkv.weight[row, ASKING] = SHARPNESS
            attention.qkv.weight[DIM + row, BRIGHT] = 1.0
            attention.qkv.weight[2 * DIM + row, BRIGHT] = 1.0
        if puts:
            attention.proj.weight[FOUND, row], attention.proj.weight[FOUND + 1, row] = 1.0, -1.0


def _set_head(head: nn.Module, *, channel: int) -> None:
    if isinstance(head, PerClassClassifier):
        head.weight[CLASS, channel] = 1.0
    else:
        assert isinstance(head, (Classifier, DistilledClassifier))
        for linear in head.children():
            assert isinstance(linear, nn.Linear)
            linear.weight[CLASS, channel] = 1.0


def bright_at(*places: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """Dark images, each with one bright patch, at these rows and columns of the grid."""
    images = torch.zeros(len(places), 3, *size)
    for image, (row, column) in zip(images, places, strict=True):
        image[:, row * PATCH : (row + 1) * PATCH, column * PATCH : (column + 1) * PATCH] = 1.0
    return images


def peak_of(maps: Tensor) -> list[tuple[int, int]]:
    """Row and column of the greatest value of each of [batch, height, width]."""
    width = maps.shape[-1]
    return [divmod(int(place), width) for place in maps.flatten(1).argmax(dim=1)]
