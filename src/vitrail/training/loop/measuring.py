"""What a stage measures on val: the answers of its classifier, or without one those of the nearest training images."""

import contextlib
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from vitrail.data.checks import as_pair
from vitrail.data.loader import ImageLoader
from vitrail.data.sampler import Sampler
from vitrail.evaluation.average_precision import AveragePrecisionMeter
from vitrail.evaluation.classify import ClassificationMeter
from vitrail.evaluation.knn import THESIS_CHOICES, fit_neighbours
from vitrail.evaluation.predict import autocast, predict
from vitrail.evaluation.probe_data import Labelled
from vitrail.heads.embed import EmbeddingModel
from vitrail.inspection.branches import branch_ratios
from vitrail.tasks.embed.grafit import Grafit
from vitrail.tasks.embed.memory import Memory
from vitrail.training.loop import build
from vitrail.training.parallel.sharding import in_step, is_sharded
from vitrail.training.runs.predictions import answers

if TYPE_CHECKING:
    from vitrail.training.loop.stage import Stage

_LEAST_PROBABILITY = 1e-6  # of a class that no neighbour has
_ROWS_OF_A_FILL = 65536  # embeddings that the processes exchange at a time


def measure(stage: "Stage", *, is_final: bool) -> tuple[dict[str, Any], np.ndarray]:
    """Figures on val, with the moving average where there is one, and the columns of predictions.

    All processes take part and get the same. At the end of a stage the memory of embeddings, where there is one, is
    computed anew with the weights that are measured (thesis 2.3.1).
    """
    meter = ClassificationMeter(stage.num_classes, coarse_of=stage.data.coarse_of)
    precision = AveragePrecisionMeter(stage.num_classes) if stage.data.labels.is_multiple else None
    columns: list[np.ndarray] = []
    with _evaluated_weights(stage):
        batches = stage.progress.evaluating(stage.val_loader.epoch(0), len(stage.val_loader))
        if is_sharded(stage.model):
            size = as_pair(stage.recipe.evaluation.image_size or stage.recipe.image_size)
            batches = in_step(batches, world=stage.world, image_size=size)
        model = _answering_model(stage, is_final=is_final)
        found = predict(model, batches, normalize=stage.normalize, device=stage.device, dtype=stage.dtype)
        for logits, batch in found:
            if len(batch.indices) == 0:
                continue
            meter.update(logits, batch.targets)
            if precision is not None:
                precision.update(logits, batch.targets)
            columns.append(answers(logits, batch))
    stage.world.sum(meter.totals)
    parts = stage.world.gather(np.concatenate(columns, axis=1) if columns else np.zeros((5, 0)))
    results: dict[str, Any] = dict(meter.results())
    if precision is not None:
        results |= AveragePrecisionMeter.joined(stage.world.gather(precision)).results()
    return results, np.concatenate(parts, axis=1)


def refresh_memory(stage: "Stage") -> None:
    """Compute the memory of embeddings, where there is one, anew: for a stage that ends earlier than planned."""
    memory = _memory_of(stage)
    if memory is not None:
        with _evaluated_weights(stage):
            _recompute(memory, stage)


def measure_layers(stage: "Stage") -> dict[str, list[float | None]]:
    """How much each residual branch adds to what passes by it, on a batch of val: CaiT's figure 4 over the epochs."""
    batch = next(iter(stage.val_loader.epoch(0)))
    with torch.inference_mode(), autocast(stage.device, stage.dtype):
        return branch_ratios(stage.model, stage.normalize(batch.images.to(stage.device)))


@contextlib.contextmanager
def _evaluated_weights(stage: "Stage") -> Iterator[None]:
    """The model with its moving average, if it has one, and the same running statistics in every process."""
    with stage.average.applied_to(stage.model) if stage.average else contextlib.nullcontext():
        stage.world.share_buffers(stage.model)
        yield


def _memory_of(stage: "Stage") -> Memory | None:
    return stage.objective.memory if isinstance(stage.objective, Grafit) else None


def _answering_model(stage: "Stage", *, is_final: bool) -> nn.Module:
    """What gives logits for images."""
    memory = _memory_of(stage)
    if memory is None:
        return stage.model
    assert isinstance(stage.model, EmbeddingModel)
    if is_final:
        _recompute(memory, stage)
    if stage.model.config.num_classes:
        return stage.model
    vectors = memory.state_dict()["vectors"].to(stage.device)
    labels = torch.from_numpy(stage.data.labels.labels.copy()).to(stage.device)
    return NeighbourAnswers(stage.model, Labelled(vectors, labels, stage.num_classes))


class NeighbourAnswers(nn.Module):
    """An embedding model that answers as its nearest training images do (thesis, equation 2.6): log-probabilities."""

    def __init__(self, model: EmbeddingModel, train: Labelled) -> None:
        super().__init__()
        self.model = model
        self.training = model.training
        self.neighbours = fit_neighbours(train, choices=THESIS_CHOICES)

    def forward(self, images: Tensor) -> Tensor:  # [batch, 3, height, width] -> [batch, classes]
        vectors = self.model.project(images).float()
        with torch.autocast(vectors.device.type, enabled=False):
            return self.neighbours.scores(vectors).log_softmax(dim=1).clamp_min(math.log(_LEAST_PROBABILITY))


class _Projected(nn.Module):
    """An embedding model that gives what its memory keeps."""

    def __init__(self, model: EmbeddingModel) -> None:
        super().__init__()
        self.model = model
        self.training = model.training

    def forward(self, images: Tensor) -> Tensor:
        return functional.normalize(self.model.project(images).float(), dim=1)


def _recompute(memory: Memory, stage: "Stage") -> None:
    """Fill the memory with embeddings of the training images, not augmented, by the weights as they are."""
    assert isinstance(stage.model, EmbeddingModel)
    loader = ImageLoader(
        stage.data.train,
        transform=build.make_evaluation_view(stage.recipe, stage.model),
        sampler=Sampler(
            len(stage.data.train),
            batch_size=stage.val_loader.sampler.batch_size,
            is_training=False,
            ranks=stage.world.ranks,
        ),
        level=stage.data.level,
        num_workers=build.count_workers(stage.recipe, stage.device),
        quarantine=stage.loader.quarantine,
    )
    vectors, indices = [torch.zeros(0, memory.dim)], [torch.zeros(0, dtype=torch.int64)]
    batches = stage.progress.evaluating(loader.epoch(0), len(loader))
    found = predict(_Projected(stage.model), batches, normalize=stage.normalize, device=stage.device, dtype=stage.dtype)
    for embeddings, batch in found:
        vectors.append(embeddings.cpu())
        indices.append(batch.indices)
    # Every process makes the same number of exchanges, though one may have read fewer images.
    num_parts = -(-len(stage.data.train) // (stage.world.num_ranks * _ROWS_OF_A_FILL))
    parts = zip(torch.cat(vectors).tensor_split(num_parts), torch.cat(indices).tensor_split(num_parts), strict=True)
    for part, places in parts:
        memory.fill(part.to(stage.device), places)
