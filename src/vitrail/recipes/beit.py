"""BeiT's pre-training behind the stems of Three things (section 5, table 7), its tokenizer, and masks for a laptop."""

from typing import Any

from vitrail.settings.image_recipe import ImageEvaluationSettings
from vitrail.settings.images import AugmentationSettings, BlendSettings
from vitrail.settings.learning import OptimizerSettings, RegularisationSettings, ScheduleSettings
from vitrail.settings.model import ModelSettings
from vitrail.settings.recipe import Recipe
from vitrail.tasks.classify.settings import ClassifyRecipe, ObjectiveSettings
from vitrail.tasks.masked.settings import MaskedRecipe, MaskedSettings
from vitrail.tasks.tokenizer.settings import TokenizerRecipe

# BeiT's: LayerScale of its base model, and the average of the patches in the place of a class token.
_MODEL: dict[str, Any] = {"layer_scale": 0.1, "pool": "average"}
# Narrow and shallow, with initial weights of 1 / sqrt(inputs), so that it learns from few images.
_SMALL_VIT: dict[str, Any] = {
    **_MODEL,
    "dim": 192,
    "depth": 6,
    "num_heads": 3,
    "patch_size": 8,
    "init_std": None,
}


def tokenizer() -> Recipe:
    """A small discrete VAE of 8,192 codes, one for each 8x8 patch at 112 pixels: tokens for BeiT.

    Command: vitrail train tokenizer data=imagenet:ROOT out=runs/tokenizer
    Cost: not published.
    Published: nothing, it is ours; Three things trains DALL-E's tokenizer on ImageNet-1k (section 5).
    Ours: not run on ImageNet.
    """
    return TokenizerRecipe(
        name="tokenizer",
        image_size=112,
        epochs=20.0,
        batch_size=256,
        optimizer=OptimizerSettings(lr=1e-3, weight_decay=0.0, betas=(0.9, 0.99), clip=1.0),
        schedule=ScheduleSettings(warmup_epochs=0.5, min_lr=1e-5),
        evaluation=ImageEvaluationSettings(every=1.0),
    )


def beit(model: str) -> Recipe:
    """ViT-B12 behind a stem of table 7, pre-trained on masked images of ImageNet-1k, no labels.

    Command: vitrail pretrain beit_vit_b12 data=imagenet:ROOT out=runs/beit_vit_b12
    Cost: not published.
    Published: nothing of the pre-training alone; fine-tuned it is beit_vit_b12_1k and its kin.
    Ours: not run.
    """
    return MaskedRecipe(
        name=f"beit_{model}",
        epochs=300.0,
        batch_size=2048,
        model=ModelSettings(name=model, settings=_MODEL),
        masked=MaskedSettings(tokenizer="runs/tokenizer"),
        augmentation=AugmentationSettings(colour_jitter=0.4),
        optimizer=OptimizerSettings(lr=1.5e-3, reference_batch=2048, weight_decay=0.05, betas=(0.9, 0.98), clip=3.0),
        schedule=ScheduleSettings(warmup_epochs=10.0, min_lr=1e-5),
        regularisation=RegularisationSettings(drop_path=0.1),
    )


def beit_fine_tuned(model: str) -> Recipe:
    """ViT-B12 behind a stem of table 7, fine-tuned on ImageNet-1k after BeiT.

    Command: vitrail train beit_vit_b12_1k data=imagenet:ROOT out=runs/beit_vit_b12_1k init=runs/beit_vit_b12
    Cost: not published.
    Published: {rows}.
    Ours: not run.
    """
    return ClassifyRecipe(
        name=f"beit_{model}_1k",
        epochs=100.0,
        batch_size=1024,
        model=ModelSettings(name=model, settings=_MODEL, init=f"runs/beit_{model}", head_start="random"),
        augmentation=AugmentationSettings(policy="rand", magnitude=9.0, magnitude_noise=0.5, erasing=0.25),
        blend=BlendSettings(mixup=0.8, cutmix=1.0),
        objective=ObjectiveSettings(smoothing=0.1),
        optimizer=OptimizerSettings(lr=4e-3, reference_batch=1024, weight_decay=0.05, layer_decay=0.65),
        schedule=ScheduleSettings(warmup_epochs=20.0, min_lr=1e-6),
        regularisation=RegularisationSettings(drop_path=0.1),
    )


def masked_small() -> Recipe:
    """A small ViT pre-trained on a few thousand photographs at 96 pixels without labels, by MAE.

    Command: vitrail pretrain masked_small data=FOLDER out=runs/masked_small
    Cost: `vitrail plan masked_small data=FOLDER` says it for the photographs at hand. At 48 px with a smaller model 40
        epochs of 5,000 pictures took 8 minutes of one core of an AMD EPYC.
    Published: nothing, it is ours.
    Ours: on 20 classes of CIFAR-100, a tenth of the labels, 34.2 % top-1 after it against 27.8 from scratch
        (docs/log.md).
    """
    return MaskedRecipe(
        name="masked_small",
        image_size=96,
        epochs=60.0,
        batch_size=64,
        model=ModelSettings(name="deit3_tiny", settings=_SMALL_VIT),
        masked=MaskedSettings(
            form="mae", mask="random", share=0.75, target="pixels", decoder_dim=96, decoder_depth=2, decoder_heads=3
        ),
        augmentation=AugmentationSettings(scale=(0.3, 1.0)),
        optimizer=OptimizerSettings(lr=1e-3, weight_decay=0.05, betas=(0.9, 0.95), clip=3.0),
        schedule=ScheduleSettings(warmup_epochs=5.0, min_lr=1e-5),
        regularisation=RegularisationSettings(drop_path=0.0),
        evaluation=ImageEvaluationSettings(every=5.0, crop_ratio=1.0),
    )


def masked_small_labels() -> Recipe:
    """The small ViT of masked_small, fine-tuned with the labels that there are.

    Command: vitrail train masked_small_labels data=FOLDER out=runs/masked_small_labels init=runs/masked_small
    Cost: `vitrail plan masked_small_labels data=FOLDER` says it for the photographs at hand.
    Published: nothing, it is ours.
    Ours: the fine-tuning of all rows of that table in docs/log.md.
    """
    return ClassifyRecipe(
        name="masked_small_labels",
        image_size=96,
        epochs=40.0,
        batch_size=64,
        model=ModelSettings(name="deit3_tiny", settings=_SMALL_VIT, init="runs/masked_small", head_start="random"),
        augmentation=AugmentationSettings(scale=(0.3, 1.0), policy="three", colour_jitter=0.3),
        blend=BlendSettings(cutmix=1.0, probability=0.5),
        objective=ObjectiveSettings(smoothing=0.1),
        optimizer=OptimizerSettings(lr=1e-3, weight_decay=0.05, layer_decay=0.75, clip=3.0),
        schedule=ScheduleSettings(warmup_epochs=3.0, min_lr=1e-6),
        regularisation=RegularisationSettings(drop_path=0.1),
        evaluation=ImageEvaluationSettings(every=2.0, crop_ratio=1.0),
    )
