"""PatchConvNet (thesis 5.2.3 and 5.3.4): four trainings, told apart by data and resolution."""

from vitrail.recipes.deit import SCHEDULE
from vitrail.settings.image_recipe import ImageEvaluationSettings
from vitrail.settings.images import AugmentationSettings, BlendSettings
from vitrail.settings.learning import OptimizerSettings, RegularisationSettings
from vitrail.settings.model import ModelSettings
from vitrail.settings.recipe import Recipe
from vitrail.settings.text import change
from vitrail.tasks.classify.settings import ClassifyRecipe, ObjectiveSettings

# Table 5.8; L60 and L120 are not in it and take the values of B60 and B120.
DROP_PATH = {
    "s20": 0.0,
    "s36": 0.05,
    "s60": 0.15,
    "s60_multi": 0.15,  # S60 with a token per class
    "s120": 0.2,
    "b36": 0.2,
    "b60": 0.3,
    "b120": 0.4,
    "l60": 0.3,
    "l120": 0.4,
}


def patchconvnet(size: str) -> Recipe:
    """PatchConvNet on ImageNet-1k.

    Command: vitrail train patchconvnet_s60 data=imagenet:ROOT out=runs/patchconvnet_s60
    Cost: not published.
    Published: {rows}.
    Ours: not run.
    """
    return ClassifyRecipe(
        name=f"patchconvnet_{size}",
        epochs=400.0,
        batch_size=2048,
        model=ModelSettings(name=f"patchconvnet_{size}"),
        # "The RandAugment variant" of ResNet-strikes-back, whose strength is 7/0.5 (table 6.1). No erasing.
        augmentation=AugmentationSettings(policy="rand", magnitude=7.0, magnitude_noise=0.5, repeats=3),
        # Images per GPU are not published: the default of the authors' code.
        blend=BlendSettings(mixup=0.8, cutmix=1.0, group_size=64),
        objective=ObjectiveSettings(smoothing=0.1),  # its strength is not printed: chapter 3's
        # No gradient clipping, no averaging of weights.
        optimizer=OptimizerSettings(name="lamb", lr=3e-3, weight_decay=0.01 if size.startswith("s") else 0.05),
        schedule=SCHEDULE,  # a half-cosine; the rest is chapter 3's
        regularisation=RegularisationSettings(drop_path=DROP_PATH[size]),
        evaluation=ImageEvaluationSettings(crop_ratio=1.0),
    )


def patchconvnet_384(size: str) -> Recipe:
    """PatchConvNet fine-tuned at 384 pixels, from a run on ImageNet-1k.

    Command: vitrail train patchconvnet_s60_384 data=imagenet:ROOT out=runs/patchconvnet_s60_384
        init=runs/patchconvnet_s60
    Cost: not published.
    Published: not in the thesis for ImageNet-1k alone; after ImageNet-21k see patchconvnet_s60_21k_to_1k_384.
    Ours: not run.
    """
    # 5.2.3 is silent about warmup: the 5 epochs that the authors' commands have in every training, be it short. Chapter
    # 3's lowest rate of the cosine is this highest one, so that the other half is constant.
    return change(
        patchconvnet(size),
        {
            "name": f"patchconvnet_{size}_384",
            "model.init": f"runs/patchconvnet_{size}",
            "image_size": 384,
            "epochs": 10.0,
            "batch_size": 1024,
            "augmentation.repeats": 1,
            "optimizer.lr": 1e-5,
            "optimizer.weight_decay": 0.01,
            "regularisation.drop_path": reduced_drop_path(size),
        },
    )


def patchconvnet_21k(size: str) -> Recipe:
    """PatchConvNet on ImageNet-21k, the first half of 21k-to-1k.

    Command: vitrail train patchconvnet_s60_21k data=imagenet21k:ROOT out=runs/patchconvnet_s60_21k
        The authors' val is not published: 1 % of each class is held out (data.val_share); data.val=none trains on all.
        Where more memory was at hand they took batch_size=4096 optimizer.lr=4e-3.
    Cost: not published.
    Published: only what it gives after fine-tuning, see patchconvnet_s60_21k_to_1k.
    Ours: not run.
    """
    return change(
        patchconvnet(size),
        {
            "name": f"patchconvnet_{size}_21k",
            "data.val_share": 0.01,
            "epochs": 90.0,
            "augmentation.repeats": 1,  # repeated augmentation on ImageNet-1k only
            "optimizer.weight_decay": 0.01,
        },
    )


def patchconvnet_21k_to_1k(size: str) -> Recipe:
    """PatchConvNet from ImageNet-21k to ImageNet-1k, at 224 pixels.

    Command: vitrail train patchconvnet_s60_21k_to_1k data=imagenet:ROOT out=runs/patchconvnet_s60_21k_to_1k
        init=runs/patchconvnet_s60_21k
    Cost: not published.
    Published: {rows}.
    Ours: not run.
    """
    return change(
        patchconvnet_21k(size),
        {
            "name": f"patchconvnet_{size}_21k_to_1k",
            "model.init": f"runs/patchconvnet_{size}_21k",
            "model.head_start": "random",
            "epochs": 100.0,
            "batch_size": 1024,
            "optimizer.lr": 5e-4,
            "regularisation.drop_path": reduced_drop_path(size),
        },
    )


def patchconvnet_21k_to_1k_384(size: str) -> Recipe:
    """PatchConvNet from ImageNet-21k to ImageNet-1k, at 384 pixels.

    Command: vitrail train patchconvnet_s60_21k_to_1k_384 data=imagenet:ROOT out=runs/patchconvnet_s60_21k_to_1k_384
        init=runs/patchconvnet_s60_21k
    Cost: not published.
    Published: {rows}.
    Ours: not run.
    """
    return change(patchconvnet_21k_to_1k(size), {"name": f"patchconvnet_{size}_21k_to_1k_384", "image_size": 384})


def patchconvnet_21k_chain(size: str, image_size: str) -> Recipe:
    """PatchConvNet from ImageNet-21k, fine-tuned at 384 pixels and then at another size.

    Command: vitrail train patchconvnet_s60_21k_to_1k_512 data=imagenet:ROOT out=runs/patchconvnet_s60_21k_to_1k_512
        init=runs/patchconvnet_s60_21k_to_1k_384
    Cost: not published.
    Published: {rows}.
    Ours: not run.
    """
    # The order is that of 5.3.2, which says "bigger" resolution of all sizes but 384, though 288 is smaller; each
    # fine-tuning is that of 5.2.3 for another resolution.
    return change(
        patchconvnet_384(size),
        {
            "name": f"patchconvnet_{size}_21k_to_1k_{image_size}",
            "model.init": f"runs/patchconvnet_{size}_21k_to_1k_384",
            "image_size": int(image_size),
        },
    )


def patchconvnet_per_class() -> Recipe:
    """PatchConvNet-S60 with an attention map for each class, from a run with one for all.

    Command: vitrail train patchconvnet_s60_per_class data=imagenet:ROOT out=runs/patchconvnet_s60_per_class
        init=runs/patchconvnet_s60
    Cost: not published.
    Published: {rows}. From scratch: patchconvnet_s60_multi.
    Ours: not run.
    """
    # "In a fine-tuning stage with a lower learning rate and smaller batch size" (5.2.1), which is all that is printed:
    # those of the fine-tuning that has classifiers to learn too (5.2.3).
    return change(
        patchconvnet("s60"),
        {
            "name": "patchconvnet_s60_per_class",
            "model.init": "runs/patchconvnet_s60",
            "model.settings": {"per_class_tokens": True},
            "epochs": 100.0,
            "batch_size": 1024,
            "optimizer.lr": 5e-4,
        },
    )


def reduced_drop_path(size: str) -> float:
    """Fine-tuning at higher resolution and from ImageNet-21k reduces stochastic depth by 0.1 (5.3.4)."""
    return round(max(0.0, DROP_PATH[size] - 0.1), 2)
