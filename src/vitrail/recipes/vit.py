"""How vision transformers were trained before and beside DeiT (thesis tables 3.9 and 6.1), on ViT-B."""

from vitrail.settings.image_recipe import ImageEvaluationSettings
from vitrail.settings.images import AugmentationSettings, BlendSettings
from vitrail.settings.learning import OptimizerSettings, RegularisationSettings, ScheduleSettings
from vitrail.settings.model import ModelSettings
from vitrail.settings.recipe import Recipe
from vitrail.settings.text import change
from vitrail.tasks.classify.settings import ClassifyRecipe, ObjectiveSettings


def vit_original() -> Recipe:
    """ViT-B as ViT's own paper trained it, on ImageNet-1k.

    Command: vitrail train vit_original data=imagenet:ROOT out=runs/vit_original
    Cost: not in the thesis.
    Published: not in the thesis at 224; {vit_b16: ImageNet-1k, fine-tuned at 384} % top-1 (table 3.17) is after
        fine-tuning at 384, which this leaves out.
    Ours: not run.
    """
    return ClassifyRecipe(
        name="vit_original",
        epochs=300.0,  # table 3.9
        batch_size=4096,
        model=ModelSettings(name="deit_base"),  # the same network
        augmentation=AugmentationSettings(),  # random resized crop and flip
        # Table 3.9, which is about ViT-B on ImageNet-1k; table 6.1 prints smoothing 0.1 and weight decay 0.1.
        objective=ObjectiveSettings(smoothing=0.0),
        optimizer=OptimizerSettings(lr=3e-3, weight_decay=0.3, clip=1.0),
        schedule=ScheduleSettings(warmup_epochs=3.5, min_lr=0.0),  # "3-4" epochs
        regularisation=RegularisationSettings(drop_path=0.0, dropout=0.1),
        evaluation=ImageEvaluationSettings(crop_ratio=0.875),
    )


def steiner() -> Recipe:
    """ViT-B as Steiner et al. trained it, on ImageNet-1k.

    Command: vitrail train steiner data=imagenet:ROOT out=runs/steiner
    Cost: not in the thesis.
    Published: not in the thesis for ImageNet-1k; {vit_b16: ImageNet-21k -> 1k, Steiner et al.} % top-1 after
        ImageNet-21k (thesis table 6.8).
    Ours: not run.
    """
    # Table 6.1 says "Adapt." for the last three of these, and gives no strength of stochastic depth and dropout: DeiT's
    # 9/0.5 and 0.1, ViT's dropout, and the middle of the strengths of mixup that Steiner et al. try.
    return change(
        vit_original(),
        {
            "name": "steiner",
            "objective.smoothing": 0.1,
            "optimizer.weight_decay": 0.3,
            "augmentation.policy": "rand",
            "blend": BlendSettings(mixup=0.5).model_dump(),
            "regularisation.drop_path": 0.1,
        },
    )
