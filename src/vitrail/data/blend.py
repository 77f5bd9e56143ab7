"""What is done to a batch on the device: normalising, mixup, CutMix and label smoothing (DeiT, section 6)."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from vitrail.data.contract import ImageBatch
from vitrail.data.draws import Draws
from vitrail.settings.images import BlendSettings

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Normalize:
    """Bytes to numbers around zero: `(images / 255 - mean) / std` for every channel, as one multiply-add."""

    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std):
            raise ValueError(
                f"mean has {len(self.mean)} channels and std {len(self.std)}; give one of each per channel"
            )
        if not all(value > 0.0 for value in self.std):
            raise ValueError(f"std must be positive in every channel, not {self.std}")

    def __call__(self, images: Tensor, *, dtype: torch.dtype = torch.float32) -> Tensor:
        """Normalise uint8 [..., channels, height, width]; it keeps the memory format, and computes in float32."""
        if images.dtype != torch.uint8:
            raise ValueError(f"normalising takes uint8 images of 0 ... 255, not {images.dtype}")
        if images.ndim < 3 or images.shape[-3] != len(self.mean):
            raise ValueError(
                f"normalising for {len(self.mean)} channels takes images [..., {len(self.mean)}, height, width], "
                f"not {list(images.shape)}"
            )
        scale, shift = _scale_and_shift(self, images.device)
        normalized = torch.empty_like(images, dtype=dtype)
        return torch.addcmul(shift, images, scale, out=normalized)


@functools.lru_cache(maxsize=16)
def _scale_and_shift(normalize: Normalize, device: torch.device) -> tuple[Tensor, Tensor]:
    """The two tensors of the multiply-add, kept: a copy to the device in every step would make it wait."""
    mean, std = torch.tensor(normalize.mean, dtype=torch.float64), torch.tensor(normalize.std, dtype=torch.float64)
    scale, shift = 1.0 / (255.0 * std), -mean / std
    return scale.float().view(-1, 1, 1).to(device), shift.float().view(-1, 1, 1).to(device)


class CutMixBox(NamedTuple):
    """A part of every image: rows and columns."""

    rows: slice
    columns: slice


class Mixing(NamedTuple):
    """How a pair is mixed: `share` of each image is its partner's, as a box where there is one, else as a veil."""

    share: float
    box: CutMixBox | None


@dataclass(frozen=True)
class Blend:
    """Mixup (Zhang et al. 2018), CutMix (Yun et al. 2019) and label smoothing: a batch with soft targets.

    The image at place 2i is mixed with the one at 2i + 1, and the other way round; the last of an odd batch is left as
    it is. The papers take any partner in the batch; with neighbours, however the sampler cuts a batch between pairs,
    over processes or micro-batches, the same pairs are mixed in the same way: the draws are keyed by the step, by the
    step and the group, or by the step and the two samples, never by the part. A group is `group_size` places of the
    global batch, counted from its beginning: what one GPU had in the papers, whose code draws once on each.
    """

    settings: BlendSettings
    num_classes: int
    smoothing: float  # the part of every target that is spread over all classes

    def __post_init__(self) -> None:
        if self.num_classes < 1:
            raise ValueError(f"num_classes={self.num_classes}: there must be at least one class")
        if not 0.0 <= self.smoothing <= 1.0:
            raise ValueError(f"smoothing={self.smoothing}: it must lie between 0 and 1")

    def __call__(self, batch: ImageBatch, *, seed: int, epoch: int, step: int, first: int = 0) -> ImageBatch:
        """The batch with targets float32 [batch, classes]; its images, which must be normalised, change in place.

        A teacher's answers are mixed as the targets are. `first` is the place of the first image in the global batch.
        """
        images, targets = batch.images, self.soften(batch.targets)
        if not self.settings.is_mixing:
            return batch._replace(targets=targets)
        if not images.is_floating_point():
            raise ValueError(f"images of {images.dtype} cannot be mixed; normalise them first")
        key = (seed, epoch, step)
        share: float | Tensor
        if self.settings.per == "pair":
            share = self._mix_pairs(images, key=key, indices=batch.indices.tolist())
        elif self.settings.group_size is not None:
            share = self._mix_groups(images, key=key, first=first, size=self.settings.group_size)
        else:
            share = self._mix_batch(images, key=key)
        for soft in (targets, batch.answers):
            if soft is not None:
                _mix_neighbours(soft, share)
        return batch._replace(targets=targets)

    def soften(self, targets: Tensor) -> Tensor:
        """Class indices [batch] or several classes [batch, classes] as smoothed float32 targets [batch, classes]."""
        low = self.smoothing / self.num_classes
        high = 1.0 - self.smoothing + low
        if targets.ndim == 1:
            self._check_labels(targets)
            soft = torch.full((len(targets), self.num_classes), low, device=targets.device)
            return soft.scatter_(1, targets[:, None], high)
        if targets.shape[1] != self.num_classes:
            raise ValueError(f"the targets have {targets.shape[1]} classes, the blend has {self.num_classes}")
        return targets.float() * (high - low) + low

    def _check_labels(self, labels: Tensor) -> None:
        """Refuse labels out of range where they can be read at once; another device would have to be waited for."""
        if labels.device.type != "cpu":
            return
        wrong = labels[(labels < 0) | (labels >= self.num_classes)]
        if len(wrong):
            raise ValueError(
                f"a label is {wrong[0].item()}, but num_classes is {self.num_classes}: "
                f"labels go from 0 to {self.num_classes - 1}"
            )

    def draw(self, draws: Draws, *, height: int, width: int) -> Mixing:
        """How one pair, or one batch, of images of that size is mixed."""
        mixup, cutmix = self.settings.mixup, self.settings.cutmix
        is_mixed = draws.chance(self.settings.probability)
        is_cut = draws.chance(self.settings.switch if mixup > 0.0 and cutmix > 0.0 else float(cutmix > 0.0))
        alpha = cutmix if is_cut else mixup
        if not is_mixed:
            return Mixing(share=0.0, box=None)
        share = 1.0 - float(draws.array().beta(alpha, alpha))
        if not is_cut:
            return Mixing(share=share, box=None)
        side = math.sqrt(share)
        rows = _clipped_span(draws.integer(height), length=int(height * side), stop=height)
        columns = _clipped_span(draws.integer(width), length=int(width * side), stop=width)
        # A box that leaves the image is smaller than drawn: the targets follow its true area.
        area = (rows.stop - rows.start) * (columns.stop - columns.start)
        return Mixing(share=area / (height * width), box=CutMixBox(rows, columns))

    def _mix_batch(self, images: Tensor, *, key: tuple[int, ...]) -> float:
        """Mixes all pairs alike, and says the share of the partner."""
        mixing = self.draw(Draws(*key, "blend"), height=images.shape[-2], width=images.shape[-1])
        if mixing.box is None:
            _mix_neighbours(images, mixing.share)
        else:
            _swap_neighbours(images, mixing.box)
        return mixing.share

    def _mix_groups(self, images: Tensor, *, key: tuple[int, ...], first: int, size: int) -> Tensor:
        """Mixes the pairs of each group alike, and says the shares of the partners [pairs]."""
        shares: list[float] = []
        start = 0
        while start < len(images):
            group, place = divmod(first + start, size)
            part = images[start : start + size - place]
            shares += [self._mix_batch(part, key=(*key, group))] * (len(part) // 2)
            start += len(part)
        return _send(shares, images.device)

    def _mix_pairs(self, images: Tensor, *, key: tuple[int, ...], indices: Sequence[int]) -> Tensor:
        """Mixes each pair by the draws of its two indices, and says the shares of the partners [pairs]."""
        shares, veils = [], []
        for place in range(0, len(indices) - 1, 2):
            draws = Draws(*key, indices[place], indices[place + 1], "blend")
            mixing = self.draw(draws, height=images.shape[-2], width=images.shape[-1])
            if mixing.box is not None:
                _swap_neighbours(images[place : place + 2], mixing.box)
            shares.append(mixing.share)
            veils.append(mixing.share if mixing.box is None else 0.0)
        _mix_neighbours(images, _send(veils, images.device))
        return _send(shares, images.device)


def _send(numbers: Sequence[float], device: torch.device) -> Tensor:
    """Numbers as a tensor on the device, which the host does not wait for."""
    return torch.tensor(numbers, pin_memory=device.type == "cuda").to(device, non_blocking=True)


def _clipped_span(middle: int, *, length: int, stop: int) -> slice:
    return slice(max(middle - length // 2, 0), min(middle + length // 2, stop))


def _neighbours(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Views of the first and of the second members of all pairs."""
    even = len(tensor) // 2 * 2
    return tensor[0:even:2], tensor[1:even:2]


def _mix_neighbours(tensor: Tensor, share: float | Tensor) -> None:
    """Gives every row that share of its neighbour, in place; one share for all pairs, or one a pair."""
    if isinstance(share, Tensor):
        share = share.to(tensor.dtype).view(-1, *[1] * (tensor.ndim - 1))
    first, second = _neighbours(tensor)
    exchanged = (first - second).mul_(share)
    first -= exchanged
    second += exchanged


def _swap_neighbours(images: Tensor, box: CutMixBox) -> None:
    """Exchanges the box between the images of every pair, in place."""
    first, second = (part[..., box.rows, box.columns] for part in _neighbours(images))
    kept = first.clone()
    first.copy_(second)
    second.copy_(kept)
