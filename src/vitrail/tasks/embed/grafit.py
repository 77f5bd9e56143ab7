"""Grafit: coarse labels and instances together, and the losses it is compared with (thesis 2.2, 2.3.1, table 2.7)."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from vitrail.data.contract import ImageBatch
from vitrail.heads.embed import Embedded
from vitrail.tasks.classify.supervised import Supervised, check_targets
from vitrail.tasks.contract import Losses, Objective
from vitrail.tasks.embed.memory import Memory
from vitrail.tasks.embed.settings import EmbeddingTaskSettings
from vitrail.tasks.embed.target_network import TargetNetwork


class Grafit(Objective[ImageBatch]):
    """A weighted sum of the neighbour, instance, cross-entropy and triplet losses, for an `EmbeddingModel`.

    Images are [batch, 3, height, width] or, in several views, [batch, views, 3, height, width]. All views go through
    the model together. The losses on labels see the first view only, "in order to have the same training procedure as
    our supervised baseline" (2.5.1), and so does the memory. The means are over the images of a batch.
    """

    exchanges = True  # the memory is shared among the processes
    is_divisible = True

    def __init__(
        self,
        settings: EmbeddingTaskSettings,  # the weight of each loss in the sum, of which one of 0 is not computed
        *,
        memory: Memory | None = None,  # for the neighbour loss; kept up to date where there is one
        target: TargetNetwork | None = None,  # for the instance loss
        supervised: Supervised | None = None,  # how the cross-entropy is computed
    ) -> None:
        self.settings = settings
        self.memory, self.target = memory, target
        self.supervised = supervised or Supervised()
        if not any((settings.knn, settings.instance, settings.cross_entropy, settings.triplet)):
            raise ValueError("every weight of embedding is 0: there is nothing to learn")
        if self.settings.knn > 0.0 and memory is None:
            raise ValueError("the neighbour loss needs a memory of embeddings")
        if (self.settings.instance > 0.0) != (target is not None):
            raise ValueError("the instance loss and the target network go together: one is there without the other")
        self._seen: list[tuple[Tensor, Tensor]] = []  # embeddings and indices of the step's micro-batches so far

    def __call__(self, model: nn.Module, batch: ImageBatch) -> Losses:
        images = batch.images if batch.images.ndim == 5 else batch.images.unsqueeze(1)
        num_views = images.shape[1]
        if self.settings.compares_views and num_views < 2:
            raise ValueError("the instance and triplet losses compare views: the batch needs two of an image or more")
        images = images.flatten(0, 1)
        output = model(images)
        if not isinstance(output, Embedded):
            raise ValueError("the losses of embeddings need an EmbeddingModel in training mode")
        seen = None if self.memory is None else (output.projection[::num_views].detach(), batch.indices)
        parts: dict[str, Tensor] = {}
        if self.settings.knn > 0.0:
            parts["knn"] = self._knn(output, batch, num_views)
        if self.settings.instance > 0.0:
            parts["instance"] = self._instance(output, images, num_views)
        if self.settings.cross_entropy > 0.0:
            parts["cross_entropy"] = self._cross_entropy(output, batch, num_views)
        if self.settings.triplet > 0.0:
            projections = output.projection.float().unflatten(0, (-1, num_views))
            parts["triplet"] = triplet_loss(projections, margin=self.settings.margin)
        total = torch.stack([getattr(self.settings, name) * part for name, part in parts.items()]).sum()
        return Losses(total, {name: part.detach() for name, part in parts.items()}, seen)

    def note(self, seen: Any) -> None:
        """Remember the embeddings of a micro-batch."""
        if seen is not None:
            self._seen.append(seen)

    def _knn(self, output: Embedded, batch: ImageBatch, num_views: int) -> Tensor:
        assert self.memory is not None
        return self.memory.loss(
            output.projection[::num_views],
            labels=batch.targets,
            indices=batch.indices,
            temperature=self.settings.temperature,
        ).mean()

    def _instance(self, output: Embedded, images: Tensor, num_views: int) -> Tensor:
        assert self.target is not None
        if output.prediction is None:
            raise ValueError("the instance loss needs a predictor: create the EmbeddingModel with has_predictor=True")
        targets = self.target(images)
        predictions, targets = (rows.float().unflatten(0, (-1, num_views)) for rows in (output.prediction, targets))
        return instance_loss(predictions, targets)

    def _cross_entropy(self, output: Embedded, batch: ImageBatch, num_views: int) -> Tensor:
        if output.logits is None:
            raise ValueError("the cross-entropy needs a classifier: create the EmbeddingModel with num_classes")
        logits = output.logits[::num_views].float()
        check_targets(batch.targets, logits)
        return self.supervised.cost(logits, batch.targets)

    def after_step(self, model: nn.Module) -> None:
        """Move the target network towards the new weights, and the memory to the embeddings of the step."""
        if self.target is not None:
            self.target.update(model)
        if self.memory is not None and self._seen:
            embeddings, indices = zip(*self._seen, strict=True)
            self.memory.update(torch.cat(embeddings), torch.cat(indices))
        self.skip_step()

    def skip_step(self) -> None:
        """Forget the embeddings of a step that was not made."""
        self._seen.clear()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps between steps: the memory and the target network."""
        assert not self._seen, "a checkpoint belongs between steps"
        return {
            "memory": None if self.memory is None else self.memory.state_dict(),
            "target": None if self.target is None else self.target.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint of the same losses."""
        for name, part in (("memory", self.memory), ("target", self.target)):
            if (state[name] is None) != (part is None):
                raise ValueError(f"the checkpoint is of other losses: the {name} is in one of it and this run only")
            if part is not None:
                part.load_state_dict(state[name])
        self.skip_step()


def instance_loss(predictions: Tensor, targets: Tensor) -> Tensor:
    """Eq. 2.1: minus the mean cosine of a view's prediction with another view's target, both [batch, views, dim].

    The sum over pairs of different views is that over all pairs without that of each view with itself.
    """
    num_views = predictions.shape[1]
    predictions = functional.normalize(predictions, dim=2)
    targets = functional.normalize(targets, dim=2)
    of_all = (predictions.sum(dim=1) * targets.sum(dim=1)).sum(dim=1)
    of_itself = (predictions * targets).sum(dim=(1, 2))
    return -((of_all - of_itself) / (num_views * (num_views - 1))).mean()


def triplet_loss(embeddings: Tensor, *, margin: float = 0.2) -> Tensor:
    """How far a view is from being nearer to the other views of its image than to any other image's, by `margin`.

    The mean of max(0, margin + d(anchor, positive) - d(anchor, negative)) over the triplets of the batch that violate
    it, d being the squared distance of embeddings [batch, views, dim] at length 1. The labels are not used (2.2).
    """
    num_images, num_views, _ = embeddings.shape
    with torch.autocast(embeddings.device.type, enabled=False):
        vectors = functional.normalize(embeddings.flatten(0, 1), dim=1)
        distances = 2.0 - 2.0 * vectors @ vectors.T
    owners = torch.arange(num_images, device=vectors.device).repeat_interleave(num_views)
    is_same = owners.unsqueeze(1) == owners
    others = torch.arange(num_views, device=vectors.device)
    others = torch.stack([others[others != view] for view in range(num_views)])  # [views, views - 1]
    places = owners.unsqueeze(1) * num_views + others.repeat(num_images, 1)
    of_positives = distances.gather(1, places)  # [anchors, views - 1]
    of_negatives = distances.masked_fill(is_same, torch.inf)
    excess = (margin + of_positives.unsqueeze(2) - of_negatives.unsqueeze(1)).clamp_min(0.0)
    return excess.sum() / (excess > 0.0).sum().clamp_min(1)
