"""Features of a teacher, learnt without labels: our own recipes."""

from vitrail.settings.image_recipe import ImageEvaluationSettings
from vitrail.settings.images import AugmentationSettings
from vitrail.settings.learning import OptimizerSettings, RegularisationSettings, ScheduleSettings
from vitrail.settings.model import ModelSettings
from vitrail.settings.recipe import Recipe
from vitrail.tasks.features.settings import FeatureSettings, FeaturesRecipe, FeatureTeacherSettings

# A narrow and shallow PatchConvNet that begins as those of recipes/small.py do: LayerScale at 1, initial weights of
# 1 / sqrt(inputs), and no batch normalisation, so that a CPU can divide a batch among its cores.
_SMALL_PATCHCONVNET = {"dim": 192, "depth": 8, "stem": "conv", "layer_scale": 1.0, "init_std": None}


def features_small() -> Recipe:
    """A small PatchConvNet that learns DeiT-Ti's features from a few thousand photos, at 112 px.

    Command: vitrail pretrain features_small data=FOLDER out=runs/features
        teacher=NAME and model=NAME take any other pair; then vitrail train fine_tune init=runs/features
    Cost: the teacher is asked about four views of each photograph once, 76 KB of disk for each photograph.
    Published: nothing, it is ours.
    Ours: 31.0 % top-1 after fine-tuning against 21.0 % from scratch, on ten breeds of Oxford-IIIT Pet, 40 pictures of
        each, with epochs=12 and two views; all 40 epochs were not run (docs/features.md).
    """
    return FeaturesRecipe(
        name="features_small",
        image_size=112,
        epochs=40.0,
        batch_size=64,
        model=ModelSettings(name="patchconvnet_s60", settings=_SMALL_PATCHCONVNET),
        teacher=FeatureTeacherSettings(model="deit_tiny", cache="views:4"),
        augmentation=AugmentationSettings(scale=(0.35, 1.0), colour_jitter=0.3),
        optimizer=OptimizerSettings(lr=1e-3, weight_decay=0.05, clip=1.0),
        schedule=ScheduleSettings(warmup_epochs=2.0, min_lr=1e-5),
        regularisation=RegularisationSettings(drop_path=0.0),
        evaluation=ImageEvaluationSettings(every=5.0, crop_ratio=1.0),
    )


def features_deit_small() -> Recipe:
    """DeiT-S that learns the features of DINOv2's ViT-B/14 on ImageNet, without labels.

    Command: vitrail pretrain features_deit_small data=imagenet:ROOT out=runs/features
    Cost: not known. The teacher sees every view in every step: its forward pass costs about three of the student's.
    Published: nothing, it is ours.
    Ours: not run.
    """
    return FeaturesRecipe(
        name="features_deit_small",
        epochs=300.0,
        batch_size=1024,
        model=ModelSettings(name="deit_small", settings={"drop_path_schedule": "linear"}),
        teacher=FeatureTeacherSettings(model="timm/vit_base_patch14_dinov2.lvd142m", image_size=224),
        features=FeatureSettings(hidden_dim=2048),
        augmentation=AugmentationSettings(colour_jitter=0.3),
        optimizer=OptimizerSettings(lr=5e-4, reference_batch=512, weight_decay=0.05, clip=3.0),
        schedule=ScheduleSettings(warmup_epochs=5.0, warmup_lr=1e-6, min_lr=1e-5),
        regularisation=RegularisationSettings(drop_path=0.1),
        evaluation=ImageEvaluationSettings(every=5.0, crop_ratio=0.875),
    )
