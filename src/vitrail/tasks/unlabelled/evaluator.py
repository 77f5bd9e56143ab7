"""How features are measured while they are learnt: by neighbours and probes where there are labels, else by spread."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from vitrail.data.contract import Dataset, Level
from vitrail.data.draws import Draws
from vitrail.data.quarantine import Quarantine
from vitrail.data.stored import Subset
from vitrail.evaluation.features import Embedder, Embeddings
from vitrail.evaluation.knn import fit_neighbours
from vitrail.evaluation.linear_probe import fit_ridge
from vitrail.evaluation.predict import predict
from vitrail.evaluation.probe_data import Fitted, Labelled, label, measure
from vitrail.evaluation.spread import effective_rank, feature_deviation
from vitrail.models.contract import Model
from vitrail.tasks.contract import Loaders
from vitrail.tasks.results import Evaluator
from vitrail.tasks.unlabelled.feature_pictures import FeaturePictures
from vitrail.tasks.unlabelled.unlabelled_data import is_labelled

if TYPE_CHECKING:
    from vitrail.tasks.unlabelled.task import UnlabelledTask


class FeatureEvaluator(Evaluator):
    """Features of `model.for_inference()`, of a fixed choice of training images and of images of val.

    Labels, where there are some, give `knn_top1` and now and then `probe_top1` (the mean average precision where images
    have several labels); all features together give `effective_rank` and `feature_deviation`. Every process computes a
    part of the features and gets all. In training the task judges by them whether it has collapsed, and pictures of
    neighbours and of where the model looks are left for the report.
    """

    def __init__(self, task: "UnlabelledTask[Any]", loaders: Loaders, *, is_training: bool = True) -> None:
        self.task, self.settings, self.is_training = task, task.recipe.watch, is_training
        self.batch_size = loaders.val.sampler.batch_size
        self.quarantine: Quarantine = loaders.val.quarantine
        data = task.data
        self.train = self._choose(data.train, data.train_labels, most=self.settings.train_images)
        self.val = self._choose(data.val, data.val_labels, most=self.settings.val_images)
        is_drawn = is_training and self.settings.pictures is not None
        self.pictures = FeaturePictures(task, self.train, self.val) if is_drawn else None
        self.epoch, self.is_last = 0.0, True

    def begin(self, *, epoch: float, is_last: bool) -> None:
        """Note when it is."""
        self.epoch, self.is_last = epoch, is_last

    def measure(self, model: nn.Module) -> Iterator[tuple[str, float]]:
        """Figures of the features as they are."""
        assert isinstance(model, Model), "what is trained answers for itself"
        trunk, is_main = model.for_inference(), self.task.site.world.is_main
        train, val = self._embed(trunk, self.train), self._embed(trunk, self.val)
        # The main process computes what all of them must get bit by bit.
        figures = self.task.site.world.share(dict(self._measure(train, val)) if is_main else None)
        yield from figures.items()
        if self.is_training:
            self.task.judge_features(figures["feature_deviation"], dim=train.vectors.shape[1], epoch=self.epoch)
        if self.pictures is not None and is_main:
            self.pictures.take(trunk, train, val, epoch=self.epoch)

    def write(self, folder: Path) -> None:
        """The pictures."""
        if self.pictures is not None:
            self.pictures.write(folder)

    def _choose(self, data: Dataset, labels: Level | None, *, most: int) -> Subset:
        """Images of a split that are looked at, the same in every evaluation; those with labels come first."""
        order = Draws(self.task.recipe.seed, "watch", data.split).array().permutation(len(data))
        if labels is not None:
            order = order[np.argsort(~is_labelled(labels)[order], kind="stable")]
        return Subset(data, np.sort(order[:most]))

    def _embed(self, trunk: Model, data: Subset) -> Embeddings:
        """The features of all images, in their order, in every process."""
        task, site = self.task, self.task.site
        loader = task.load_plainly(data, batch_size=self.batch_size, quarantine=self.quarantine)
        embedder = Embedder(trunk)
        embedder.reads_patches |= task.reads_patches and not trunk.embeds_patches
        found = predict(
            embedder,
            task.evaluation_batches(loader),
            normalize=task.normalize,
            device=site.device,
            dtype=site.dtype,
            num_lanes=site.num_lanes,
        )
        rows = [(vectors.cpu(), batch.indices) for vectors, batch in found]
        rows = [row for part in site.world.gather(rows) for row in part]
        if not rows:
            raise ValueError(f"none of the {len(data):,} images of {data.split} of {data.name} could be read")
        vectors, indices = (torch.cat(column) for column in zip(*rows, strict=True))
        order = indices.argsort()
        return Embeddings(vectors[order], indices[order])

    def _measure(self, train: Embeddings, val: Embeddings) -> Iterator[tuple[str, float]]:
        labelled = self._label(train, val)
        if labelled is not None and self.settings.knn:
            yield _judge("knn", fit_neighbours, *labelled)
        if labelled is not None and self._is_probe_due and _can_hold_out(labelled[0]):
            yield _judge("probe", fit_ridge, *labelled)
        vectors = torch.cat([train.vectors, val.vectors])
        yield "effective_rank", effective_rank(vectors)
        yield "feature_deviation", feature_deviation(vectors)

    @property
    def _is_probe_due(self) -> bool:
        """Whether a multiple of the probe's epochs was passed since the evaluation before, or it is the last one."""
        every = self.settings.probe_every
        if every is None or self.is_last:
            return every is not None
        before = self.epoch - self.task.recipe.evaluation.every
        return math.floor(self.epoch / every + 1e-6) > math.floor(before / every + 1e-6)

    def _label(self, train: Embeddings, val: Embeddings) -> tuple[Labelled, Labelled] | None:
        """Features with labels, to learn from and to be judged by; None where there are no labels.

        Where val alone has labels, every other image of it answers for those between.
        """
        data = self.task.data
        if data.val_labels is None:
            return None
        judged = label(val, _of_subset(data.val_labels, self.val))
        if data.train_labels is not None:
            return label(train, _of_subset(data.train_labels, self.train)), judged
        places = torch.arange(len(judged))
        return judged.choose(places[::2]), judged.choose(places[1::2])


def _of_subset(labels: Level, subset: Subset) -> Level:
    return Level(classes=labels.classes, labels=labels.labels[subset.indices])


def _can_hold_out(train: Labelled) -> bool:
    """Whether a class has two images, of which a probe holds out one."""
    return train.is_multiple or int(train.targets.bincount().max()) > 1


def _judge(name: str, fit: Callable[[Labelled], Fitted], train: Labelled, val: Labelled) -> tuple[str, float]:
    """How well what is fitted to train tells the classes of val: top-1, or the mean average precision."""
    figures = measure(fit(train).scores(val.vectors), val.targets)
    first = next(iter(figures))
    return f"{name}_{first}", figures[first]
