"""Grafit and what it is compared with: embeddings for fine classes from coarse labels (thesis chapter 2, 2.5.1)."""

from typing import Any

from vitrail.settings.data import DataSettings
from vitrail.settings.image_recipe import ImageEvaluationSettings
from vitrail.settings.images import AugmentationSettings
from vitrail.settings.learning import OptimizerSettings, RegularisationSettings, ScheduleSettings
from vitrail.settings.model import PRETRAINED, ModelSettings
from vitrail.settings.recipe import Recipe
from vitrail.settings.text import change
from vitrail.tasks.classify.settings import ClassifyRecipe
from vitrail.tasks.embed.settings import EmbeddingTaskSettings, EmbedRecipe

# What differs between ImageNet and CIFAR-100: the size of the images, views of an image, clusters of ClusterFit+. On
# pictures of 32 pixels a ResNet-50 for ImageNet would end in a map of 1x1: it has the stem that the field uses there,
# and evaluation sees whole images.
DATA: dict[str, dict[str, Any]] = {
    "imagenet": {"image_size": 224, "views": 4, "clusters": 15000, "crop_ratio": 0.875, "settings": {}},
    "cifar100": {"image_size": 32, "views": 8, "clusters": 1500, "crop_ratio": 1.0, "settings": {"small_images": True}},
}
COARSE = "coarse"  # the level that is trained on; fine classes only measure (2.4.4)


def _procedure(name: str, data: str) -> Recipe:
    """The training that all methods share (2.4.3, 2.5.1); decay and warmup are not in the thesis."""
    return ClassifyRecipe(
        name=name if data == "imagenet" else f"{name}_{data}",
        image_size=DATA[data]["image_size"],
        epochs=600.0,
        batch_size=1024,
        model=ModelSettings(name="timm/resnet50", settings=DATA[data]["settings"]),
        data=DataSettings(level=COARSE),
        augmentation=AugmentationSettings(policy="rand", erasing=0.25),
        optimizer=OptimizerSettings(name="sgd", lr=0.1, reference_batch=256, weight_decay=1e-4, momentum=0.9),
        schedule=ScheduleSettings(kind="cosine", warmup_epochs=5.0, min_lr=0.0),
        evaluation=ImageEvaluationSettings(crop_ratio=DATA[data]["crop_ratio"]),
    )


def baseline(data: str = "imagenet") -> Recipe:
    """A classifier of the labels that there are, whose trunk is the embedding.

    Command: vitrail train grafit_baseline_cifar100 data=cifar100:ROOT out=runs/baseline
        or data=MANIFEST.csv with a column coarse beside that of the fine classes, or data.level=COLUMN
    Cost: not in the thesis.
    Published: from the coarse labels {timm/resnet50: Baseline, imagenet, kNN} % by kNN and
        {timm/resnet50: Baseline, imagenet, mAP} mAP on the classes of ImageNet,
        {timm/resnet50: Baseline, cifar100, kNN} and
        {timm/resnet50: Baseline, cifar100, mAP} on those of CIFAR-100 (thesis table 2.7).
    Ours: not run as it stands; a small one on CIFAR-100 is in docs/log.md.
    """
    return _procedure("grafit_baseline", data)


def snca(data: str = "imagenet") -> Recipe:
    """Neighbours by label, with a linear projector and the training of its authors.

    Command: vitrail train grafit_snca_cifar100 data=cifar100:ROOT out=runs/snca
        or data=MANIFEST.csv with a column coarse beside that of the fine classes, or data.level=COLUMN
    Cost: not in the thesis.
    Published: by its authors, from the coarse labels {timm/resnet50: SNCA, imagenet, kNN} % by kNN on the classes of
        ImageNet and {timm/resnet50: SNCA, cifar100, kNN} on those of CIFAR-100 (thesis table 2.4). Wu et al. (2018):
        130 epochs in batches of 256, the learning rate of 0.1 divided by ten every 40.
    Ours: not run.
    """
    return change(
        _neighbours("grafit_snca", data, projector="linear"),
        {
            "epochs": 130.0,
            "batch_size": 256,
            "augmentation": AugmentationSettings(scale=(0.2, 1.0), colour_jitter=0.4).model_dump(),
            "schedule": ScheduleSettings(kind="step", decay_epochs=40.0, warmup_epochs=0.0).model_dump(),
        },
    )


def snca_plus(data: str = "imagenet") -> Recipe:
    """Neighbours by label, with Grafit's projector and training.

    Command: vitrail train grafit_snca_plus_cifar100 data=cifar100:ROOT out=runs/snca_plus
        or data=MANIFEST.csv with a column coarse beside that of the fine classes, or data.level=COLUMN
    Cost: not in the thesis.
    Published: from the coarse labels {timm/resnet50: SNCA+, imagenet, kNN} % by kNN and
        {timm/resnet50: SNCA+, imagenet, mAP} mAP on the classes of ImageNet,
        {timm/resnet50: SNCA+, cifar100, kNN} and
        {timm/resnet50: SNCA+, cifar100, mAP} on those of CIFAR-100 (thesis table 2.7).
    Ours: not run as it stands; a small one on CIFAR-100 is in docs/log.md.
    """
    return _neighbours("grafit_snca_plus", data, projector="mlp")


def clusterfit_plus(data: str = "imagenet") -> Recipe:
    """A classifier of the clusters of a Baseline's features.

    Command: vitrail train grafit_clusterfit_plus_cifar100 clusters.of=runs/baseline data=cifar100:ROOT
        out=runs/clusterfit
    Cost: not in the thesis.
    Published: from the coarse labels {timm/resnet50: ClusterFit+, imagenet, kNN} % by kNN and
        {timm/resnet50: ClusterFit+, imagenet, mAP} mAP on the classes of ImageNet,
        {timm/resnet50: ClusterFit+, cifar100, kNN} and
        {timm/resnet50: ClusterFit+, cifar100, mAP} on those of CIFAR-100 (thesis table 2.4).
    Ours: not run as it stands; a small one on CIFAR-100 is in docs/log.md.
    """
    return change(_procedure("grafit_clusterfit_plus", data), {"clusters.number": DATA[data]["clusters"]})


def grafit(data: str = "imagenet", projector: str = "mlp") -> Recipe:
    """Neighbours by label and instances together: a fine embedding from coarse labels.

    Command: vitrail train grafit_cifar100 data=cifar100:ROOT out=runs/grafit
        or data=MANIFEST.csv with a column coarse beside that of the fine classes, or data.level=COLUMN
    Cost: not in the thesis.
    Published: from the coarse labels {timm/resnet50: Grafit, imagenet, kNN} % by kNN and
        {timm/resnet50: Grafit, imagenet, mAP} mAP, conditioned, on the classes of ImageNet,
        {timm/resnet50: Grafit, cifar100, kNN} and {timm/resnet50: Grafit, cifar100, mAP} on those of CIFAR-100; with
        the linear projector (grafit_fc) {timm/resnet50: Grafit FC, imagenet, kNN} and
        {timm/resnet50: Grafit FC, imagenet, mAP}, {timm/resnet50: Grafit FC, cifar100, kNN} and
        {timm/resnet50: Grafit FC, cifar100, mAP} (thesis table 2.7).
    Ours: not run as it stands; a small one on CIFAR-100 is in docs/log.md.
    """
    name = "grafit" if projector == "mlp" else "grafit_fc"
    return change(
        _neighbours(name, data, projector=projector),
        {"embedding.instance": 1.0, "embedding.views": DATA[data]["views"]},
    )


def unsupervised(data: str = "imagenet") -> Recipe:
    """Grafit with one class for all images: the instance loss alone; labels only measure.

    Command: vitrail train grafit_unsupervised data=FOLDER out=runs/unsupervised
    Cost: not in the thesis.
    Published: on iNaturalist-2018 {timm/resnet50: Grafit, inat18, no labels to kingdom, kNN} % by kNN on kingdoms,
        {timm/resnet50: Grafit, inat18, no labels to species, kNN} on species (thesis table 2.5).
    Ours: not run.
    """
    changes = {"name": _procedure("grafit_unsupervised", data).name, "embedding.knn": 0.0, "data.level": None}
    return change(grafit(data), changes)


def pretraining(model: str) -> Recipe:
    """Grafit on ImageNet-1k's own classes, before it is fine-tuned on other data.

    Command: vitrail train grafit_1k_resnet50 data=imagenet:ROOT out=runs/grafit_1k_resnet50
    Cost: not in the thesis.
    Published: only what it gives after fine-tuning, see transfer_grafit and transfer_grafit_384_flowers.
    Ours: not run.
    """
    return change(grafit(), {"name": f"grafit_1k_{model}", "model.name": f"timm/{model}", "data.level": None})


def _neighbours(name: str, data: str, *, projector: str) -> Recipe:
    settings = {"embedding.projector": projector, "embedding.knn": 1.0, "embedding.instance": 0.0}
    return change(_procedure(name, data), {"task": "embed", **settings})


def fine_tune_grafit() -> Recipe:
    """A pre-trained DeiT-Ti fine-tuned with Grafit on thousands of photographs, at 112 pixels.

    Command: vitrail train fine_tune_grafit data=FOLDER out=runs/mine
    Cost: 5 minutes an epoch of 3,680 pictures on one core (AVX2), beside other processes.
    Published: nothing, it is ours.
    Ours: 73.7 % by kNN and 41.6 mAP on the breeds of Oxford-IIIT Pet from the species alone, after 4 epochs
        (docs/log.md).
    """
    return EmbedRecipe(
        name="fine_tune_grafit",
        image_size=112,
        epochs=6.0,
        batch_size=64,
        model=ModelSettings(name="deit_tiny", init=PRETRAINED),
        augmentation=AugmentationSettings(scale=(0.35, 1.0), colour_jitter=0.3),
        embedding=EmbeddingTaskSettings(projector="mlp", hidden_dim=1024, target_decay=0.99),
        optimizer=OptimizerSettings(lr=1e-4, weight_decay=0.05, clip=1.0),
        schedule=ScheduleSettings(warmup_epochs=0.5, min_lr=1e-5),
        regularisation=RegularisationSettings(drop_path=0.0),
        evaluation=ImageEvaluationSettings(every=3.0, crop_ratio=1.0),
    )
