"""From a recipe to the parts of a run: data, model, transforms, objective, optimizer and schedule."""

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.data.augment import Augmentation, EvaluationView
from vitrail.data.blend import Blend, Normalize
from vitrail.data.contract import Dataset, Level
from vitrail.data.datasets import open_dataset
from vitrail.data.policies import RandAugment
from vitrail.heads.embed import EmbeddingModel
from vitrail.models.catalog import create_model
from vitrail.models.contract import Model
from vitrail.settings.recipe import Recipe
from vitrail.tasks.classify.supervised import Supervised, balance_weights
from vitrail.tasks.contract import Objective
from vitrail.tasks.distill.distill import Distill
from vitrail.tasks.embed.embedding import add_embedding, check_recipe, check_views, make_grafit
from vitrail.tasks.embed.memory import Processes
from vitrail.training.loop import optimizer as optimizers
from vitrail.training.loop.freezing import freeze
from vitrail.training.loop.schedule import Schedule
from vitrail.weights import load_weights

_LOGGER = logging.getLogger(__name__)
_MAX_WARMUP_SHARE = 0.5  # of a run that was made shorter than its recipe


@dataclass(frozen=True, eq=False)
class Data:
    """What a run is trained and evaluated on."""

    train: Dataset
    val: Dataset
    level: str  # the name of the labels that are trained on
    coarse: str | None  # the name of coarser labels, if there are any
    coarse_of: tuple[int, ...] | None  # the coarse class of each class

    @property
    def labels(self) -> Level:
        """Classes and labels of the training images."""
        return self.train.level(self.level)

    def describe(self) -> dict[str, Any]:
        """The content of classes.json."""
        coarse = None
        if self.coarse is not None and self.coarse_of is not None:
            classes = self.train.level(self.coarse).classes
            coarse = {"name": self.coarse, "classes": list(classes), "of": list(self.coarse_of)}
        return {
            "level": self.level,
            "classes": list(self.labels.classes),
            "coarse": coarse,
            "num_train": len(self.train),
            "num_val": len(self.val),
        }


def open_data(recipe: Recipe) -> Data:
    """Both splits, without the samples in quarantine."""
    settings = recipe.data
    if settings.spec is None:
        raise ValueError("no data given: add data=FOLDER, or the name of a data set such as data=fashion")
    exclude = Path(settings.quarantine) if settings.quarantine else None
    train = open_dataset(settings.spec, "train", val_share=settings.val_share, exclude=exclude)
    if settings.val is None:
        val = open_dataset(settings.spec, "val", val_share=settings.val_share, exclude=exclude)
    else:
        val = open_dataset(settings.val, "val", val_share=settings.val_share)
    level = settings.level or next(iter(train.levels))
    classes = train.level(level).classes
    if val.level(level).classes != classes:
        raise ValueError(
            f"the classes of {val.name} ({settings.val}) are not those of {train.name}: they must be the same"
        )
    weights = recipe.embedding
    tells_images_apart = weights.is_learnt and (weights.instance > 0.0 or weights.triplet > 0.0)
    if len(classes) < 2 and not tells_images_apart and settings.clusters is None:
        raise ValueError(f"{train.name} has {len(classes)} class: there is nothing to tell apart")
    coarse, coarse_of = find_coarse(train, level)
    return Data(train, val, level, coarse, coarse_of)


def find_coarse(dataset: Dataset, level: str) -> tuple[str | None, tuple[int, ...] | None]:
    """The first labels that follow from those of `level` and are fewer, with the coarse class of each class."""
    fine = dataset.level(level)
    for name, coarse in dataset.levels.items():
        if name == level or fine.is_multiple or coarse.is_multiple or len(coarse.classes) >= len(fine.classes):
            continue
        pairs = np.unique(np.stack([fine.labels, coarse.labels]), axis=1)
        if len(np.unique(pairs[0])) == pairs.shape[1] == len(fine.classes):
            return name, tuple(pairs[1].tolist())
    return None, None


@dataclass(frozen=True, eq=False)
class Initial:
    """What a stage leaves to the next one."""

    weights: Mapping[str, Tensor]
    grid: tuple[int, int] | None  # rows and columns of the patches they were made for
    classes: tuple[str, ...]


def make_model(recipe: Recipe, *, num_classes: int, classes: Sequence[str] | None = None) -> Model:
    """The recipe's model, with the weights it starts from; the seed decides the initial ones.

    With the names of its `classes`, weights of a classifier for others are left out though they are as many.
    """
    torch.manual_seed(recipe.seed)
    check_views(recipe)
    is_embedding = recipe.embedding.is_learnt
    settings: dict[str, Any] = {**recipe.model.settings, "image_size": recipe.image_size}
    settings["num_classes"] = 0 if is_embedding else num_classes
    if recipe.teacher.model is not None and recipe.teacher.kind == "token":
        settings["distilled"] = True
    for name in ("drop_path", "dropout"):
        if (rate := getattr(recipe.regularisation, name)) is not None:
            settings[name] = rate
    model = create_model(recipe.model.name, **settings)
    if recipe.evaluation.crop_ratio is not None:
        model.preprocessing = replace(model.preprocessing, crop_ratio=recipe.evaluation.crop_ratio)
    whole = add_embedding(model, recipe, num_classes=num_classes) if is_embedding else model
    if recipe.model.init is not None:
        load_initial(whole, recipe.model.init, classes=classes, interpolation=recipe.model.position_resize)
    freeze(model, recipe.model.train_only)
    return whole


def locate_weights(source: str) -> str:
    """Where the weights of a source lie: of a run in the folder of its model."""
    folder = Path(source).expanduser() / "model"
    return str(folder) if folder.is_dir() else source


def load_initial(
    model: Model, source: str | Initial, *, classes: Sequence[str] | None, interpolation: str = "bicubic"
) -> None:
    """Weights to start from, of a run, a file or an earlier stage; a classifier of other classes is left out."""
    place: str | Mapping[str, Tensor]
    known: tuple[str, ...] | None
    if isinstance(source, Initial):
        place, known, grid, label = source.weights, source.classes, source.grid, "the stage before"
    else:
        place = label = locate_weights(source)
        known, grid = read_classes(Path(label)), None
    is_other = known is not None and classes is not None and tuple(known) != tuple(classes)
    try:
        load_weights(model, place, reset_head=is_other, interpolation=interpolation, grid=grid)
    except ValueError as error:
        try:
            load_weights(model, place, reset_head=True, interpolation=interpolation, grid=grid)
        except ValueError:
            raise error from None
        is_other = True
    kept = "; its classifier is for other classes, so it starts anew" if is_other else ", with their classifier"
    if model.trunk is not model:
        kept = ""
    _LOGGER.info("weights from %s%s", label, kept)


def read_classes(folder: Path) -> tuple[str, ...] | None:
    """The names in the classes.json of a saved model; None where there is none that can be read."""
    try:
        return tuple(json.loads((folder.expanduser() / "classes.json").read_text(encoding="utf-8"))["classes"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def make_augmentation(recipe: Recipe) -> Augmentation:
    """The transform of training images."""
    settings = recipe.augmentation
    policy: Any = settings.policy
    if policy == "rand":
        policy = RandAugment(magnitude=settings.magnitude, noise=settings.magnitude_noise)
    return Augmentation(
        image_size=recipe.image_size,
        crop=settings.crop,
        scale=settings.scale,
        ratio=settings.ratio,
        interpolation=settings.interpolation,
        flip=settings.flip,
        vertical_flip=settings.vertical_flip,
        policy=policy,
        colour_jitter=settings.colour_jitter,
        erasing=settings.erasing,
    )


def make_evaluation_view(recipe: Recipe, model: Model) -> EvaluationView:
    """The transform of evaluation images."""
    return EvaluationView(
        image_size=recipe.evaluation.image_size or recipe.image_size,
        crop_ratio=model.preprocessing.crop_ratio,
        interpolation=model.preprocessing.interpolation,
    )


def make_blend(recipe: Recipe, *, num_classes: int) -> Blend | None:
    """What mixes images and labels, or None where nothing does."""
    settings, smoothing = recipe.blend, recipe.objective.smoothing
    blend = Blend(
        num_classes=num_classes,
        mixup=settings.mixup,
        cutmix=settings.cutmix,
        switch=settings.switch,
        probability=settings.probability,
        smoothing=smoothing,
        per=settings.per,
    )
    return blend if blend.is_mixing else None


def make_objective(
    recipe: Recipe,
    labels: Level,
    *,
    model: Model,
    teacher: Callable[[Tensor], Tensor] | None,
    normalize: Normalize,
    processes: Processes | None = None,
    total_steps: int = 1,
) -> Objective:
    """The loss: of an embedding, of a student (with a teacher, or its answers in the batches), or of a classifier.

    What it remembers of the training images is shared among the `processes`; without them it is a trial of one's own.
    """
    if isinstance(model, EmbeddingModel):
        check_recipe(recipe, labels)
        return make_grafit(
            recipe,
            labels,
            model=model,
            supervised=make_supervised(recipe, labels),
            processes=processes or Processes(),
            total_steps=total_steps,
            seed=recipe.seed,
        )
    supervised = make_supervised(recipe, labels)
    if recipe.teacher.model is None:
        return supervised
    if labels.is_multiple:
        raise ValueError("images of this data have several labels: a teacher that names one can't be learnt from")
    return Distill(
        supervised=supervised,
        kind=recipe.teacher.kind,
        temperature=recipe.teacher.temperature,
        weight=recipe.teacher.weight,
        teacher=teacher,
        normalize=normalize,
    )


def make_supervised(recipe: Recipe, labels: Level) -> Supervised:
    """The loss on labels."""
    if labels.is_multiple and recipe.objective.loss != "bce":
        raise ValueError("images of this data have several labels: set objective.loss=bce")
    weights: Sequence[float] | None = None
    if recipe.objective.class_weights:
        weights = balance_weights(count_labels(labels).tolist())
    return Supervised(
        loss=recipe.objective.loss,
        smoothing=recipe.objective.smoothing,
        class_weights=None if weights is None else tuple(weights),
    )


def count_labels(labels: Level) -> np.ndarray:
    """Images of each class."""
    if labels.is_multiple:
        return labels.labels.sum(axis=0)
    return np.bincount(labels.labels, minlength=len(labels.classes))


def make_optimizer(recipe: Recipe, model: Model) -> torch.optim.Optimizer:
    """The optimizer at the recipe's highest learning rate."""
    settings = recipe.optimizer
    return optimizers.make_optimizer(
        model,
        optimizers.OptimizerSettings(
            name=settings.name,
            lr=recipe.lr,
            weight_decay=settings.weight_decay,
            betas=settings.betas,
            eps=settings.eps,
            momentum=settings.momentum,
            layer_decay=settings.layer_decay,
        ),
    )


def make_schedule(recipe: Recipe, *, steps_per_epoch: int, total_steps: int) -> Schedule:
    """The learning rate of every step; a warmup that a short run has no room for is shortened."""
    settings = recipe.schedule
    warmup = min(round(settings.warmup_epochs * steps_per_epoch), int(_MAX_WARMUP_SHARE * total_steps))
    is_step, is_cosine = settings.kind == "step", settings.kind == "cosine"
    decay_steps = max(1, round((settings.decay_epochs or 30.0) * steps_per_epoch)) if is_step else None
    return Schedule(
        lr=recipe.lr,
        total_steps=total_steps,
        kind=settings.kind,
        warmup_steps=warmup,
        warmup_lr=min(settings.warmup_lr, recipe.lr),
        min_lr=min(settings.min_lr, recipe.lr) if is_cosine else 0.0,
        decay_steps=decay_steps,
        decay_rate=settings.decay_rate if is_step else None,
    )


def balanced_weights(labels: Level) -> np.ndarray:
    """How often each sample is to be drawn so that all classes come equally often."""
    if labels.is_multiple:
        raise ValueError("images of this data have several labels: their classes can't be balanced (data.balanced)")
    counts = count_labels(labels)
    return 1.0 / counts[labels.labels]


def count_workers(recipe: Recipe, device: torch.device) -> int:
    """Processes that read images."""
    return default_workers(device) if recipe.data.workers is None else recipe.data.workers


def default_workers(device: torch.device) -> int:
    """On a CPU none: its cores are busy with the model. Else one a core, up to eight."""
    return 0 if device.type == "cpu" else min(8, os.cpu_count() or 1)
