"""Our own recipes for a few thousand images on a laptop."""

from vitrail.settings.image_recipe import ImageEvaluationSettings
from vitrail.settings.images import AugmentationSettings, BlendSettings
from vitrail.settings.learning import OptimizerSettings, RegularisationSettings, ScheduleSettings
from vitrail.settings.model import PRETRAINED, ModelSettings
from vitrail.settings.recipe import Recipe
from vitrail.tasks.classify.settings import ClassifyRecipe, ObjectiveSettings

# A narrow and shallow CaiT. What makes it learn in minutes: convolutions in the stem, LayerScale at 1 (1e-5 is meant
# for 24 blocks), initial weights of 1 / sqrt(inputs) instead of 0.02, and heads that do not talk: their mixing starts
# near zero and is learnt late.
_SMALL_CAIT = {
    "dim": 64,
    "depth": 4,
    "num_heads": 2,
    "class_depth": 1,
    "stem": "conv_bn",
    "layer_scale": 1.0,
    "init_std": None,
    "talking_heads": False,
}


# A narrow and shallow PatchConvNet: LayerScale and initial weights as above, and no batch normalisation, so that a CPU
# can divide a batch among its cores.
_SMALL_PATCHCONVNET = {
    "patch_size": 4,
    "dim": 96,
    "depth": 6,
    "stem": "conv",
    "layer_scale": 1.0,
    "init_std": None,
}


def small() -> Recipe:
    """A small PatchConvNet for a few thousand pictures of about 28 pixels, in minutes.

    Command: vitrail train small data=fashion out=runs/small
    Cost: 3 min 42 s on two cores (AVX2).
    Published: nothing, it is ours.
    Ours: 87.5 % top-1 and 96.4 % coarse on the embedded Fashion-MNIST; with seed=1 85.0 % (docs/log.md).
    """
    return ClassifyRecipe(
        name="small",
        image_size=28,
        epochs=26.0,
        batch_size=64,
        model=ModelSettings(name="patchconvnet_s60", settings=_SMALL_PATCHCONVNET),
        # Few images bear little cropping: most of the object should stay in sight.
        augmentation=AugmentationSettings(scale=(0.8, 1.0), ratio=(0.9, 1.1)),
        blend=BlendSettings(mixup=0.2, probability=0.5),
        objective=ObjectiveSettings(smoothing=0.1),
        optimizer=OptimizerSettings(lr=4e-3, weight_decay=0.05, clip=1.0),
        schedule=ScheduleSettings(warmup_epochs=0.5, min_lr=1e-5),
        regularisation=RegularisationSettings(drop_path=0.0, ema=0.998),
        evaluation=ImageEvaluationSettings(every=2.0, crop_ratio=1.0),
    )


def small_photos() -> Recipe:
    """A pre-trained DeiT-Ti for a few hundred photographs, at 160 pixels, in minutes.

    Command: vitrail train small_photos data=FOLDER out=runs/photos
    Cost: 2 min 8 s of one core (AVX2) for 592 pictures, without the evaluation.
    Published: nothing, it is ours.
    Ours: 79.8 % top-1 on 1,000 pictures of Oxford-IIIT Pet from 16 of each of its 37 breeds, 86.7 % from all 3,680
        (docs/log.md).
    """
    return fine_tune().model_copy(
        update={
            "name": "small_photos",
            "image_size": 160,
            "epochs": 3.0,
            "evaluation": ImageEvaluationSettings(every=1.0, crop_ratio=1.0),
        }
    )


def small_photos_scratch() -> Recipe:
    """A small CaiT for a few thousand photographs, at 96 pixels, from scratch.

    Command: vitrail train small_photos_scratch data=FOLDER out=runs/photos
    Cost: 1 min 42 s of one core (AVX2) for 6 epochs of 500 pictures; all 60 were not run.
    Published: nothing, it is ours.
    Ours: 50.0 % top-1 on five breeds of Oxford-IIIT Pet, 100 pictures of each, with epochs=6; all 60 were not run
        (docs/log.md).
    """
    recipe = small()
    return recipe.model_copy(
        update={
            "name": "small_photos_scratch",
            "image_size": 96,
            "epochs": 60.0,
            "batch_size": 32,
            "optimizer": OptimizerSettings(lr=1.5e-3, weight_decay=0.05, clip=1.0),
            "model": ModelSettings(
                name="cait_xxs24", settings={**_SMALL_CAIT, "dim": 128, "depth": 6, "patch_size": 8}
            ),
            "augmentation": AugmentationSettings(scale=(0.35, 1.0), colour_jitter=0.3),
            "blend": BlendSettings(mixup=0.2, cutmix=1.0, probability=0.5),
            "schedule": ScheduleSettings(warmup_epochs=3.0, min_lr=1e-5),
        }
    )


def fine_tune() -> Recipe:
    """A pre-trained DeiT-Ti fine-tuned on a few thousand photographs, at 112 pixels.

    Command: vitrail train fine_tune data=FOLDER out=runs/mine
    Cost: 9 min 6 s on two cores (AVX2), for the 3,680 pictures of Oxford-IIIT Pet.
    Published: nothing, it is ours.
    Ours: 82.7 % top-1 on the breeds of Oxford-IIIT Pet, from DeiT-Ti's weights (docs/log.md).
    """
    return ClassifyRecipe(
        name="fine_tune",
        image_size=112,
        epochs=9.0,
        batch_size=64,
        model=ModelSettings(name="deit_tiny", init=PRETRAINED),
        augmentation=AugmentationSettings(scale=(0.35, 1.0), colour_jitter=0.3),
        objective=ObjectiveSettings(smoothing=0.1),
        # Where only a part learns (train_only=attention), twice this rate is better.
        optimizer=OptimizerSettings(lr=2e-4, weight_decay=0.05, clip=1.0),
        schedule=ScheduleSettings(warmup_epochs=0.5, min_lr=1e-5),
        regularisation=RegularisationSettings(drop_path=0.1),
        evaluation=ImageEvaluationSettings(every=3.0, crop_ratio=1.0),
    )
