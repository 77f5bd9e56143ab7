"""From a data set to batches: read, decode, augment and stack, in this process or in workers, with the same result."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from vitrail.data.contract import Batch, Dataset, Sample
from vitrail.data.decode import BrokenImageError, OpenedImage, open_image
from vitrail.data.draws import Draws
from vitrail.data.quarantine import Problem, Quarantine
from vitrail.data.sampler import Sampler

# How many other samples are tried in the place of a broken one.
_MAX_REPLACEMENTS = 20


class Transform(Protocol):
    """From an image not decoded yet to uint8 pixels [3, height, width]; the draws decide every random choice."""

    def __call__(self, image: OpenedImage, draws: Draws) -> Tensor: ...


class Loader:
    """Batches of a data set, epoch by epoch.

    What a batch holds follows from the sampler's seed, the epoch and the step alone. Broken samples are reported to the
    quarantine; in training others take their place, also chosen by their key, in evaluation they are left out.

    With `fixed_views` every image has that many views, the same for every seed, which it is seen in by turns; a batch
    then says which they are.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        transform: Transform,
        sampler: Sampler,
        level: str | None = None,
        num_views: int = 1,
        fixed_views: int | None = None,
        num_workers: int = 0,
        quarantine: Quarantine | None = None,
        pin_memory: bool = False,
    ) -> None:
        if num_views < 1:
            raise ValueError(f"num_views must be at least 1, not {num_views}")
        if len(dataset) != sampler.num_samples:
            raise ValueError(f"the sampler is for {sampler.num_samples} samples, the data set has {len(dataset)}")
        if fixed_views is not None and (fixed_views < 1 or num_views > 1 or not sampler.is_training):
            raise ValueError("fixed views are for training with one view of an image at a time, and at least one")
        self.dataset, self.sampler, self.num_workers = dataset, sampler, num_workers
        self.classes = dataset.level(level).classes
        self.quarantine = quarantine or Quarantine()
        self._batches = _BatchesOfEpoch(sampler)
        self._loader = DataLoader(
            _Maker(
                dataset,
                transform=transform,
                sampler=sampler,
                level=level,
                num_views=num_views,
                fixed_views=fixed_views,
            ),
            batch_sampler=self._batches,
            collate_fn=keep_whole,
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
            worker_init_fn=use_one_thread,
            pin_memory=pin_memory,
        )

    def __len__(self) -> int:
        """Batches of an epoch."""
        return self.sampler.num_batches

    def epoch(self, number: int, *, start_step: int = 0) -> Iterator[Batch]:
        """The batches of an epoch; from `start_step` on when a run goes on in its middle."""
        self._batches.number, self._batches.start_step = number, start_step
        made: _Made | _Failure
        for made in self._loader:
            if isinstance(made, _Failure):
                raise ValueError(made.message)
            num_images = 0 if made.batch is None else len(made.batch.indices)
            self.quarantine.account(made.problems, num_readings=num_images + len(made.problems))
            if made.batch is not None:
                yield made.batch
        self.quarantine.judge()


class _Made(NamedTuple):
    """What a worker sends."""

    batch: Batch | None  # None where no sample of it could be read
    problems: list[Problem]


class _Failure(NamedTuple):
    """What a worker sends when it can't go on: an exception would arrive wrapped in the worker's traceback."""

    message: str


class _BatchesOfEpoch:
    """The sampler's batches of the epoch that is set; read in the main process, so workers need not be told."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler
        self.number = self.start_step = 0

    def __iter__(self) -> Iterator[list[Sample]]:
        return self.sampler.epoch(self.number, start_step=self.start_step)


class _Maker(TorchDataset):
    """Makes whole batches: what runs in the workers."""

    def __init__(
        self,
        dataset: Dataset,
        *,
        transform: Transform,
        sampler: Sampler,
        level: str | None,
        num_views: int,
        fixed_views: int | None,
    ) -> None:
        self.dataset, self.transform, self.num_views, self.fixed_views = dataset, transform, num_views, fixed_views
        self.seed, self.is_training, self.num_repeats = sampler.seed, sampler.is_training, sampler.num_repeats
        self.labels = dataset.level(level).labels

    def __getitems__(self, samples: Sequence[Sample]) -> _Made | _Failure:
        problems: list[Problem] = []
        indices: list[int] = []
        numbers: list[int] = []
        stack = None
        for sample in samples:
            made = self._make(sample, problems)
            if made is None and self.is_training:
                return self._give_up(sample, problems[-1])
            if made is None:  # an evaluation counts no image twice: a broken one is left out
                continue
            index, views = made
            for number, pixels in enumerate(views):
                if stack is None:  # channels last in memory, as the pixels are
                    shape = (len(samples), self.num_views, *pixels.shape[1:], pixels.shape[0])
                    stack = torch.empty(shape, dtype=torch.uint8).movedim(-1, 2)
                stack[len(indices), number] = pixels
            indices.append(index)
            numbers.append(self._fixed_view(sample))
        if stack is None:
            return _Made(None, problems)
        images = stack[: len(indices)] if self.num_views > 1 else stack[: len(indices), 0]
        seen = None if self.fixed_views is None else torch.tensor(numbers)
        return _Made(Batch(images, self._targets(indices), torch.tensor(indices), seen), problems)

    def _make(self, sample: Sample, problems: list[Problem]) -> tuple[int, list[Tensor]] | None:
        """The views of a sample or of the one that replaces it, with its index; None when none could be read."""
        index = sample.index
        replacements = Draws(self.seed, sample.epoch, sample.index, sample.view, "replacement")
        for _ in range(1 + (_MAX_REPLACEMENTS if self.is_training else 0)):
            try:
                image = open_image(self.dataset.read(index))
                if self.num_views > 1:  # decoded once for all of them
                    image = open_image(image.pixels().permute(1, 2, 0).numpy())
                return index, [self.transform(image, Draws(*key)) for key in self._keys(sample, index)]
            except (BrokenImageError, OSError) as error:  # whatever else goes wrong is a mistake of ours
                kind = "broken" if isinstance(error, BrokenImageError) else "unreadable"
                place = self.dataset.locate(index)
                problems.append(Problem(path=place, split=self.dataset.split, problem=kind, detail=str(error)))
                index = replacements.integer(len(self.dataset))
        return None

    def _keys(self, sample: Sample, index: int) -> list[tuple[int | str, ...]]:
        """What decides the random choices of each view."""
        if self.fixed_views is not None:
            return [("fixed view", index, self._fixed_view(sample))]
        first = sample.view * self.num_views
        return [(self.seed, sample.epoch, index, view) for view in range(first, first + self.num_views)]

    def _fixed_view(self, sample: Sample) -> int:
        """Which of its views an image is seen in: another one every time, until all have been."""
        return (sample.epoch * self.num_repeats + sample.view) % (self.fixed_views or 1)

    def _give_up(self, sample: Sample, last: Problem) -> _Failure:
        return _Failure(
            f"{self.dataset.locate(sample.index)} and {_MAX_REPLACEMENTS} others in its place could not be read "
            f"({last.detail}): check the disk, and the data with `vitrail check`"
        )

    def _targets(self, indices: list[int]) -> Tensor:
        targets = torch.from_numpy(np.ascontiguousarray(self.labels[indices]))
        return targets.float() if targets.ndim == 2 else targets


def keep_whole(made: Any) -> Any:
    """Whole batches are made already; what torch would collate passes through."""
    return made


def use_one_thread(worker: int) -> None:
    """Workers are many: each keeps to one core."""
    torch.set_num_threads(1)
