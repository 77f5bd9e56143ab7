"""How features are measured while they are learnt: by neighbours and probes where there are labels, else by spread."""

from collections.abc import Iterator
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
from vitrail.evaluation.probe_data import Labelled, label, measure_main
from vitrail.evaluation.spread import effective_rank, feature_deviation
from vitrail.models.contract import Model
from vitrail.tasks.contract import Evaluator, Loaders

if TYPE_CHECKING:
    from vitrail.tasks.unlabelled.task import UnlabelledTask


class FeatureEvaluator(Evaluator):
    """Features of `model.for_inference()`, of a fixed choice of training images and of images of val.

    Labels, where there are some, give `knn_top1` and now and then `probe_top1` (the mean average precision where images
    have several labels); all features together give `effective_rank` and `feature_deviation`. Every process computes a
    part of the features and gets all.
    """

    def __init__(self, task: "UnlabelledTask[Any]", loaders: Loaders) -> None:
        self.task, self.settings = task, task.recipe.watch
        self.batch_size = loaders.val.sampler.batch_size
        self.quarantine: Quarantine = loaders.val.quarantine
        self.train = self._choose(task.data.train, most=self.settings.train_images)
        self.val = self._choose(task.data.val, most=self.settings.val_images)
        self.labels = task.data.find_labels()

    def measure(self, model: nn.Module) -> Iterator[tuple[str, float]]:
        """Figures of the features as they are."""
        assert isinstance(model, Model), "what is trained answers for itself"
        trunk = model.for_inference()
        train, val = self._embed(trunk, self.train), self._embed(trunk, self.val)
        if self.labels is not None:
            yield from self._measure_labels(*self._label(train, val))
        vectors = torch.cat([train.vectors, val.vectors])
        yield "effective_rank", effective_rank(vectors)
        yield "feature_deviation", feature_deviation(vectors)

    def _choose(self, data: Dataset, *, most: int) -> Subset:
        """Images of a split that are looked at, the same in every evaluation."""
        order = Draws(self.task.recipe.seed, "watch", data.split).array().permutation(len(data))
        return Subset(data, np.sort(order[:most]))

    def _embed(self, trunk: Model, data: Subset) -> Embeddings:
        """The features of all images, in their order, in every process."""
        task, site = self.task, self.task.site
        loader = task.load_plainly(data, batch_size=self.batch_size, quarantine=self.quarantine)
        found = predict(
            Embedder(trunk),
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

    def _label(self, train: Embeddings, val: Embeddings) -> tuple[Labelled, Labelled]:
        assert self.labels is not None
        pairs = zip((train, val), (self.train, self.val), self.labels, strict=True)
        of_train, of_val = (
            label(found, Level(classes=level.classes, labels=level.labels[subset.indices]))
            for found, subset, level in pairs
        )
        return of_train, of_val

    def _measure_labels(self, train: Labelled, val: Labelled) -> Iterator[tuple[str, float]]:
        """What neighbours and a probe say about val."""
        if self.settings.knn:
            yield "knn_top1", measure_main(fit_neighbours(train).scores(val.vectors), val.targets)
        yield "probe_top1", measure_main(fit_ridge(train).scores(val.vectors), val.targets)
