"""DINO: learning without labels, with ResMLP as in thesis 4.3.2, with DeiT-S, and small (arXiv 2104.14294)."""

from typing import Any

from vitrail.recipes.resmlp import LAYER_SCALE, resmlp
from vitrail.settings.image_recipe import ImageEvaluationSettings
from vitrail.settings.images import CropSettings
from vitrail.settings.learning import OptimizerSettings, RegularisationSettings, ScheduleSettings
from vitrail.settings.model import ModelSettings
from vitrail.settings.recipe import Recipe
from vitrail.settings.text import change
from vitrail.tasks.classify.settings import ClassifyRecipe
from vitrail.tasks.dino.settings import DinoCropsSettings, DinoRecipe, DinoSettings
from vitrail.tasks.unlabelled.settings import WatchSettings


def _procedure(name: str, model: ModelSettings, *, crops: DinoCropsSettings) -> Recipe:
    """DINO's own training: the thesis prints its length alone."""
    return DinoRecipe(
        name=name,
        epochs=300.0,
        batch_size=1024,
        model=model,
        dino=DinoSettings(teacher_temperature=0.07, teacher_temperature_start=0.04, teacher_temperature_epochs=30),
        crops=crops,
        optimizer=OptimizerSettings(lr=5e-4, reference_batch=256, weight_decay=0.04, clip=3.0),
        schedule=ScheduleSettings(warmup_epochs=10.0, warmup_lr=0.0, min_lr=1e-6, weight_decay_end=0.4),
        regularisation=RegularisationSettings(drop_path=0.1),
        evaluation=ImageEvaluationSettings(every=10.0, crop_ratio=0.875),
        watch=WatchSettings(train_images=100_000, val_images=10_000, probe_every=50.0),
    )


def dino_resmlp(model: str) -> Recipe:
    """ResMLP without labels, by DINO, on ImageNet-1k.

    Command: vitrail pretrain dino_resmlp_s12 data=imagenet:ROOT out=runs/dino_resmlp_s12
    Cost: not published. Local crops are of 224 pixels too, the one size that the model takes: eight crops of an image
        cost as much as eight images.
    Published: {rows}; by a linear classifier S12 {resmlp_s12: DINO, linear classifier} and
        S24 {resmlp_s24: DINO, linear classifier}.
    Ours: not run; a small one is in docs/log.md.
    """
    settings: dict[str, Any] = {"layer_scale": LAYER_SCALE[model[1:]], "drop_path_schedule": "uniform"}
    return _procedure(
        f"dino_resmlp_{model}",
        ModelSettings(name=f"resmlp_{model}", settings=settings),
        crops=DinoCropsSettings(num_local=6),
    )


def dino_deit_small() -> Recipe:
    """DeiT-S without labels, by DINO, on ImageNet-1k.

    Command: vitrail pretrain dino_deit_small data=imagenet:ROOT out=runs/dino_deit_small
    Cost: DINO's authors name three days on two servers of eight GPUs (arXiv 2104.14294).
    Published: {rows}, by a linear classifier {deit_small: DINO, linear classifier}; both after 800 epochs, not 300.
    Ours: not run.
    """
    # The crops of DINO's long runs.
    first, second = (
        CropSettings(scale=(0.25, 1.0), blur=blur, solarise=part) for blur, part in ((1.0, 0.0), (0.1, 0.2))
    )
    crops = DinoCropsSettings(num_local=10, first=first, second=second, local=CropSettings(scale=(0.05, 0.25)))
    return _procedure("dino_deit_small", ModelSettings(name="deit_small"), crops=crops)


def dino_resmlp_labels(model: str) -> Recipe:
    """ResMLP without labels, by DINO, and then fine-tuned with them, in two stages.

    Command: vitrail train dino_resmlp_s12_labels data=imagenet:ROOT out=runs/dino_resmlp_s12_labels
        A run of dino_resmlp_s12 saves the first stage: vitrail train resmlp_s12 init=runs/dino_resmlp_s12 and the
        changes of stages.1.
    Cost: not published.
    Published: {rows}.
    Ours: not run.
    """
    # Nothing is printed about this fine-tuning. ResMLP's own training (4.3.1), as long and at the rate at which the
    # thesis fine-tunes to labels elsewhere (5.2.3).
    tuned = change(resmlp(model), {"epochs": 100.0, "batch_size": 1024, "optimizer.lr": 5e-4})
    assert isinstance(tuned, ClassifyRecipe)
    sections = ("augmentation", "blend", "objective", "optimizer", "schedule", "regularisation", "evaluation")
    content = tuned.model_dump(mode="json")
    stage = {"task": "classify", "epochs": 100.0, "batch_size": 1024, "run.precision": tuned.run.precision}
    return change(
        dino_resmlp(model),
        {"name": f"dino_resmlp_{model}_labels", "stages": [{}, {**stage, **{key: content[key] for key in sections}}]},
    )


def dino_small() -> Recipe:
    """A small transformer without labels, by DINO, for a few thousand photographs on a laptop.

    Command: vitrail pretrain dino_small data=FOLDER out=runs/dino
    Cost: `vitrail plan dino_small data=FOLDER` says it for the photographs at hand. At 48 px with two local crops 40
        epochs of 5,000 pictures took 26 minutes of one core of an AMD EPYC.
    Published: nothing, it is ours.
    Ours: on 20 classes of CIFAR-100, a tenth of the labels, 33.8 % top-1 after it against 27.8 from scratch
        (docs/log.md).
    """
    # Few steps: the teacher follows faster than in the paper, and the head is small, as there is little to tell apart.
    settings: dict[str, Any] = {"patch_size": 8, "dim": 128, "depth": 6, "num_heads": 4, "init_std": None}
    return DinoRecipe(
        name="dino_small",
        image_size=64,
        epochs=30.0,
        batch_size=64,
        model=ModelSettings(name="deit_tiny", settings=settings),
        dino=DinoSettings(outputs=2048, hidden_dim=512, bottleneck_dim=128, teacher_momentum=0.99),
        crops=DinoCropsSettings(num_local=4, local_size=32),
        optimizer=OptimizerSettings(lr=1e-3, weight_decay=0.04, clip=3.0),
        schedule=ScheduleSettings(warmup_epochs=2.0, warmup_lr=0.0, min_lr=1e-5, weight_decay_end=0.4),
        regularisation=RegularisationSettings(drop_path=0.0),
        evaluation=ImageEvaluationSettings(every=2.0, crop_ratio=1.0),
        watch=WatchSettings(probe_every=10.0),
    )
