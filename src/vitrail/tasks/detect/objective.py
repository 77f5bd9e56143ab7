"""What the answers of a detector cost: the five losses of Mask R-CNN, or the four of Faster R-CNN."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from vitrail.data.dense.contract import ObjectBatch, Objects
from vitrail.tasks.contract import Losses, Objective

# torchvision's names of the losses, and ours.
PARTS = {
    "loss_objectness": "objectness",
    "loss_rpn_box_reg": "proposals",
    "loss_classifier": "classes",
    "loss_box_reg": "boxes",
    "loss_mask": "masks",
}


class DetectionLoss(Objective[ObjectBatch]):
    """The sum of the losses, each a mean over what was sampled in an image and then over images.

    torchvision's mean is over what was sampled in all images together. Both are the same where each image has the full
    number of samples, but for masks: here the masks of an image count as much as those of any other.
    """

    is_divisible: ClassVar[bool] = True

    def __call__(self, model: nn.Module, batch: ObjectBatch) -> Losses:
        targets = [to_target(objects) for objects in batch.objects]
        found = {name: loss.float().mean() for name, loss in model(batch.images, batch.sizes, targets).items()}
        total = torch.stack(list(found.values())).sum()
        return Losses(total, {PARTS[name]: loss.detach() for name, loss in found.items()})


def to_target(objects: Objects) -> dict[str, Tensor]:
    """Objects as torchvision takes them, whose classes count from 1; crowds, which are no single objects, are out."""
    single = objects.select(~objects.is_crowd)
    target = {"boxes": single.boxes, "labels": single.labels + 1}
    return target if single.masks is None else {**target, "masks": single.masks}
