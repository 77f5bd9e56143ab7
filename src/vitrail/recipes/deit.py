"""DeiT: data-efficient training of vision transformers (thesis 3.4.5, table 3.9), its teachers and its depth."""

from typing import Any

from vitrail.settings.image_recipe import ImageEvaluationSettings
from vitrail.settings.images import AugmentationSettings, BlendSettings
from vitrail.settings.learning import OptimizerSettings, RegularisationSettings, ScheduleSettings
from vitrail.settings.model import ModelSettings
from vitrail.settings.recipe import Recipe
from vitrail.settings.text import change
from vitrail.tasks.classify.settings import ClassifyRecipe, ObjectiveSettings

# Colour jitter: none, table 6.1.
AUGMENTATION = AugmentationSettings(policy="rand", magnitude=9.0, magnitude_noise=0.5, erasing=0.25, repeats=3)
BLEND = BlendSettings(mixup=0.8, cutmix=1.0)
# Images per GPU, on which the authors' code draws mixing once: 4 GPUs for the small models, 2 machines of 8 for the
# base (3.4.5, and the authors' commands).
GROUPS = {"tiny": 256, "small": 256, "base": 64}
# The paper is silent about where warmup begins and the cosine ends: the authors' code says 1e-6 and 1e-5.
SCHEDULE = ScheduleSettings(kind="cosine", warmup_epochs=5.0, warmup_lr=1e-6, min_lr=1e-5)
# Fine-tuning at 384. The thesis cites Fix-EfficientNet's schedule; the values are those of the authors' published
# command, whose lowest rate is its highest. Augmentation and regularisation stay those of training (3.4.5).
FINE_TUNING = {
    "image_size": 384,
    "epochs": 30.0,
    "batch_size": 512,
    "blend.group_size": 32,
    "optimizer.lr": 5e-6,
    "optimizer.reference_batch": 512,
    "optimizer.weight_decay": 1e-8,
    "schedule.kind": "constant",
    "schedule.min_lr": 0.0,
}
# The RegNetY-16GF that DeiT's authors trained (82.9 %); the hard label and a token of its own (3.3, 3.4.2). Without
# its tag timm takes the newest weights of that name, which were trained on more data.
TEACHER = {"teacher.model": "timm/regnety_160.deit_in1k", "teacher.kind": "token"}


# DeiT-S of other depths (3.5.2, 3.5.3): the catalogue's name, what makes it a DeiT, LayerScale's first value (3.5.1).
DEPTHS: dict[str, tuple[str, dict[str, Any], float]] = {
    "12": ("deit_small", {}, 0.1),
    "18": ("deit_small", {"depth": 18}, 0.1),
    "24": ("vit_s24", {"class_position": True}, 1e-5),
    "36": ("vit_s36", {"class_position": True}, 1e-6),
}


def deit(size: str) -> Recipe:
    """DeiT-Ti, DeiT-S and DeiT-B on ImageNet-1k, without distillation.

    Command: vitrail train deit_small data=imagenet:ROOT out=runs/deit_small
    Cost: base 53 hours on 8 GPUs, 37 on 16; tiny and small under 3 days on 4 GPUs (thesis 3.4.5).
    Published: {rows}. DeiT-B on CIFAR-10 alone, with data=cifar10:ROOT epochs=7200,
        {deit_base: trained on cifar10 alone} (3.4.4); table 3.8 changes one setting at a time (docs/catalogue.md).
    Ours: not run.
    """
    return ClassifyRecipe(
        name=f"deit_{size}",
        epochs=300.0,
        batch_size=1024,
        # Stochastic depth grows linearly with depth in DeiT; from CaiT on it is the same in all layers (3.5.2).
        model=ModelSettings(name=f"deit_{size}", settings={"drop_path_schedule": "linear"}),
        augmentation=AUGMENTATION,
        blend=BLEND.model_copy(update={"group_size": GROUPS[size]}),
        objective=ObjectiveSettings(smoothing=0.1),
        optimizer=OptimizerSettings(lr=5e-4, reference_batch=512, weight_decay=0.05),
        schedule=SCHEDULE,
        regularisation=RegularisationSettings(drop_path=0.1),
        evaluation=ImageEvaluationSettings(crop_ratio=0.875),
    )


def deit_base_384() -> Recipe:
    """DeiT-B fine-tuned at 384 pixels, from a run of deit_base.

    Command: vitrail train deit_base_384 data=imagenet:ROOT out=runs/deit_base_384 init=runs/deit_base
    Cost: 20 hours on 8 GPUs, for 25 epochs (thesis 3.4.5).
    Published: {rows}; {deit_base: ImageNet-1k, 300 epochs, fine-tuned at 160} with image_size=160 and
        {deit_base: ImageNet-1k, 300 epochs, fine-tuned at 320} with 320 (thesis table 3.10).
    Ours: not run.
    """
    return change(deit("base"), {"name": "deit_base_384", "model.init": "runs/deit_base", **FINE_TUNING})


def deit_distilled(size: str, epochs: str = "300") -> Recipe:
    """DeiT with a distillation token, taught by a RegNetY-16GF.

    Command: vitrail train deit_small_distilled data=imagenet:ROOT out=runs/deit_small_distilled
    Cost: not published.
    Published: {rows}.
        With teacher.kind=hard and one head {deit_tiny: hard distillation, no token},
        {deit_small: hard distillation, no token} and {deit_base: hard distillation, no token}; with teacher.kind=soft
        {deit_tiny: soft distillation, no token}, {deit_small: soft distillation, no token} and
        {deit_base: soft distillation, no token} (thesis table 3.3). DeiT-B taught by DeiT-B
        {deit_base_distilled: taught by DeiT-B}, by RegNetY-4GF {deit_base_distilled: taught by RegNetY-4GF}, -8GF
        {deit_base_distilled: taught by RegNetY-8GF}, -12GF {deit_base_distilled: taught by RegNetY-12GF}
        (table 3.2).
    Ours: not run.
    """
    name = f"deit_{size}_distilled" + ("" if epochs == "300" else f"_{epochs}")
    changes = {"name": name, "epochs": float(epochs), **TEACHER}
    return change(deit(size), {**changes, "model.name": f"deit_{size}_distilled"})


def deit_base_distilled_384(epochs: str = "300") -> Recipe:
    """DeiT-B with a distillation token fine-tuned at 384 pixels, taught at 384 pixels too.

    Command: vitrail train deit_base_distilled_384 data=imagenet:ROOT out=runs/deit_base_distilled_384
        init=runs/deit_base_distilled
    Cost: not published.
    Published: {rows}. The authors' teacher was itself fine-tuned at 384 (3.3), which is not public: this one
        sees 384 pixels with the weights of 224.
    Ours: not run.
    """
    before = deit_distilled("base", epochs)
    changes = {"name": f"{before.name}_384", "model.init": f"runs/{before.name}", "teacher.image_size": 384}
    return change(before, {**changes, **FINE_TUNING})


def deit_regnet(size: str) -> Recipe:
    """RegNetY with DeiT's training: the teachers of DeiT.

    Command: vitrail train deit_regnety_160 data=imagenet:ROOT out=runs/deit_regnety_160
    Cost: RegNetY-16GF 20 % more than DeiT-B (thesis 3.4.5).
    Published: {rows}.
    Ours: not run.
    """
    # "Optimized with a similar optimization procedure as ours" (table 3.5); what is not the same is not printed.
    model = ModelSettings(name=f"timm/regnety_{size}")
    return deit("base").model_copy(update={"name": f"deit_regnety_{size}", "model": model})


def deit_layer_scale(depth: str) -> Recipe:
    """DeiT-S of 12 to 36 blocks with LayerScale, 300 epochs.

    Command: vitrail train deit_s24_layer_scale data=imagenet:ROOT out=runs/deit_s24_layer_scale
    Cost: not published.
    Published: {rows}.
    Ours: not run.
    """
    name, settings, layer_scale = DEPTHS[depth]
    return change(
        deit("small"),
        {
            "name": f"deit_s{depth}_layer_scale",
            "model.name": name,
            "model.settings": {**settings, "layer_scale": layer_scale, "drop_path_schedule": "uniform"},
            # 3.5.2: the formula for models derived from DeiT-S, read as max(0.1 * (depth / 12 - 1), 0).
            "regularisation.drop_path": round(max(0.1 * (int(depth) / 12 - 1), 0.0), 2),
        },
    )


def deit_layer_scale_fixed(depth: str) -> Recipe:
    """DeiT-S trained anew with the LayerScale weights of a training before, kept fixed.

    Command: vitrail train deit_s24_layer_scale_fixed data=imagenet:ROOT out=runs/deit_s24_layer_scale_fixed
        model.layer_scale_of=runs/deit_s24_layer_scale
    Cost: not published.
    Published: {rows}.
    Ours: not run.
    """
    before = deit_layer_scale(depth)
    return change(before, {"name": f"{before.name}_fixed", "model.layer_scale_of": f"runs/{before.name}"})
