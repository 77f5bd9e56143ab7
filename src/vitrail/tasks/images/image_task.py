"""What every task on images shares, with labels or without: loaders, preparation of batches, examples."""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from vitrail.data.augment import EvaluationView
from vitrail.data.blend import Normalize
from vitrail.data.checks import as_pair
from vitrail.data.contract import Dataset, ImageBatch
from vitrail.data.loader import ImageLoader, Loader, check_workers
from vitrail.data.quarantine import Quarantine, QuarantineSettings
from vitrail.data.sampler import Sampler
from vitrail.evaluation.predict import autocast
from vitrail.inspection.branches import branch_ratios
from vitrail.models.contract import Model
from vitrail.settings.image_recipe import ImageRecipe
from vitrail.tasks.contract import B, Initial, Loaders, StepContext, Task
from vitrail.tasks.images.initial_weights import load_initial, make_backbone, take_layer_scales
from vitrail.tasks.images.labelled_data import LabelledData, balanced_weights, open_labelled
from vitrail.tasks.site import Site

_LARGEST_VAL_BATCH = 64  # of a process, unless the recipe says it
_MOST_READERS = 8  # processes that read images by default
_MANY_READINGS = 20_000  # of a run on a CPU that is long enough for a process of its own to read
_CORES_OF_A_READER = 4


class ImageData(Protocol):
    """The images that a run is trained and evaluated on."""

    @property
    def train(self) -> Dataset: ...

    @property
    def val(self) -> Dataset: ...

    @property
    def level(self) -> str | None:
        """The name of the labels that are read; None where there are none."""


class VisualTask(Task[B]):
    """A task that learns from images, with labels or without; what its batches hold is its own."""

    recipe: ImageRecipe
    data: ImageData
    model: Model
    normalize: Normalize
    has_new_head: bool = False  # whether there were weights to start from that have no classifier of these classes

    def __init__(self, recipe: ImageRecipe, site: Site) -> None:
        super().__init__(recipe, site)

    @property
    def fixed_views(self) -> int | None:
        """How many views an image has in all, each the same whenever it is seen; None: ever new ones."""
        return None

    def make_plain_model(self) -> Model:
        """What prepares images as the task's model does: its backbone without classes."""
        return make_backbone(self.recipe, num_classes=0)

    def load_initial(self, model: Model, source: str | Initial, *, description: Mapping[str, Any]) -> None:
        """Weights to start from; those of a classifier for other classes are left out."""
        classes = description.get("classes")
        if source == self.recipe.model.layer_scale_of:
            take_layer_scales(model, str(source), classes=classes)
        else:
            if isinstance(source, Initial) and source.description.get("task") != self.recipe.task:
                source = source.of_saved()
            resize = self.recipe.model.position_resize
            self.has_new_head = load_initial(model, source, classes=classes, interpolation=resize)

    def attach(self, model: Model) -> None:
        """Normalise images as the model wants them."""
        self.model = model
        self.normalize = Normalize(mean=model.preprocessing.mean, std=model.preprocessing.std)

    @property
    def evaluation_view(self) -> EvaluationView:
        """The transform of evaluation images."""
        return EvaluationView(
            image_size=self.recipe.evaluation.image_size or self.recipe.image_size,
            crop_ratio=self.model.preprocessing.crop_ratio,
            interpolation=self.model.preprocessing.interpolation,
        )

    def make_quarantine(self, listing: Path | None) -> Quarantine:
        """Where broken images of the run are noted."""
        return Quarantine(QuarantineSettings(listing=listing, max_share=self.recipe.data.max_broken))

    @property
    def val_batch(self) -> int:
        """Images of val that are evaluated at a time, over all processes."""
        recipe, ranks = self.recipe, self.site.world.ranks
        return recipe.evaluation.batch_size or min(recipe.batch_size, _LARGEST_VAL_BATCH * ranks.num_ranks)

    def count_readers(self) -> int:
        """Processes that read training images: by the recipe, by the device, or for a long run on several cores.

        A thread that reads and augments takes turns with those that compute, because Python runs one at a time.
        """
        recipe, site = self.recipe, self.site
        num_readings = recipe.steps * recipe.batch_size if recipe.steps else recipe.epochs * len(self.data.train)
        if recipe.data.workers is None and site.device.type == "cpu" and num_readings >= _MANY_READINGS:
            num_cores = site.num_lanes or torch.get_num_threads()
            return min(_MOST_READERS, math.ceil(num_cores / _CORES_OF_A_READER)) if num_cores > 1 else 0
        return count_workers(recipe, site.device)

    def make_plain_loader(self, split: str, *, batch_size: int, quarantine: Quarantine) -> ImageLoader:
        """Images of a split as they are, each once, in parts for the processes."""
        dataset = self.data.val if split == "val" else self.data.train
        return self.load_plainly(dataset, batch_size=batch_size, quarantine=quarantine)

    def load_plainly(self, dataset: Dataset, *, batch_size: int, quarantine: Quarantine) -> ImageLoader:
        """Images as they are, each once, in parts for the processes."""
        return ImageLoader(
            dataset,
            transform=self.evaluation_view,
            sampler=Sampler(len(dataset), batch_size=batch_size, is_training=False, ranks=self.site.world.ranks),
            level=self.data.level,
            num_workers=count_workers(self.recipe, self.site.device),
            quarantine=quarantine,
            pin_memory=self.site.device.type == "cuda",
        )

    def evaluation_batches(self, loader: Loader[ImageBatch]) -> Iterator[ImageBatch]:
        """The batches of a loader beside a bar; as many in every process where all must take part."""
        batches = self.site.reporter.evaluating(loader.epoch(0), len(loader))
        return self._in_step(batches) if self.site.is_sharded else batches

    def _in_step(self, batches: Iterator[ImageBatch]) -> Iterator[ImageBatch]:
        """A process that has no batch left gets an image with no index, whose answer is nobody's."""
        size = as_pair(self.recipe.evaluation.image_size or self.recipe.image_size)
        while True:
            batch = next(batches, None)
            [is_going_on] = self.site.world.any(batch is not None)
            if not is_going_on:
                return
            if batch is None:
                none = torch.zeros(0, dtype=torch.int64)
                batch = ImageBatch(torch.zeros(1, 3, *size, dtype=torch.uint8), none, none)
            yield batch

    def notes(self, loaders: Loaders) -> Iterator[Mapping[str, Any]]:
        """How much each residual branch adds, on a batch of val: CaiT's figure 4 over the epochs."""
        if not self.recipe.evaluation.layers:
            return
        batch = next(iter(loaders.val.epoch(0)))
        with torch.inference_mode(), autocast(self.site.device, self.site.dtype):
            ratios = branch_ratios(self.model, self.normalize(batch.images.to(self.site.device)))
        yield {"kind": "layers", "ratios": ratios}


class ImageTask(VisualTask[ImageBatch]):
    """A task whose batches are images with labels. It says `num_views` where an image comes in several views."""

    data: LabelledData

    @property
    def num_views(self) -> int:
        """Views of an image that come together."""
        return 1

    def open_data(self) -> LabelledData:
        """The labelled images of the recipe; what was done about a missing val is said once a run."""
        count_workers(self.recipe, self.site.device)  # more than can be are refused before anything is read
        data = open_labelled(self.recipe.data)
        if (remark := data.remark()) and self.site.stage == 0:
            self.site.reporter.say(remark)
        return data

    def make_loaders(self, *, num_parts: int, listing: Path | None) -> Loaders:
        """Augmented images of train, and those of val as they are."""
        recipe, ranks = self.recipe, self.site.world.ranks
        quarantine = self.make_quarantine(listing)
        train = ImageLoader(
            self.data.train,
            transform=recipe.augmentation.build(image_size=recipe.image_size),
            sampler=Sampler(
                len(self.data.train),
                batch_size=recipe.batch_size,
                seed=self.site.seed,
                ranks=ranks,
                num_micro_batches=num_parts,
                keeps_pairs=self.keeps_pairs,
                num_repeats=recipe.augmentation.repeats,
                groups=self.data.train.groups,
                weights=balanced_weights(self.data.labels) if recipe.data.balanced else None,
            ),
            level=self.data.level,
            num_views=self.num_views,
            fixed_views=self.fixed_views,
            num_workers=self.count_readers(),
            quarantine=quarantine,
            pin_memory=self.site.device.type == "cuda",
        )
        return Loaders(train, self.make_plain_loader("val", batch_size=self.val_batch, quarantine=quarantine))

    def prepare(self, batch: ImageBatch, at: StepContext) -> ImageBatch:
        """Images on the device and normalised."""
        pixels = batch.images.to(self.site.device, non_blocking=True)
        targets = batch.targets.to(self.site.device, non_blocking=True)
        return batch._replace(images=self.normalize(pixels), targets=targets)

    def example(self, count: int) -> ImageBatch:
        """A batch of noise, with labels drawn at random."""
        views, size = self.num_views, as_pair(self.recipe.image_size)
        images = torch.randint(256, (count * views, 3, *size), dtype=torch.uint8)
        images = images.contiguous(memory_format=torch.channels_last)
        if views > 1:
            images = images.unflatten(0, (count, views))
        return ImageBatch(images, torch.randint(self.data.num_classes, (count,)), torch.arange(count))

    def respond(self, model: nn.Module, batch: ImageBatch) -> Any:
        """The model's answers to the first view of each image."""
        return model(batch.images if batch.images.ndim == 4 else batch.images[:, 0])


def count_workers(recipe: ImageRecipe, device: torch.device) -> int:
    """How many processes read images, by the recipe or by the device."""
    return default_workers(device) if recipe.data.workers is None else check_workers(recipe.data.workers)


def default_workers(device: torch.device) -> int:
    """Processes that read images: none on a CPU, whose cores are busy; else one a core, up to eight."""
    return 0 if device.type == "cpu" else min(_MOST_READERS, os.cpu_count() or 1)


def require_classes(description: Mapping[str, Any]) -> Sequence[str]:
    """The classes in a task.json."""
    classes = description.get("classes")
    if not isinstance(classes, (list, tuple)):
        raise ValueError("the description of the data names no classes")
    return classes
