"""Three things everyone should know about vision transformers: its two baselines (section 2.2, tables 1 and 2), and
fine-tuning of a part of the weights (section 4, table 5)."""

from vitrail.recipes.deit import FINE_TUNING
from vitrail.recipes.resnet import a2
from vitrail.settings.recipe import Recipe
from vitrail.settings.text import change

# Section 2.2, by width: learning rate and stochastic depth.
LR = {"ti": 4e-3, "s": 4e-3, "b": 3e-3, "l": 3e-3}
DROP_PATH = {"ti": 0.0, "s": 0.05, "b": 0.1, "l": 0.4}


def three_things_300(model: str) -> Recipe:
    """ViT on ImageNet-1k with A2 made fit for transformers, without LayerScale.

    Command: vitrail train three_things_300_s12 data=imagenet:ROOT out=runs/three_things_300_s12
    Cost: not published.
    Published: Ti12 72.7, S12 79.7, B12 82.2, L24 83.0 (table 1); B36 82.9, B18x2 83.3 % top-1 (table 2).
    Ours: not run.
    """
    width = model.rstrip("x0123456789")
    return change(
        a2(),
        {
            "name": f"three_things_300_{model}",
            "model.name": f"vit_{model}",
            "optimizer.lr": LR[width],
            "regularisation.drop_path": DROP_PATH[width],
        },
    )


def three_things_400(model: str) -> Recipe:
    """ViT on ImageNet-1k as before, but for 400 epochs and with LayerScale.

    Command: vitrail train three_things_400_s12 data=imagenet:ROOT out=runs/three_things_400_s12
    Cost: not published.
    Published: Ti12 73.5, S12 80.7, B12 82.7, L24 84.0 (table 1); B36 84.1, B18x2 84.1 % top-1 (table 2).
    Ours: not run.
    """
    return change(
        three_things_300(model),
        {
            "name": f"three_things_400_{model}",
            "epochs": 400.0,
            # Not printed in the paper. The same accuracies are in thesis table 6.4, in a chapter that uses 1e-4.
            "model.settings": {"layer_scale": 1e-4},
        },
    )


def three_things_384(model: str, part: str) -> Recipe:
    """ViT fine-tuned at 384 pixels: all of it, its attention or its feed-forward networks.

    Command: vitrail train three_things_384_s12_attention data=imagenet:ROOT out=runs/s12_attention
        init=runs/three_things_400_s12
    Cost: not published; with attention alone 10 % less time and memory than with all (section 4).
    Published: all, attention, ffn: S12 82.7, 82.5, 82.2; B12 84.3, 84.3, 84.1; L24 85.5, 85.5, 85.2 % top-1 with AdamW
        (table 5); with optimizer.name=sgd S12 82.6, 82.3, 82.0; B12 84.3, 84.2, 84.0; L24 85.4, 85.3, 85.1.
    Ours: not run.
    """
    # The paper prints no settings of its fine-tuning: these are those of DeiT's authors.
    changes = {**FINE_TUNING, "optimizer.name": "adamw", "optimizer.eps": None, "optimizer.betas": None}
    names = {
        "name": f"three_things_384_{model}" + ("" if part == "all" else f"_{part}"),
        "model.init": f"runs/three_things_400_{model}",
        "model.train_only": part,
    }
    return change(three_things_400(model), {**changes, **names})
