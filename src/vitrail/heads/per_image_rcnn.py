"""torchvision's region proposals and heads with losses of each image by itself, and draws that belong to a sample.

torchvision divides a loss by what was sampled in all images that go through the model together, and samples with
torch's generator. Here an image costs the same in any company: the mean over images is that of a batch in one piece,
in micro-batches or in several processes.
"""

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torchvision.models.detection.roi_heads import RoIHeads, fastrcnn_loss, maskrcnn_loss
from torchvision.models.detection.rpn import RegionProposalNetwork

from vitrail.layers.sample_draws import RandomLayer

Targets = Sequence[dict[str, Tensor]]  # of each image boxes [objects, 4], labels from 1 [objects], and maybe masks


class BalancedSampler(RandomLayer):
    """Chooses `count` anchors or boxes of each image, of which at most a share are positive.

    In the place of torchvision's sampler of the same name; what is chosen follows from the sample and the step.
    """

    def __init__(self, count: int, *, positive_share: float) -> None:
        super().__init__(rate=1.0)
        self.count, self.positive_share = count, positive_share
        self._first, self._num_rows = 0, 0  # the row of the first image that it is given, and rows in all; 0: all given

    @contextlib.contextmanager
    def at(self, row: int, *, num_rows: int) -> Iterator[None]:
        """Inside the block it is given the image of one row alone."""
        self._first, self._num_rows = row, num_rows
        try:
            yield
        finally:
            self._first, self._num_rows = 0, 0

    def forward(self, labels: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Masks of the positives and of the negatives that were chosen; labels are -1: left out, 0: negative."""
        positives, negatives = [], []
        for place, of_image in enumerate(labels):
            order = self._shuffle(len(of_image), row=self._first + place, num_rows=self._num_rows or len(labels))
            shuffled = of_image.to(order.device)[order]
            positive, negative = order[shuffled >= 1], order[shuffled == 0]
            num_positive = min(len(positive), int(self.count * self.positive_share))
            positives.append(_mask(positive[:num_positive], of_image))
            negatives.append(_mask(negative[: self.count - num_positive], of_image))
        return positives, negatives

    def _shuffle(self, count: int, *, row: int, num_rows: int) -> Tensor:
        if self.draws is None or not self.draws.knows(num_rows):
            return torch.randperm(count)
        return self.draws.numbers(self.number, row=row, num_rows=num_rows, count=count).argsort()

    def extra_repr(self) -> str:
        return f"count={self.count}, positive_share={self.positive_share:g}"


def _mask(places: Tensor, like: Tensor) -> Tensor:
    mask = torch.zeros(len(like), dtype=torch.bool, device=like.device)
    mask[places.to(like.device)] = True
    return mask


class PerImageProposals(RegionProposalNetwork):
    """torchvision's region proposal network; its losses are [images]."""

    fg_bg_sampler: BalancedSampler

    def compute_loss(
        self, objectness: Tensor, pred_bbox_deltas: Tensor, labels: list[Tensor], regression_targets: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        counts, num_images = [len(of_image) for of_image in labels], len(labels)
        parts = zip(objectness.split(counts), pred_bbox_deltas.split(counts), labels, regression_targets, strict=True)
        costs = []
        for row, (scores, deltas, of_image, wanted) in enumerate(parts):
            with self.fg_bg_sampler.at(row, num_rows=num_images):
                costs.append(torch.stack(super().compute_loss(scores, deltas, [of_image], [wanted])))
        both = torch.stack(costs)
        return both[:, 0], both[:, 1]


class PerImageHeads(RoIHeads):
    """torchvision's heads of boxes and masks; in training their losses are [images]."""

    def forward(
        self,
        features: dict[str, Tensor],
        proposals: list[Tensor],
        image_shapes: list[tuple[int, int]],
        targets: Targets | None = None,
    ) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
        if not self.training:
            return super().forward(features, proposals, image_shapes)
        assert targets is not None
        boxes, matched, labels, wanted = self.select_training_samples(proposals, targets)
        logits, deltas = self.box_predictor(self.box_head(self.box_roi_pool(features, boxes, image_shapes)))
        counts = [len(of_image) for of_image in boxes]
        parts = zip(logits.split(counts), deltas.split(counts), labels, wanted, strict=True)
        costs = [torch.stack(_box_costs(*part)) for part in parts]
        losses = dict(zip(("loss_classifier", "loss_box_reg"), torch.stack(costs).unbind(1), strict=True))
        if self.has_mask():
            is_object = [of_image > 0 for of_image in labels]
            boxes = [of_image[which] for of_image, which in zip(boxes, is_object, strict=True)]
            matched = [of_image[which] for of_image, which in zip(matched, is_object, strict=True)]
            masks = self.mask_predictor(self.mask_head(self.mask_roi_pool(features, boxes, image_shapes)))
            counts = [len(of_image) for of_image in boxes]
            parts = zip(masks.split(counts), boxes, targets, matched, strict=True)
            losses["loss_mask"] = torch.stack([_mask_cost(*part) for part in parts])
        return [], losses


def _box_costs(logits: Tensor, deltas: Tensor, labels: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    if not len(labels):  # a mean of nothing is no number
        return logits.sum(), deltas.sum()
    return fastrcnn_loss(logits, deltas, [labels], [wanted])


def _mask_cost(logits: Tensor, boxes: Tensor, target: dict[str, Tensor], matched: Tensor) -> Tensor:
    if not len(boxes):
        return logits.sum()
    return maskrcnn_loss(logits, [boxes], [target["masks"]], [target["labels"]], [matched])
