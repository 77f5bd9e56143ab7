"""Parts of torchvision's detector that answer in float32 where products are computed in less.

torchvision takes the type of a network's answers for anchors and boxes too. In bfloat16, with 8 binary digits, a place
beyond 256 pixels is known to two pixels: small boxes lose their area, and what is learnt of them is not finite.
"""

from torch import Tensor
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.mask_rcnn import MaskRCNNPredictor
from torchvision.models.detection.rpn import RPNHead


class Float32Anchors(AnchorGenerator):
    """torchvision's anchors, which have the type of the maps that they belong to."""

    def forward(self, image_list: ImageList, feature_maps: list[Tensor]) -> list[Tensor]:
        return super().forward(image_list, [one[:0].float() for one in feature_maps])  # it reads sizes and type alone


class Float32Proposals(RPNHead):
    """torchvision's scores and shifts of anchors."""

    def forward(self, x: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        scores, shifts = super().forward(x)
        return [one.float() for one in scores], [one.float() for one in shifts]


class Float32Boxes(FastRCNNPredictor):
    """torchvision's scores and shifts of boxes."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores, shifts = super().forward(x)
        return scores.float(), shifts.float()


class Float32Masks(MaskRCNNPredictor):
    """torchvision's masks of boxes."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).float()
