"""What is published for the recipes, taken from `models/figures`: no figure is written down here.

A docstring of a recipe may say `{rows}` for the figures of all rows of its function, and `{MODEL: WHAT}` for any other
published figure.
"""

import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from functools import cache
from itertools import groupby

from vitrail.models.figures import Published, find_figure
from vitrail.recipes import (
    beit,
    cait,
    deit,
    deit3,
    dino,
    mask_rcnn,
    patchconvnet,
    resmlp,
    resnet,
    three_things,
    transfer,
    translation,
    upernet,
)
from vitrail.settings.image_recipe import ImageRecipe
from vitrail.settings.recipe import Recipe
from vitrail.settings.text import stage_of

Function = Callable[..., Recipe]
_FROM_21K = ("ImageNet-21k, 240 epochs -> 1k", "ImageNet-21k -> 1k")
_DEIT = "ImageNet-1k, 300 epochs, DeiT recipe"
_ON_21K = "on the validation split of ImageNet-21k"
_WIDTH = 116
# Function -> its training as `models/figures` names it, with the function's arguments in braces; several: the first
# that is published. A function that is not here has no published figure of its rows.
TRAININGS: Mapping[Function, tuple[str, ...]] = {
    deit.deit: ("ImageNet-1k, 300 epochs",),
    deit.deit_base_384: ("ImageNet-1k, 300 epochs, fine-tuned at 384",),
    deit.deit_distilled: ("ImageNet-1k, {epochs} epochs, distilled",),
    deit.deit_base_distilled_384: ("ImageNet-1k, {epochs} epochs, distilled, fine-tuned at 384",),
    deit.deit_regnet: (_DEIT,),
    deit.deit_layer_scale: (
        "depth {depth}, LayerScale 0.1",
        "LayerScale 0.1",
        f"{_DEIT}, LayerScale 1e-5",
        f"{_DEIT}, LayerScale 1e-6",
    ),
    deit.deit_layer_scale_fixed: (
        "depth {depth}, LayerScale frozen at trained values",
        "LayerScale frozen at trained values",
    ),
    cait.cait: ("ImageNet-1k, 400 epochs",),
    cait.cait_384: ("ImageNet-1k, 400 epochs, fine-tuned at 384",),
    cait.cait_distilled: ("ImageNet-1k, 400 epochs, distilled",),
    cait.cait_distilled_fine_tuned: ("ImageNet-1k, 400 epochs, distilled, fine-tuned at {image_size}",),
    resmlp.resmlp: ("ImageNet-1k, 400 epochs",),
    resmlp.resmlp_distilled: ("ImageNet-1k, distilled",),
    resmlp.resmlp_variant: ("{variant}",),
    resmlp.resmlp_21k_to_1k: ("ImageNet-21k, 60 epochs -> 1k",),
    dino.dino_resmlp: ("DINO, nearest neighbours",),
    dino.dino_deit_small: ("DINO, nearest neighbours",),
    dino.dino_resmlp_labels: ("ImageNet-1k, DINO, then labels",),
    patchconvnet.patchconvnet: ("ImageNet-1k, 400 epochs",),
    patchconvnet.patchconvnet_21k_to_1k: ("ImageNet-21k -> 1k",),
    patchconvnet.patchconvnet_21k_to_1k_384: ("ImageNet-21k -> 1k",),
    patchconvnet.patchconvnet_21k_chain: ("ImageNet-21k -> 1k",),
    patchconvnet.patchconvnet_per_class: ("one class token per class, fine-tuned",),
    mask_rcnn.mask_rcnn: ("Mask R-CNN on COCO, box AP",),
    upernet.upernet_deit3: ("UperNet on ADE20k, single scale",),
    upernet.upernet_deit3_21k: (
        "UperNet on ADE20k from ImageNet-21k at {image_size}, single scale",
        "UperNet on ADE20k from ImageNet-21k, single scale",
    ),
    upernet.upernet_patchconvnet: ("UperNet on ADE20k, single scale",),
    upernet.upernet_patchconvnet_21k: ("UperNet on ADE20k from ImageNet-21k, single scale",),
    upernet.upernet_224: ("UperNet on ADE20k, crops of 224",),
    resnet.a1: ("ImageNet-1k, A1",),
    resnet.a2: ("ImageNet-1k, A2",),
    resnet.a3: ("ImageNet-1k, A3",),
    resnet.t2: ("T2 recipe, tuned for DeiT-S",),
    resnet.resnet_old: ("ImageNet-1k, SGD, 90 epochs",),
    resnet.resnet_strong: ("ImageNet-1k, SGD, 600 epochs",),
    resnet.resmlp_s12_old: ("old-fashioned training (SGD, 90 epochs)",),
    three_things.three_things_300: ("ImageNet-1k, 300 epochs",),
    three_things.three_things_300_scaled: ("ImageNet-1k, 300 epochs, LayerScale",),
    three_things.three_things_400_plain: ("ImageNet-1k, 400 epochs",),
    three_things.three_things_400: ("ImageNet-1k, 400 epochs, LayerScale",),
    three_things.three_things_384: ("ImageNet-1k, 400 epochs, fine-tuned at 384 ({part}, AdamW)",),
    beit.beit_fine_tuned: ("ImageNet-1k, BeiT 300 epochs, fine-tuned 100 epochs",),
    deit3.deit3_400: ("ImageNet-1k, 400 epochs",),
    deit3.deit3_800: ("ImageNet-1k, 800 epochs",),
    deit3.deit3_other: ("ImageNet-1k, {epochs} epochs",),
    deit3.deit3_low: ("ImageNet-1k, {epochs} epochs at {image_size}, fine-tuned at 224",),
    deit3.deit3_billion: ("ImageNet-1k, 400 epochs at 126, fine-tuned at 224",),
    deit3.deit3_384: ("ImageNet-1k, fine-tuned at 384",),
    deit3.deit3_21k_90: (f"90 epochs, {_ON_21K}",),
    deit3.deit3_21k_240: (f"240 epochs, {_ON_21K}",),
    deit3.deit3_21k_to_1k: _FROM_21K,
    deit3.deit3_21k_to_1k_384: _FROM_21K,
    deit3.deit3_21k_pipeline: _FROM_21K,
    deit3.cait_b12: ("ImageNet-1k, 400 epochs, DeiT III recipe",),
    transfer.transfer: ("fine-tuned on {data}",),
    transfer.transfer_grafit_384: ("Grafit, fine-tuned on {data}",),
}
# Function of a recipe without images -> the row of `models/figures`, and what of it.
TEXT_FIGURES: Mapping[Function, tuple[str, str]] = {
    translation.resmlp_wmt14: ("seq2seq_resmlp_{depth}", "WMT14 en-{target}"),
    translation.transformer_wmt14: ("seq2seq_transformer", "WMT14 en-{target}"),
}
# Rows that an argument of a function stands for.
ROWS = {name: row for name, (_, row) in resmlp.VARIANTS.items()}


@cache
def figure_of(function: Function, arguments: tuple[str, ...]) -> Published | None:
    """What is published for a row of the table, on the data and at the size that the recipe ends with."""
    given = inspect.signature(function).bind(*arguments)
    given.apply_defaults()
    if function in TEXT_FIGURES:
        row, what = (text.format(**given.arguments) for text in TEXT_FIGURES[function])
        return find_figure(row, what)
    recipe = function(*arguments)
    last = stage_of(recipe, recipe.num_stages - 1)
    if not isinstance(last, ImageRecipe):
        return None
    side = last.evaluation.image_size or last.image_size
    size = side if isinstance(side, int) else None
    for training in TRAININGS.get(function, ()):
        what = training.format(**given.arguments)
        found = find_figure(last.model.name, ROWS.get(what, what), image_size=size)
        if found is not None:
            return found
    return None


def fill_in(text: str, rows: Mapping[str, Published | None]) -> str:
    """A docstring with its figures in place of what stands for them."""

    def replace(match: re.Match[str]) -> str:
        if match[1] == "rows":
            return _list(rows)
        model, _, what = match[1].partition(": ")
        found = find_figure(model, what)
        assert found is not None, f"models/figures has nothing of {match[1]}"
        return found.digits

    paragraphs = re.split(r"\n(?! )", text)  # a line and those below it that are indented
    return "\n".join(
        _wrap(re.sub(r"\{([^}]+)\}", replace, re.sub(r"\s*\n\s+", " ", paragraph))) if "{" in paragraph else paragraph
        for paragraph in paragraphs
    )


def _list(rows: Mapping[str, Published | None]) -> str:
    known = {name: figure for name, figure in rows.items() if figure is not None}
    if len(rows) == 1:
        return "; ".join(f"{figure.digits} {figure.unit} ({figure.source})" for figure in known.values())
    parts = []
    for (unit, source), group in groupby(known.items(), key=lambda item: (item[1].unit, item[1].source)):
        values = ", ".join(f"{name} {figure.digits}" for name, figure in group)
        parts.append(f"{values} {unit} ({source})")
    if missing := [name for name in rows if name not in known]:
        parts.append(f"none for {', '.join(missing)}")
    return "; ".join(parts)


def _wrap(paragraph: str) -> str:
    return textwrap.fill(
        paragraph, width=_WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )
