"""What a detector says about images, batch by batch, in their own pixels."""

import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import nn

from vitrail.data.blend import Normalize
from vitrail.data.dense.contract import ObjectBatch
from vitrail.evaluation.lanes import Lanes
from vitrail.evaluation.predict import autocast
from vitrail.tasks.detect.found_objects import FoundObject, to_found


class ImageAnswer(NamedTuple):
    """What was found in one image."""

    place: int  # in the data set
    size: tuple[int, int]  # height and width as it is stored
    objects: tuple[FoundObject, ...]  # the most probable first


def prepare_batch(batch: ObjectBatch, *, normalize: Normalize, device: torch.device) -> ObjectBatch:
    """The batch on the device with images normalised; beyond them are zeros."""
    batch = batch.to(device, non_blocking=True)
    images = normalize(batch.images)
    for image, (height, width) in zip(images, batch.sizes.tolist(), strict=True):
        image[:, height:] = 0.0
        image[:, :, width:] = 0.0
    return batch._replace(images=images)


def ask(
    model: nn.Module,
    batches: Iterable[ObjectBatch],
    *,
    normalize: Normalize,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    num_lanes: int | None = None,
) -> Iterator[ImageAnswer]:
    """What is found in each image; a CPU computes `num_lanes` batches at a time, as `predict` does.

    The model is put into eval mode and back. A single batch is divided among torch's threads.
    """

    def answer(batch: ObjectBatch) -> list[ImageAnswer]:
        with torch.no_grad(), autocast(device, dtype):
            prepared = prepare_batch(batch, normalize=normalize, device=device)
            found = model(prepared.images, prepared.sizes)
        shown, sizes = (list(map(tuple, both.tolist())) for both in (batch.sizes, batch.original_sizes))
        return [
            ImageAnswer(index, size, to_found(one, shown=seen, size=size))
            for index, seen, size, one in zip(batch.indices.tolist(), shown, sizes, found, strict=True)
        ]

    iterator = iter(batches)
    first = list(itertools.islice(iterator, 2))
    if device.type != "cpu" or len(first) < 2 or getattr(model, "uses_all_cores", False):
        num_lanes = 1
    was_training = model.training
    model.eval()
    try:
        with Lanes(torch.get_num_threads() if num_lanes is None else num_lanes) as lanes:
            for answers in lanes.map(answer, itertools.chain(first, iterator)):
                yield from answers
    finally:
        model.train(was_training)
