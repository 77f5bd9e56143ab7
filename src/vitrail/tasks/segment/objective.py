"""The loss of segmentation: cross-entropy of every labelled pixel, and of the auxiliary head."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from vitrail.data.dense.contract import MaskBatch
from vitrail.heads.segment import Segmented
from vitrail.layers.pixel_loss import upsampled_cross_entropy
from vitrail.tasks.contract import Losses, Objective


@dataclass(frozen=True, kw_only=True)
class PixelCrossEntropy(Objective[MaskBatch]):
    """The sum over labelled pixels, divided by all pixels of the batch.

    All crops have one size, so the mean of the losses of equal parts of a batch is the loss of the whole, whatever part
    of each crop is labelled. It is also what the papers' framework computed.
    """

    is_divisible: ClassVar[bool] = True

    auxiliary: float = 0.4  # weight of the auxiliary head's loss
    weights: Tensor | None = None  # float32 [classes], where pixels of some classes weigh more than others

    def __call__(self, model: nn.Module, batch: MaskBatch) -> Losses:
        said: Segmented = model(batch.images)
        main = self.cost(said.logits, batch.masks)
        if said.auxiliary is None:
            return Losses(main, {"pixels": main.detach()})
        beside = self.cost(said.auxiliary, batch.masks)
        return Losses(main + self.auxiliary * beside, {"pixels": main.detach(), "auxiliary": beside.detach()})

    def cost(self, logits: Tensor, masks: Tensor) -> Tensor:
        """What logits on a coarser grid cost at the pixels of masks [batch, height, width]."""
        return upsampled_cross_entropy(logits, masks, weights=self.weights)
