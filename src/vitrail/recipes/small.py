"""Our own recipe for a few thousand small images on a laptop."""

from vitrail.training.recipe import (
    AugmentationSettings,
    BlendSettings,
    EvaluationSettings,
    ModelSettings,
    ObjectiveSettings,
    OptimizerSettings,
    Recipe,
    RegularisationSettings,
    ScheduleSettings,
)


def small() -> Recipe:
    """A small CaiT for a few thousand images of 32 pixels, in minutes on a laptop.

    Command: vitrail train small data=fashion out=runs/small
    Cost: minutes on two cores.
    Published: nothing, it is ours.
    Ours: not run.
    """
    return Recipe(
        name="small",
        image_size=32,
        epochs=30.0,
        batch_size=64,
        model=ModelSettings(
            name="cait_xxs24",
            settings={"patch_size": 4, "dim": 128, "num_heads": 4, "depth": 6, "class_depth": 1, "layer_scale": 0.1},
        ),
        # Few images bear little cropping: most of the object should stay in sight.
        augmentation=AugmentationSettings(scale=(0.6, 1.0)),
        blend=BlendSettings(mixup=0.2, cutmix=1.0, probability=0.5),
        objective=ObjectiveSettings(smoothing=0.1),
        optimizer=OptimizerSettings(lr=1e-3, weight_decay=0.05, clip=1.0),
        schedule=ScheduleSettings(warmup_epochs=2.0, min_lr=1e-5),
        regularisation=RegularisationSettings(drop_path=0.0),
        evaluation=EvaluationSettings(crop_ratio=1.0),
    )
