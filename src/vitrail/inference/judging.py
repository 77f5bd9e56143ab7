"""How good answers to real images are: by labels or masks where these are known, else by how near the model is."""

from collections.abc import Mapping

from torch import Tensor
from torch.nn import functional

from vitrail.evaluation.segmentation import IGNORED, MaskMeter
from vitrail.inference.proof_images import ProofImages


class Judge:
    """Gives answers a number of percent; `wanted` is what the model itself says about the same images."""

    def __init__(self, wanted: Mapping[str, Tensor], images: ProofImages) -> None:
        self.name = "logits" if "logits" in wanted else "embedding"
        self.wanted = wanted[self.name]
        self.targets = None
        if images.targets is not None and self.name == "logits" and images.targets.ndim == self.wanted.ndim - 1:
            self.targets = images.targets if bool(_is_known(images.targets).any()) else None

    @property
    def measure(self) -> str:
        """What the number is."""
        if self.targets is not None:
            return "top-1" if self.targets.ndim == 1 else "mean IoU"
        return "agreement with the model" if self.name == "logits" else "cosine with the model"

    @property
    def num_known(self) -> int:
        """Images whose label is known, or whose mask is anywhere."""
        return 0 if self.targets is None else int(_is_known(self.targets).view(len(self.targets), -1).any(dim=1).sum())

    def __call__(self, answers: Mapping[str, Tensor]) -> float:
        """How good they are."""
        found = answers[self.name]
        if self.name == "embedding":
            return 100.0 * float(functional.cosine_similarity(found, self.wanted, dim=1).mean())
        if self.targets is None:
            return 100.0 * float((found.argmax(dim=1) == self.wanted.argmax(dim=1)).float().mean())
        if self.targets.ndim > 1:
            return _mean_iou(found, self.targets)
        is_known = _is_known(self.targets)
        return 100.0 * float((found.argmax(dim=1) == self.targets)[is_known].float().mean())


def _is_known(targets: Tensor) -> Tensor:
    """Labels are -1 where nobody knows them, and pixels of masks IGNORED."""
    return targets >= 0 if targets.ndim == 1 else targets != IGNORED


def _mean_iou(logits: Tensor, masks: Tensor) -> float:
    """Mean intersection over union, in percent, of logits on the grid of a head, enlarged image by image."""
    meter = MaskMeter(logits.shape[1])
    for one, mask in zip(logits, masks, strict=True):
        large = functional.interpolate(one[None], size=mask.shape, mode="bilinear", align_corners=False)
        meter.update(large[0].argmax(dim=0), mask)
    return dict(meter.results())["mean_iou"]
