"""ResNet-50: ResNet-strikes-back's A1, A2 and A3, T2 for DeiT-S (thesis 6.3.4), and trainings before them.

The thesis only cites A1 to A3; their values are those of "ResNet strikes back" (Wightman et al., 2021, table 2).
"""

from vitrail.recipes.deit import SCHEDULE
from vitrail.settings.image_recipe import ImageEvaluationSettings
from vitrail.settings.images import AugmentationSettings, BlendSettings
from vitrail.settings.learning import OptimizerSettings, RegularisationSettings, ScheduleSettings
from vitrail.settings.model import ModelSettings
from vitrail.settings.recipe import Recipe
from vitrail.settings.text import change
from vitrail.tasks.classify.settings import ClassifyRecipe, ObjectiveSettings

RESNET = ModelSettings(name="timm/resnet50")


def a1() -> Recipe:
    """ResNet-50 with A1, the longest and strongest of ResNet-strikes-back.

    Command: vitrail train a1 data=imagenet:ROOT out=runs/a1
    Cost: 4.6 days on 4 V100 (ResNet strikes back).
    Published: {rows}.
    Ours: not run.
    """
    return ClassifyRecipe(
        name="a1",
        epochs=600.0,
        batch_size=2048,
        model=RESNET,
        augmentation=AugmentationSettings(policy="rand", magnitude=7.0, magnitude_noise=0.5, repeats=3),
        blend=BlendSettings(mixup=0.2, cutmix=1.0, group_size=512),  # images on each of the 4 GPUs
        objective=ObjectiveSettings(loss="bce", smoothing=0.1),
        optimizer=OptimizerSettings(name="lamb", lr=5e-3, weight_decay=0.01, clip=1.0),  # clip: table 6.1
        schedule=SCHEDULE,
        regularisation=RegularisationSettings(drop_path=0.05),
        evaluation=ImageEvaluationSettings(image_size=224, crop_ratio=0.95),
    )


def a2() -> Recipe:
    """ResNet-50 with A2, 300 epochs; also the base of Three things' trainings.

    Command: vitrail train a2 data=imagenet:ROOT out=runs/a2
    Cost: not in the thesis.
    Published: {rows}; {timm/resnet50: ImageNet-1k, A2, mean of 100 seeds} on average over 100 seeds (figure 6.7);
        {timm/resnet50: A2, attention pooling} with PatchConvNet's pooling, model.settings.pool=attention (5.3.4).
    Ours: not run.
    """
    return change(
        a1(),
        {
            "name": "a2",
            "epochs": 300.0,
            # Table 6.1 prints mixup 0.2 for "Wightman et al.": that is A1's.
            "blend.mixup": 0.1,
            "objective.smoothing": 0.0,
            "optimizer.weight_decay": 0.02,
        },
    )


def a3() -> Recipe:
    """ResNet-50 with A3: 100 epochs at 160 pixels, tested at 224.

    Command: vitrail train a3 data=imagenet:ROOT out=runs/a3
    Cost: not in the thesis.
    Published: {rows}.
    Ours: not run.
    """
    return change(
        a2(),
        {
            "name": "a3",
            "epochs": 100.0,
            "image_size": 160,
            "augmentation.magnitude": 6.0,
            "augmentation.repeats": 1,
            "optimizer.lr": 8e-3,
            "regularisation.drop_path": 0.0,
        },
    )


def t2() -> Recipe:
    """DeiT-S with T2, of which only length and batch are published; the rest is ours.

    Command: vitrail train t2 data=imagenet:ROOT out=runs/t2
    Cost: not published.
    Published: {rows}; ResNet-50 with it: {timm/resnet50: ImageNet-1k, T2}.
    Ours: not run.
    """
    # Known: 300 epochs, a batch of 2048. The rest is ours: A2's optimizer and loss at the rate that Three things
    # (section 2.2) uses for ViT-S with A2, and DeiT's stronger augmentation.
    return change(
        a2(),
        {
            "name": "t2",
            "model.name": "deit_small",
            "model.settings": {"drop_path_schedule": "uniform"},
            "augmentation.magnitude": 9.0,
            "blend.mixup": 0.8,
            "optimizer.lr": 4e-3,
        },
    )


def resnet_old() -> Recipe:
    """ResNet-50 as it used to be trained: SGD, 90 epochs, the rate divided by ten every 30.

    Command: vitrail train resnet_old data=imagenet:ROOT out=runs/resnet_old
    Cost: not published.
    Published: {rows}.
    Ours: not run.
    """
    # Thesis 1.1.3: crops, flip, colour jitter, SGD, a batch of 512, 90 epochs, a tenth of the rate every 30; 2.5.1: 0.1
    # for 256 images. The rest is Goyal et al.'s, which 1.1.3 refers to: jitter 0.4, weight decay 1e-4, momentum 0.9 as
    # it is, not Nesterov's. Their warmup is for batches beyond these.
    return ClassifyRecipe(
        name="resnet_old",
        epochs=90.0,
        batch_size=512,
        model=RESNET,
        augmentation=AugmentationSettings(interpolation="bilinear", colour_jitter=0.4),
        optimizer=OptimizerSettings(
            name="sgd", lr=0.1, reference_batch=256, weight_decay=1e-4, momentum=0.9, nesterov=False
        ),
        schedule=ScheduleSettings(kind="step", warmup_epochs=0.0, min_lr=0.0, decay_epochs=30.0, decay_rate=0.1),
        evaluation=ImageEvaluationSettings(crop_ratio=0.875),
    )


def resmlp_s12_old() -> Recipe:
    """ResMLP-S12 with the old training of ResNets, an ablation.

    Command: vitrail train resmlp_s12_old data=imagenet:ROOT out=runs/resmlp_s12_old
    Cost: not published.
    Published: {rows}.
    Ours: not run.
    """
    names = {"name": "resmlp_s12_old", "model.name": "resmlp_s12"}
    return change(resnet_old(), {**names, "regularisation.drop_path": 0.0, "evaluation.crop_ratio": 0.9})


def resnet_strong() -> Recipe:
    """ResNet-50 as the baseline of Grafit: SGD and a cosine over 600 epochs (thesis 2.5.1).

    Command: vitrail train resnet_strong data=imagenet:ROOT out=runs/resnet_strong
    Cost: not published.
    Published: {rows}.
    Ours: not run.
    """
    # Silent about warmup, weight decay and strengths: the field's 1e-4, chapter 3's for the others.
    return ClassifyRecipe(
        name="resnet_strong",
        epochs=600.0,
        batch_size=1024,
        model=RESNET,
        augmentation=AugmentationSettings(policy="rand", magnitude=9.0, magnitude_noise=0.5, erasing=0.25),
        optimizer=OptimizerSettings(name="sgd", lr=0.1, reference_batch=256, weight_decay=1e-4, momentum=0.9),
        schedule=ScheduleSettings(warmup_epochs=5.0, warmup_lr=1e-4, min_lr=0.0),
        evaluation=ImageEvaluationSettings(crop_ratio=0.875),
    )
