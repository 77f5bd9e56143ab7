"""ResMLP (thesis 4.3.1): DeiT's training with LAMB."""

from vitrail.recipes.deit import TEACHER, deit
from vitrail.settings.learning import OptimizerSettings
from vitrail.settings.recipe import Recipe
from vitrail.settings.text import change

# By depth. LayerScale as in CaiT (3.5.1). Stochastic depth: the thesis only says "as in chapter 3"; the authors name
# 0.05 for 12 layers and "as a function of depth, as in CaiT": those of CaiT-S24 and CaiT-S36 for the others.
LAYER_SCALE = {"12": 0.1, "24": 1e-5, "36": 1e-6}
DROP_PATH = {"12": 0.05, "24": 0.1, "36": 0.2}


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
            "batch_size": 2048,  # not in the thesis; named by the authors
            "blend.group_size": 256,  # 8 GPUs (4.3.1)
            "model.name": f"resmlp_{model}",
            "model.settings": {"layer_scale": LAYER_SCALE[depth], "drop_path_schedule": "uniform"},
            # LAMB clips by default in the implementation that was used (6.2.1).
            "optimizer": OptimizerSettings(name="lamb", lr=5e-3, weight_decay=0.2, clip=1.0).model_dump(),
            "regularisation.drop_path": DROP_PATH[depth],
            "run.precision": "fp32",  # the authors trained without half precision
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
