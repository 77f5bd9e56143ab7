"""How embeddings are measured while they are learnt: by the nearest training images, as the memory has them."""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from vitrail.data.contract import ImageBatch
from vitrail.data.loader import Loader
from vitrail.evaluation.knn import THESIS_CHOICES, fit_neighbours
from vitrail.evaluation.predict import predict
from vitrail.evaluation.probe_data import Labelled
from vitrail.heads.embed import EmbeddingModel
from vitrail.tasks.classify.evaluator import ClassificationEvaluator
from vitrail.tasks.contract import Loaders
from vitrail.tasks.embed.memory import Memory

if TYPE_CHECKING:
    from vitrail.tasks.embed.task import Embed

_LEAST_PROBABILITY = 1e-6  # of a class that no neighbour has
_ROWS_OF_A_FILL = 65536  # embeddings that the processes exchange at a time


class NeighbourEvaluator(ClassificationEvaluator):
    """Accuracy of the classifier, or without one of the nearest training images."""

    def __init__(self, task: "Embed", loader: Loader[ImageBatch], *, memory: Memory | None) -> None:
        super().__init__(task, loader)
        self.memory = memory

    def answering_model(self, model: nn.Module) -> nn.Module:
        """What gives logits for images."""
        assert isinstance(model, EmbeddingModel), "embeddings are learnt with one"
        if self.memory is None or model.config.num_classes:
            return model
        data, device = self.task.data, self.task.site.device
        vectors = self.memory.state_dict()["vectors"].to(device)
        labels = torch.from_numpy(data.labels.labels.copy()).to(device)
        return NeighbourAnswers(model, Labelled(vectors, labels, data.num_classes))


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


def recompute(memory: Memory, task: "Embed", loaders: Loaders) -> None:
    """Fill the memory with embeddings of the training images, not augmented, by the weights as they are."""
    loader = task.make_plain_loader(
        "train", batch_size=loaders.val.sampler.batch_size, quarantine=loaders.train.quarantine
    )
    site = task.site
    vectors, indices = [torch.zeros(0, memory.dim)], [torch.zeros(0, dtype=torch.int64)]
    found = predict(
        _Projected(task.model),
        task.evaluation_batches(loader),
        normalize=task.normalize,
        device=site.device,
        dtype=site.dtype,
        num_lanes=site.num_lanes,
    )
    for embeddings, batch in found:
        vectors.append(embeddings.cpu())
        indices.append(batch.indices)
    # Every process makes the same number of exchanges, though one may have read fewer images.
    num_parts = -(-task.data.num_train // (site.world.num_ranks * _ROWS_OF_A_FILL))
    parts = zip(torch.cat(vectors).tensor_split(num_parts), torch.cat(indices).tensor_split(num_parts), strict=True)
    for part, places in parts:
        memory.fill(part.to(site.device), places)
