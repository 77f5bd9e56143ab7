"""A recipe's training images as its run sees them: the same draws of seed, epoch, sample and step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from vitrail.data.augment import Augmentation
from vitrail.data.blend import Blend
from vitrail.data.checks import as_pair
from vitrail.data.contract import Dataset, ImageBatch, Sample
from vitrail.data.decode import OpenedImage, open_image
from vitrail.data.draws import Draws
from vitrail.data.geometry import PADDING, Crop
from vitrail.data.loader import draws_of, draws_of_fixed, fix_view
from vitrail.data.sampler import Sampler
from vitrail.data.samples import Crops, find_targets, read_views
from vitrail.data.single_operations import apply_singly
from vitrail.explain.canvas import Rectangle
from vitrail.settings.image_recipe import ImageRecipe
from vitrail.settings.images import BlendSettings

CROPS = {"resized": "random resized crop", "simple": "simple random crop", "evaluation": "centre crop"}


@dataclass(frozen=True, eq=False)
class MixedImage:
    """One image of a batch behind mixup and CutMix."""

    pixels: Tensor  # uint8 [3, height, width]
    weights: tuple[tuple[str, float], ...]  # classes and their parts of the target, the largest first


@dataclass(frozen=True, eq=False)
class TrainingViews:
    """What one stage of a run makes of its training images."""

    recipe: ImageRecipe
    dataset: Dataset
    level: str | None  # None: the data has no labels
    seed: int  # of the stage
    mixing: BlendSettings | None = None  # how images are mixed, where the task mixes any
    smoothing: float = 0.0  # of labels
    weights: np.ndarray | None = None  # how often each image is drawn, where they differ
    num_views: int = 1  # of an image that come together
    fixed_views: int | None = None  # how many views an image has in all; None: ever new ones
    crops_of_image: tuple[Augmentation, ...] = ()  # where each view has its own way to be made; else the recipe's

    @cached_property
    def blend(self) -> Blend | None:
        """What mixes a batch; None where nothing is mixed."""
        if self.mixing is None or self.level is None:
            return None
        return self.mixing.build(num_classes=len(self.dataset.level(self.level).classes), smoothing=self.smoothing)

    @cached_property
    def augmentation(self) -> Augmentation:
        """The augmentation of the recipe."""
        return self.recipe.augmentation.build(image_size=self.recipe.image_size)

    def pick(self, count: int) -> list[int]:
        """The first images of the first epoch."""
        order = self._sampler.order(0)
        return [int(index) for index in order[: min(count, len(order))]]

    def open(self, index: int) -> OpenedImage:
        """One image, decoded once for all that is made of it."""
        return open_image(open_image(self.dataset.read(index)).pixels().permute(1, 2, 0).contiguous().numpy())

    def name_class(self, index: int) -> str:
        """The class of an image, or its classes."""
        if self.level is None:
            return ""
        level = self.dataset.level(self.level)
        if level.is_multiple:
            return ", ".join(level.classes[label] for label in level.labels[index].nonzero()[0])
        return level.classes[int(level.labels[index])]

    def views(self, sample: Sample) -> list[Tensor]:
        """The views of a sample that come together, uint8 [3, height, width]: the pixels that the run is trained on."""
        if self.crops_of_image:
            return Crops(self.crops_of_image).make(self.dataset, sample, self._draws_of(sample))
        return read_views(self.dataset, sample.index, [self.augmentation] * self.num_views, self._draws_of(sample))

    def crops(self, image: OpenedImage, index: int, *, kind: str, count: int) -> list[Rectangle]:
        """Which parts of an image the first epochs show, in pixels of it, with that way to crop."""
        settings = self.recipe.augmentation.model_copy(update={"crop": kind})
        if kind == "simple" and min(as_pair(self.recipe.image_size)) <= PADDING:
            return []
        augmentation = replace(self.augmentation, settings=settings)
        size = (image.height, image.width)
        plans = (augmentation.plan(size, self._draws_of(Sample(epoch, index, 0))[0]) for epoch in range(count))
        return [shown_part(plan) for plan in plans]

    def crops_of_view(self, image: OpenedImage, index: int, *, view: int, count: int) -> list[Rectangle]:
        """Which parts of an image one of its views shows in the first epochs, where views are made in their own way."""
        size = (image.height, image.width)
        draws = (self._draws_of(Sample(epoch, index, 0))[view] for epoch in range(count))
        return [shown_part(self.crops_of_image[view].plan(size, own)) for own in draws]

    def single_operations(self, pixels: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Name and outcome of every operation that may happen behind the crop, each alone."""
        if self.crops_of_image:
            return iter(())
        return apply_singly(pixels, self.recipe.augmentation, seed=self.seed)

    def describe(self) -> str:
        """What is done to an image, in a sentence."""
        if self.crops_of_image:
            sides = " + ".join(
                f"{len(list(group))} of {' x '.join(map(str, side))}"
                for side, group in groupby(as_pair(one.image_size) for one in self.crops_of_image)
            )
            return (
                f"Crops of an image: {sides} px. Seed {self.seed}, epoch and image decide every view, as in training."
            )
        settings = self.recipe.augmentation
        size = self.recipe.image_size
        policy = settings.policy if isinstance(settings.policy, str) else ", ".join(settings.policy or ())
        parts = [
            f"{CROPS[settings.crop]} at {size if isinstance(size, int) else ' x '.join(map(str, size))} px",
            f"flips with probability {settings.flip:g}" if settings.flip else "",
            f"policy {policy}" if policy else "",
            f"colour jitter {settings.colour_jitter:g}" if settings.colour_jitter else "",
            f"erasing with probability {settings.erasing:g}" if settings.erasing else "",
            f"{settings.repeats} views of an image in a batch" if settings.repeats > 1 else "",
        ]
        return f"{', '.join(filter(None, parts))}. Seed {self.seed}, epoch and image decide every view, as in training."

    def batch(self, *, step: int, count: int) -> list[MixedImage]:
        """The first images of a step's batch as the model gets them, but for the normalisation; each view of them."""
        if self.blend is not None:
            return self.mixed(step=step, count=count)
        samples = self._samples(step)[: -(-count // self.num_views)]
        return [
            MixedImage(pixels, ((self.name_class(sample.index), 1.0),))
            for sample in samples
            for pixels in self.views(sample)
        ]

    def _samples(self, step: int) -> Sequence[Sample]:
        epoch, start = divmod(step, self._sampler.num_steps)
        return next(self._sampler.epoch(epoch, start_step=start))

    def mixed(self, *, step: int, count: int) -> list[MixedImage]:
        """The first images of a step's batch as the model gets them, but for the normalisation."""
        assert self.blend is not None, "there is nothing mixed to show"
        samples = self._samples(step)[:count]
        epoch = step // self._sampler.num_steps
        views = [self.views(sample)[0] for sample in samples]
        indices = torch.tensor([sample.index for sample in samples])
        batch = ImageBatch(torch.stack(views).float(), find_targets(self.dataset, indices, level=self.level), indices)
        batch = self.blend(batch, seed=self.seed, epoch=epoch, step=step)
        pixels = batch.images.round().clamp(0, 255).to(torch.uint8)
        return [MixedImage(one, self._weights(target)) for one, target in zip(pixels, batch.targets, strict=True)]

    def _weights(self, target: Tensor) -> tuple[tuple[str, float], ...]:
        classes = self.dataset.level(self.level).classes
        shares, labels = target.topk(min(2, len(classes)))
        least = target.min().item()  # what label smoothing gives to every class
        pairs = zip(labels.tolist(), shares.tolist(), strict=True)
        return tuple((classes[label], share) for label, share in pairs if share > least or label == labels[0])

    def _draws_of(self, sample: Sample) -> list[Draws]:
        if self.fixed_views is None:
            return draws_of(sample, seed=self.seed, num_views=self.num_views)
        repeats = self.recipe.augmentation.repeats
        return [draws_of_fixed(fix_view(sample, num_repeats=repeats, fixed_views=self.fixed_views))]

    @cached_property
    def _sampler(self) -> Sampler:
        recipe = self.recipe
        return Sampler(
            len(self.dataset),
            batch_size=recipe.batch_size,
            seed=self.seed,
            num_repeats=recipe.augmentation.repeats,
            keeps_pairs=self.blend is not None,
            groups=self.dataset.groups,
            weights=self.weights,
        )


def shown_part(crop: Crop) -> Rectangle:
    """The part of an image that a crop shows, in pixels of the image; what is mirrored lies beyond its border."""
    vertical, horizontal = crop.source.height / crop.resized[0], crop.source.width / crop.resized[1]
    return Rectangle(
        crop.source.top + crop.window.top * vertical,
        crop.source.left + crop.window.left * horizontal,
        crop.window.height * vertical,
        crop.window.width * horizontal,
    )
