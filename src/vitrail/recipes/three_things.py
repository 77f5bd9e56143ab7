"""Three things everyone should know about vision transformers: its two baselines (section 2.2, tables 1 and 2), and
fine-tuning of a part of the weights (section 4, table 5)."""

from itertools import takewhile

from vitrail.recipes.deit import FINE_TUNING
from vitrail.recipes.resnet import a2
from vitrail.settings.recipe import Recipe
from vitrail.settings.text import change

# Section 2.2, by width: learning rate and stochastic depth.
LR = {"ti": 4e-3, "s": 4e-3, "b": 3e-3, "l": 3e-3}
DROP_PATH = {"ti": 0.0, "s": 0.05, "b": 0.1, "l": 0.4}
# LayerScale: not printed in the paper. The same accuracies are in thesis table 6.4, in a chapter that uses 1e-4.
SCALE = 1e-4


def three_things_300(model: str) -> Recipe:
    """ViT on ImageNet-1k with A2 made fit for transformers, without LayerScale.

    Command: vitrail train three_things_300_s12 data=imagenet:ROOT out=runs/three_things_300_s12
    Cost: not published.
    Published: {rows}.
    Ours: not run.
    """
    width = "".join(takewhile(str.isalpha, model))
    return change(
        a2(),
        {
            "name": f"three_things_300_{model}",
            "blend.group_size": 64,  # images per GPU are not published: the default of the authors' code
            "model.name": f"vit_{model}",
            "optimizer.lr": LR[width],
            "regularisation.drop_path": DROP_PATH[width],
        },
    )


def three_things_300_scaled(model: str) -> Recipe:
    """ViT on ImageNet-1k for 300 epochs, with LayerScale.

    Command: vitrail train three_things_300_scaled_b36 data=imagenet:ROOT out=runs/three_things_300_scaled_b36
    Cost: not published.
    Published: {rows}.
    Ours: not run.
    """
    return change(
        three_things_300(model), {"name": f"three_things_300_scaled_{model}", "model.settings": {"layer_scale": SCALE}}
    )


def three_things_400_plain(model: str) -> Recipe:
    """ViT on ImageNet-1k for 400 epochs, without LayerScale.

    Command: vitrail train three_things_400_plain_b36 data=imagenet:ROOT out=runs/three_things_400_plain_b36
    Cost: not published.
    Published: {rows}.
    Ours: not run.
    """
    return change(three_things_300(model), {"name": f"three_things_400_plain_{model}", "epochs": 400.0})


def three_things_400(model: str) -> Recipe:
    """ViT on ImageNet-1k as before, but for 400 epochs and with LayerScale.

    Command: vitrail train three_things_400_s12 data=imagenet:ROOT out=runs/three_things_400_s12
    Cost: not published.
    Published: {rows}.
    Ours: not run.
    """
    return change(
        three_things_300(model),
        {
            "name": f"three_things_400_{model}",
            "epochs": 400.0,
            "model.settings": {"layer_scale": SCALE},
        },
    )


def three_things_384(model: str, part: str) -> Recipe:
    """ViT fine-tuned at 384 pixels: all of it, its attention or its feed-forward networks.

    Command: vitrail train three_things_384_s12_attention data=imagenet:ROOT out=runs/s12_attention
        init=runs/three_things_400_s12
    Cost: not published; with attention alone 10 % less time and memory than with all (section 4).
    Published: {rows}. With optimizer.name=sgd, at a rate that is not printed, all, attention, ffn:
        S12 {vit_s12: ImageNet-1k, 400 epochs, fine-tuned at 384 (all, SGD)},
        {vit_s12: ImageNet-1k, 400 epochs, fine-tuned at 384 (attention, SGD)},
        {vit_s12: ImageNet-1k, 400 epochs, fine-tuned at 384 (ffn, SGD)};
        B12 {vit_b12: ImageNet-1k, 400 epochs, fine-tuned at 384 (all, SGD)},
        {vit_b12: ImageNet-1k, 400 epochs, fine-tuned at 384 (attention, SGD)},
        {vit_b12: ImageNet-1k, 400 epochs, fine-tuned at 384 (ffn, SGD)};
        L24 {vit_l24: ImageNet-1k, 400 epochs, fine-tuned at 384 (all, SGD)},
        {vit_l24: ImageNet-1k, 400 epochs, fine-tuned at 384 (attention, SGD)},
        {vit_l24: ImageNet-1k, 400 epochs, fine-tuned at 384 (ffn, SGD)}.
    Ours: not run.
    """
    # The paper prints no settings of its fine-tuning: these are those of DeiT, where augmentation and regularisation
    # stay as in training (3.4.5). Clipping came with LAMB (6.2.1) and goes with it.
    changes = {**FINE_TUNING, "optimizer.name": "adamw", "optimizer.clip": None, "evaluation.image_size": None}
    names = {
        "name": f"three_things_384_{model}" + ("" if part == "all" else f"_{part}"),
        "model.init": f"runs/three_things_400_{model}",
        "model.train_only": part,
    }
    return change(three_things_400(model), {**changes, **names})
