"""`attention_maps`: where a model looks, as tensors, for every family (CaiT appendix D; thesis 3.7, 4.4, 5.3)."""

import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from vitrail.explain.attention_rows import Gaze, attention_rows, find_gaze, record, run
from vitrail.explain.gradient import run_for_gradients
from vitrail.explain.rollout import offers_rollout, roll_out
from vitrail.explain.thresholds import keep_mass
from vitrail.layers.mixing import CrossPatchLinear
from vitrail.models.contract import Model
from vitrail.models.resmlp import ResMLP

KINDS = ("attention", "rollout", "gradient", "likeness", "mixing")

_NUM_SOUGHT = 3  # patches of a row and of a column that all others are compared with


@dataclass(frozen=True, eq=False)
class AttentionMaps:
    """Maps of images and what their axes mean. Every axis is there, also with only one entry.

    "attention": how special tokens look at patches. A map and its `rest` sum to one (not behind talking heads).
    "rollout":   attention followed through all layers. A map and its `rest` sum to one.
    "gradient":  what each patch adds to a class's score; negative where it speaks against the class.
    "likeness":  cosines of the features of patches with those of one patch, or with their mean; 1 is the same.
    "mixing":    the rows of ResMLP's cross-patch matrices, one map for each patch that is written; of no image.
    """

    maps: Tensor  # float32 [batch, ..., height, width]
    # The name of each axis: "batch", "layer", "token", "class" or "patch", "head", "height", "width".
    axes: tuple[str, ...]
    kind: str
    logits: Tensor  # [batch, classes]: the model's answer; of no class where it has none; shares of a dense model
    layers: tuple[int, ...] = ()  # which ones the axis "layer" holds
    heads: tuple[int, ...] = ()  # the same for "head"
    tokens: tuple[str, ...] = ()  # the same for "token", and of a likeness for "patch"
    classes: Tensor | None = None  # [batch, classes]: the same for "class", in which images differ
    rest: Tensor | None = None  # [batch, ...]: what a row gives to the special tokens themselves
    shown_layer: int | None = None  # the one that `overview` takes
    is_dense: bool = False  # whether the model says classes of pixels or objects

    @property
    def probabilities(self) -> Tensor:
        """The answer [batch, classes] as probabilities.

        Of a dense model it is the share of the pixels that are said to be of a class, or the probability of the most
        probable object of it.
        """
        return self.logits.float() if self.is_dense else self.logits.float().softmax(dim=1)

    @property
    def shown_place(self) -> int:
        """Where on the axis "layer" the one to look at first is; the last if that was not asked for."""
        return self.layers.index(self.shown_layer) if self.shown_layer in self.layers else len(self.layers) - 1

    def overview(self) -> Tensor:
        """The map to look at first, [batch, classes or 1, height, width]: of one layer the mean of tokens and heads."""
        if self.kind == "mixing":
            raise ValueError("the rows of a cross-patch matrix have no overview: take them from maps")
        if self.kind == "likeness":
            return self.maps[:, :1]  # to the mean of all patches
        maps = self.maps[:, self.shown_place].mean(dim=2) if self.kind == "attention" else self.maps
        return maps if self.classes is not None else maps.mean(dim=1, keepdim=True)

    def masks(self, keep: float) -> Tensor:
        """The patches that hold that share of each map, bool as `maps`; `keep_mass` does it for any map."""
        return keep_mass(self.maps, keep)

    def of_image(self, place: int) -> "AttentionMaps":
        """The maps of one image, still with the axis "batch"."""
        at = slice(place, place + 1)
        return replace(
            self,
            maps=self.maps[at],
            logits=self.logits[at],
            classes=None if self.classes is None else self.classes[at],
            rest=None if self.rest is None else self.rest[at],
        )


def kinds_of(model: Model) -> tuple[str, ...]:
    """The kinds of maps that a model has; the first is the one it gets unless another is asked for."""
    if model.is_dense:
        return ("gradient",)  # no dense head reads a special token: where one looks was not learnt
    offers = {
        "attention": find_gaze(model) is not None,
        "rollout": offers_rollout(model),
        "gradient": model.config.num_classes > 0,
        "likeness": True,
        "mixing": isinstance(model, ResMLP) and model.config.communication == "linear",
    }
    return tuple(kind for kind in KINDS if offers[kind])


def attention_maps(
    model: Model,
    images: Tensor,
    *,
    kind: str | None = None,
    layer: int | Sequence[int] | None = None,
    head: int | Sequence[int] | None = None,
    class_index: int | Sequence[int] | Tensor | None = None,
    top: int = 1,
) -> AttentionMaps:
    """Where a model looks in images [batch, channels, height, width] that are prepared for it.

    Without a `kind` it is attention where the model has special tokens that look at patches, else a gradient; the
    result says which. `layer` and `head` choose some of attention (all unless given; negative ones count from the end).
    `class_index` chooses classes of gradients and of per-class tokens: a number, several, or a tensor [batch, classes]
    that differs from image to image; unless given these are each image's `top` most probable ones.

    Of an embedding model the maps are the trunk's; of a model of pixels or objects they are gradients of what its
    head says of a class, by the maps that it reads. The model runs once, as ever, in eval mode: its logits are the same
    bits with and without this.
    """
    _check_model(model)
    model = model if model.is_dense else model.trunk
    kind = choose_kind(model, kind)
    if class_index is not None or kind == "gradient":
        _check_classes_matter(model, kind)
    if kind != "attention" and head is not None:
        raise ValueError(f"{kind} maps have no heads to choose from: leave head out")
    if kind in ("rollout", "gradient") and layer is not None:
        raise ValueError(f"{kind} maps go through all layers: leave layer out")
    if kind == "likeness" and layer is not None:
        raise ValueError("likeness maps are of the last features: leave layer out")
    with _evaluating(model):
        if kind == "attention":
            return _look(model, images, layer=layer, head=head, class_index=class_index, top=top)
        if kind == "rollout":
            return _roll_out(model, images)
        if kind == "gradient":
            return _differentiate(model, images, class_index=class_index, top=top)
        if kind == "likeness":
            return _compare_patches(model, images)
        return _read_mixing(model, images, layer=layer)


def choose_classes(logits: Tensor, class_index: int | Sequence[int] | Tensor | None, *, top: int = 1) -> Tensor:
    """Class indices [batch, classes] as asked for, or those of the `top` most probable classes of each image."""
    batch, num_classes = logits.shape
    if class_index is None:
        if not 1 <= top <= num_classes:
            raise ValueError(f"top must lie between 1 and the {num_classes} classes, not {top}")
        return logits.topk(top, dim=1).indices
    if isinstance(class_index, Tensor) and class_index.ndim == 2:
        chosen = class_index.to(logits.device).long()
        if len(chosen) != batch:
            raise ValueError(f"class_index has {len(chosen)} rows for {batch} images: give one row an image")
    else:
        single = class_index.tolist() if isinstance(class_index, Tensor) else class_index
        chosen = torch.tensor([_as_indices(single, "class_index")], device=logits.device).expand(batch, -1)
    wrong = chosen[(chosen < 0) | (chosen >= num_classes)].tolist()
    if wrong:
        raise ValueError(f"class {wrong[0]} is not one of the classes 0 to {num_classes - 1}")
    return chosen


def _look(
    model: Model,
    images: Tensor,
    *,
    layer: int | Sequence[int] | None,
    head: int | Sequence[int] | None,
    class_index: int | Sequence[int] | Tensor | None,
    top: int,
) -> AttentionMaps:
    gaze = find_gaze(model)
    assert gaze is not None
    layers = choose(layer, tuple(gaze.layers), "layer")
    heads = choose(head, tuple(range(gaze.num_heads)), "head")
    classes = None
    if gaze.is_per_class:
        rows, classes, logits, grid = _read_classes(model, images, gaze, layers, class_index=class_index, top=top)
    else:
        rows, logits, grid = _read_tokens(model, images, gaze, layers)
    rows = rows[:, :, :, list(heads)]
    num_special = rows.shape[-1] - grid[0] * grid[1]
    return AttentionMaps(
        rows[..., num_special:].unflatten(-1, grid),
        axes=("batch", "layer", "class" if gaze.is_per_class else "token", "head", "height", "width"),
        kind="attention",
        logits=logits,
        layers=layers,
        heads=heads,
        tokens=gaze.tokens,
        classes=classes,
        rest=rows[..., :num_special].sum(dim=-1),
        shown_layer=gaze.shown_layer,
    )


def _read_tokens(
    model: Model, images: Tensor, gaze: Gaze, layers: Sequence[int]
) -> tuple[Tensor, Tensor, tuple[int, int]]:
    """Rows [batch, layers, tokens, heads, keys] of the class and the distillation token, the logits and the grid."""
    tokens = slice(0, len(gaze.tokens))
    attentions = [attention for index in layers for attention in gaze.layers[index]]
    with torch.no_grad(), record(attentions, lambda *inputs: attention_rows(*inputs, rows=tokens)) as taken:
        logits, grid = run(model, images)
    by_layer = [torch.cat([taken[attention] for attention in gaze.layers[index]], dim=1) for index in layers]
    return torch.stack(by_layer, dim=1).transpose(2, 3), logits, grid


def _read_classes(
    model: Model,
    images: Tensor,
    gaze: Gaze,
    layers: Sequence[int],
    *,
    class_index: int | Sequence[int] | Tensor | None,
    top: int,
) -> tuple[Tensor, Tensor, Tensor, tuple[int, int]]:
    """Rows as `_read_tokens` gives, of some classes' tokens, and which; they may be known only by the answer."""
    attentions = [attention for index in layers for attention in gaze.layers[index]]
    with torch.no_grad(), record(attentions, lambda *inputs: inputs) as taken:
        logits, grid = run(model, images)
        classes = choose_classes(logits, class_index, top=top)
        rows = torch.stack([attention_rows(*taken[each], rows=classes) for each in attentions], dim=1)
    return rows.transpose(2, 3), classes, logits, grid


def _roll_out(model: Model, images: Tensor) -> AttentionMaps:
    gaze = find_gaze(model)
    assert gaze is not None
    with torch.no_grad():
        rows, rest, logits, grid = roll_out(model, images)
    axes = ("batch", "token", "height", "width")
    return AttentionMaps(rows.unflatten(-1, grid), axes, "rollout", logits, tokens=gaze.tokens, rest=rest)


def _differentiate(
    model: Model, images: Tensor, *, class_index: int | Sequence[int] | Tensor | None, top: int
) -> AttentionMaps:
    found = run_for_gradients(model, images)
    logits = (found.logits if found.shares is None else found.shares).detach()
    classes = choose_classes(logits, class_index, top=top)
    axes = ("batch", "class", "height", "width")
    is_dense = found.shares is not None
    return AttentionMaps(found.maps(classes), axes, "gradient", logits, classes=classes, is_dense=is_dense)


def _compare_patches(model: Model, images: Tensor) -> AttentionMaps:
    """Cosines with the mean of all patches, then with patches that lie evenly over the image."""
    with torch.no_grad():
        logits = model(images) if model.config.num_classes else images.new_zeros(len(images), 0)
        patches = functional.normalize(model.features(images).patches.float(), dim=1)
        height, width = patches.shape[-2:]
        places = [(row, column) for row in _spread(height) for column in _spread(width)]
        sought = torch.stack([patches.mean(dim=(2, 3)), *(patches[:, :, row, column] for row, column in places)], dim=1)
        maps = torch.einsum("bpd,bdhw->bphw", functional.normalize(sought, dim=2), patches)
    names = ("all patches", *(f"row {row}, column {column}" for row, column in places))
    return AttentionMaps(maps, ("batch", "patch", "height", "width"), "likeness", logits, tokens=names)


def _spread(count: int) -> list[int]:
    """The middles of three equal parts of a side; fewer where there are not so many patches."""
    return sorted({(2 * part + 1) * count // (2 * _NUM_SOUGHT) for part in range(_NUM_SOUGHT)})


def _read_mixing(model: Model, images: Tensor, *, layer: int | Sequence[int] | None) -> AttentionMaps:
    assert isinstance(model, ResMLP)
    layers = choose(layer, tuple(range(len(model.blocks))), "layer")
    matrices = []
    for index in layers:
        mix = next(part for part in model.blocks[index].modules() if isinstance(part, CrossPatchLinear))
        matrices.append(mix.linear.weight.detach().float())
    with torch.no_grad():
        logits = model(images)
    maps = torch.stack(matrices).unflatten(-1, model.grid).expand(len(images), -1, -1, -1, -1)
    return AttentionMaps(maps, ("batch", "layer", "patch", "height", "width"), "mixing", logits, layers=layers)


def choose(asked: int | Sequence[int] | None, known: tuple[int, ...], name: str) -> tuple[int, ...]:
    """Some of the known indices, all unless any are asked for; negative ones count from the end."""
    if asked is None:
        return known
    end = known[-1] + 1
    chosen = []
    for index in _as_indices(asked, name):
        chosen.append(index + end if index < 0 else index)
        if chosen[-1] not in known:
            raise ValueError(f"{name} {index} is not one of the {name}s {known[0]} to {known[-1]}")
    return tuple(chosen)


def _as_indices(asked: Any, name: str) -> list[int]:
    several = asked if isinstance(asked, (list, tuple, range)) else [asked]
    try:
        indices = [operator.index(index) for index in several]
    except TypeError:
        indices = []
    if not indices or any(isinstance(index, bool) for index in several):
        raise ValueError(f"{name} must be a whole number or a list of them, not {asked!r}")
    return indices


def _check_model(model: object) -> None:
    if not isinstance(model, Model):
        raise ValueError(f"attention_maps takes a model made by create_model or load_model, not {type(model).__name__}")
    if model.is_folded:
        raise ValueError("a folded model computes no attention of its own any more: pass the model it was folded from")


def choose_kind(model: Model, kind: str | None) -> str:
    """The kind of map that is asked for, or the model's first; an error where it has none such."""
    kinds = kinds_of(model)
    label = model.name or type(model).__name__
    if kind is not None and kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, not {kind!r}; {label} has {', '.join(kinds)}")
    if kind is not None and kind not in kinds:
        why = ": its head reads patches, and where its special tokens look was not learnt" if model.is_dense else ""
        raise ValueError(f"{label} has no {kind} maps{why}; it has: {', '.join(kinds)}")
    return kind or kinds[0]


def _check_classes_matter(model: Model, kind: str) -> None:
    gaze = find_gaze(model)
    if kind == "gradient" or (kind == "attention" and gaze is not None and gaze.is_per_class):
        return
    raise ValueError(f"the {kind} maps of this model are the same for every class: pass kind='gradient' for a class's")


@contextmanager
def _evaluating(model: Model) -> Iterator[None]:
    """Put the model into eval mode, and back after the block."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
