"""ResMLP (thesis 4.3.1): DeiT's training with LAMB."""

from vitrail.recipes.deit import TEACHER, deit
from vitrail.settings.learning import OptimizerSettings
from vitrail.settings.recipe import Recipe
from vitrail.settings.text import change

# By depth. LayerScale as in CaiT (3.5.1). Stochastic depth: the thesis only says "as in chapter 3"; the authors name
# 0.05 for 12 layers and 0.1 for 24, a function of depth as in CaiT (answers to issues 106 and 117 of their repository):
# that of CaiT-S36 for 36.
LAYER_SCALE = {"12": 0.1, "24": 1e-5, "36": 1e-6}
DROP_PATH = {"12": 0.05, "24": 0.1, "36": 0.2}


# Rows of table 4.3: what is changed, and what models/figures calls it.
VARIANTS: dict[str, tuple[dict[str, str], str]] = {
    "layer_norm": ({"norm": "layer"}, "LayerNorm instead of Aff"),
    "class_mlp": ({"pool": "class_mlp"}, "class-MLP instead of average pooling"),
    "none": ({"communication": "none"}, "no communication between patches"),
    "mlp": ({"communication": "mlp"}, "MLP across patches"),
    "conv": ({"communication": "conv"}, "3x3 convolution across patches"),
    "depthwise": ({"communication": "depthwise"}, "3x3 depth-wise convolution across patches"),
    "separable": ({"communication": "separable"}, "3x3 depth-separable convolution across patches"),
}


def resmlp(model: str) -> Recipe:
    """ResMLP on ImageNet-1k.

    Command: vitrail train resmlp_s24 data=imagenet:ROOT out=runs/resmlp_s24
    Cost: two days on 8 V100 for most of the models (thesis 4.3.1).
    Published: {rows}.
    Ours: not run.
    """
    depth = model.partition("_")[0][1:]
    return change(
        deit("small"),
        {
            "name": f"resmlp_{model}",
            "epochs": 400.0,  # table 4.3
            "batch_size": 2048,  # not in the thesis; named by the authors (issue 106)
            "blend.group_size": 256,  # 8 GPUs (4.3.1)
            "model.name": f"resmlp_{model}",
            "model.settings": {"layer_scale": LAYER_SCALE[depth], "drop_path_schedule": "uniform"},
            # LAMB clips by default in the implementation that was used (6.2.1).
            "optimizer": OptimizerSettings(name="lamb", lr=5e-3, weight_decay=0.2, clip=1.0).model_dump(),
            "regularisation.drop_path": DROP_PATH[depth],
            "evaluation.crop_ratio": 0.9,  # the authors' page of ResMLP: needed to reproduce the paper's results
            "run.precision": "fp32",  # the authors trained without half precision (issue 106)
        },
    )


def resmlp_distilled(model: str) -> Recipe:
    """ResMLP taught by a RegNetY-16GF, whose answer is learnt beside the label by the same head.

    Command: vitrail train resmlp_s24_distilled data=imagenet:ROOT out=runs/resmlp_s24_distilled
    Cost: two days on 8 V100 for most of the models (thesis 4.3.1).
    Published: {rows}. teacher.kind=token learns the teacher's answer by a head of its own.
    Ours: not run.
    """
    changes = {"name": f"resmlp_{model}_distilled", **TEACHER, "teacher.kind": "hard"}
    return change(resmlp(model), changes)


def resmlp_variant(variant: str) -> Recipe:
    """ResMLP-S12 with one part changed, the ablations of thesis table 4.3.

    Command: vitrail train resmlp_s12_class_mlp data=imagenet:ROOT out=runs/resmlp_s12_class_mlp
    Cost: two days on 8 V100 for most of the models (thesis 4.3.1).
    Published: {rows}.
    Ours: not run.
    """
    before = resmlp("s12")
    settings = {**before.model.settings, **VARIANTS[variant][0]}
    return change(before, {"name": f"resmlp_s12_{variant}", "model.settings": settings})


def resmlp_21k() -> Recipe:
    """ResMLP-B24 with patches of 8 pixels on ImageNet-21k, 60 epochs.

    Command: vitrail train resmlp_b24_p8_21k data=imagenet21k:ROOT out=runs/resmlp_b24_p8_21k
        The authors' val is not published: 1 % of each class is held out (data.val_share); data.val=none trains on all.
    Cost: not published.
    Published: only what it gives after fine-tuning, see resmlp_b24_p8_21k_to_1k.
    Ours: not run.
    """
    # Known: 60 epochs (table 4.3). Without repeated augmentation, as chapters 5 and 6 train on ImageNet-21k.
    return change(
        resmlp("b24_p8"),
        {"name": "resmlp_b24_p8_21k", "epochs": 60.0, "augmentation.repeats": 1, "data.val_share": 0.01},
    )


def resmlp_21k_to_1k() -> Recipe:
    """ResMLP-B24 with patches of 8 pixels from ImageNet-21k to ImageNet-1k.

    Command: vitrail train resmlp_b24_p8_21k_to_1k data=imagenet:ROOT out=runs/resmlp_b24_p8_21k_to_1k
        init=runs/resmlp_b24_p8_21k
    Cost: not published.
    Published: {rows}.
    Ours: not run.
    """
    # Nothing is printed about this fine-tuning: length, batch and rate are those of the next chapter (5.2.3).
    return change(
        resmlp_21k(),
        {
            "name": "resmlp_b24_p8_21k_to_1k",
            "model.init": "runs/resmlp_b24_p8_21k",
            "model.head_start": "random",
            "epochs": 100.0,
            "batch_size": 1024,
            "optimizer.lr": 5e-4,
        },
    )
