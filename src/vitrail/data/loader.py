"""From a data set to batches: read, decode, augment and stack, in this process or in workers, with the same result."""

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Generic, NamedTuple

import torch
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from vitrail.data.contract import Dataset, ImageBatch, Sample, SourceFailedError
from vitrail.data.decode import BrokenImageError, take_library_lines
from vitrail.data.draws import Draws
from vitrail.data.quarantine import Problem, Quarantine
from vitrail.data.sampler import Sampler
from vitrail.data.samples import Images, SampleMaker, SomeBatch, Transform

_LOGGER = logging.getLogger(__name__)
# How many other samples are tried in the place of a broken one.
_MAX_REPLACEMENTS = 20
# Workers that any machine may be asked for, and so many for each core where those are more.
_ALWAYS_ALLOWED, _WORKERS_PER_CORE = 64, 4


class Loader(Generic[SomeBatch]):
    """Batches of a data set, epoch by epoch; `make` says what a sample is made of it and what a batch of samples.

    What a batch holds follows from the sampler's seed, the epoch and the step alone. Broken samples are reported to the
    quarantine; in training others take their place, also chosen by their key, in evaluation they are left out.

    With `fixed_views` every sample has that many views, the same for every seed, which it is seen in by turns.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        make: SampleMaker[Any, SomeBatch],
        sampler: Sampler,
        fixed_views: int | None = None,
        num_workers: int = 0,
        quarantine: Quarantine | None = None,
        pin_memory: bool = False,
    ) -> None:
        if len(dataset) != sampler.num_samples:
            raise ValueError(f"the sampler is for {sampler.num_samples} samples, the data set has {len(dataset)}")
        if fixed_views is not None and (fixed_views < 1 or make.num_views > 1 or not sampler.is_training):
            raise ValueError("fixed views are for training with one view of an image at a time, and at least one")
        self.dataset, self.sampler, self.num_workers = dataset, sampler, num_workers
        self.quarantine = quarantine or Quarantine()
        self._told: set[str] = set()
        self._batches = _BatchesOfEpoch(sampler)
        self._loader = DataLoader(
            _BatchMaker(dataset, make=make, sampler=sampler, fixed_views=fixed_views),
            batch_sampler=self._batches,
            collate_fn=keep_whole,
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
            worker_init_fn=use_one_thread,
            pin_memory=pin_memory,
        )

    def __len__(self) -> int:
        """The number of batches of an epoch."""
        return self.sampler.num_batches

    def epoch(self, number: int, *, start_step: int = 0) -> Iterator[SomeBatch]:
        """The batches of an epoch; from `start_step` on when a run goes on in its middle."""
        self._batches.number, self._batches.start_step = number, start_step
        made: _Parcel | _Failure
        for made in self._loader:
            if isinstance(made, _Failure):
                raise ValueError(made.message)
            for remark in made.remarks:
                if remark not in self._told:
                    self._told.add(remark)
                    _LOGGER.info("%s", remark)
            num_samples = 0 if made.batch is None else made.batch.num_samples
            self.quarantine.account(made.problems, num_readings=num_samples + len(made.problems))
            if made.batch is not None:
                yield made.batch
        self.quarantine.judge()


class ImageLoader(Loader[ImageBatch]):
    """Batches of images with their labels; where the data set has no labels, every target is -1.

    With `fixed_views` a batch says which of its views each image is seen in.
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
        has_labels = level is not None or dataset.levels
        self.classes = dataset.level(level).classes if has_labels else ()
        super().__init__(
            dataset,
            make=Images(transform, level=level, num_views=num_views, notes_views=fixed_views is not None),
            sampler=sampler,
            fixed_views=fixed_views,
            num_workers=num_workers,
            quarantine=quarantine,
            pin_memory=pin_memory,
        )


class _Parcel(NamedTuple):
    """A batch as a worker sends it, with what could not be read."""

    batch: Any  # None where no sample of it could be read
    problems: list[Problem]
    remarks: list[str]  # what decoders print of files that they read


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


class _BatchMaker(TorchDataset):
    """Makes whole batches: what runs in the workers."""

    def __init__(
        self, dataset: Dataset, *, make: SampleMaker[Any, Any], sampler: Sampler, fixed_views: int | None
    ) -> None:
        self.dataset, self.make, self.fixed_views = dataset, make, fixed_views
        self.seed, self.is_training, self.num_repeats = sampler.seed, sampler.is_training, sampler.num_repeats

    def __getitems__(self, samples: Sequence[Sample]) -> _Parcel | _Failure:
        try:
            self.dataset.expect([sample.index for sample in samples])
            return self._make_batch(samples)
        except SourceFailedError as error:  # no sample's fault: nothing takes its place
            return _Failure(str(error))

    def _make_batch(self, samples: Sequence[Sample]) -> _Parcel | _Failure:
        problems: list[Problem] = []
        remarks: list[str] = []
        indices: list[int] = []
        made = []
        for sample in samples:
            found = self._make(sample, problems)
            remarks += (f"{self.dataset.locate(sample.index)}: {line}" for line in take_library_lines())
            if found is None and self.is_training:
                return self._give_up(sample, problems[-1])
            if found is None:  # an evaluation counts no sample twice: a broken one is left out
                continue
            indices.append(found[0])
            made.append(found[1])
        batch = self.make.collate(self.dataset, made, torch.tensor(indices)) if made else None
        return _Parcel(batch, problems, remarks)

    def _make(self, sample: Sample, problems: list[Problem]) -> tuple[int, Any] | None:
        """What is made of a sample or of the one that replaces it, after its index; None when none could be read."""
        index = sample.index
        replacements = Draws(self.seed, sample.epoch, sample.index, sample.view, "replacement")
        for _ in range(1 + (_MAX_REPLACEMENTS if self.is_training else 0)):
            try:
                return index, self._make_of(index, sample)
            except (BrokenImageError, OSError) as error:  # whatever else goes wrong is a mistake of ours
                kind = "broken" if isinstance(error, BrokenImageError) else "unreadable"
                place = self.dataset.locate(index)
                problems.append(Problem(path=place, split=self.dataset.split, problem=kind, detail=str(error)))
                index = replacements.integer(len(self.dataset))
        return None

    def _make_of(self, index: int, sample: Sample) -> Any:
        """A sample of that index in the place of `sample`, by the draws that its key decides."""
        seen = Sample(sample.epoch, index, sample.view)
        if self.fixed_views is not None:
            seen = fix_view(seen, num_repeats=self.num_repeats, fixed_views=self.fixed_views)
            return self.make.make(self.dataset, seen, [draws_of_fixed(seen)])
        return self.make.make(self.dataset, seen, draws_of(seen, seed=self.seed, num_views=self.make.num_views))

    def _give_up(self, sample: Sample, last: Problem) -> _Failure:
        return _Failure(
            f"{self.dataset.locate(sample.index)} and {_MAX_REPLACEMENTS} others in its place could not be read "
            f"({last.detail}): check the disk, and the data with `vitrail check`"
        )


def draws_of(sample: Sample, *, seed: int, num_views: int = 1) -> list[Draws]:
    """The draws that decide how a sample is augmented in a run of that seed, one for each view that comes with it."""
    first = sample.view * num_views
    return [Draws(seed, sample.epoch, sample.index, view) for view in range(first, first + num_views)]


def fix_view(sample: Sample, *, num_repeats: int, fixed_views: int) -> Sample:
    """The sample as one of the few views that an image has in all: another one every time, until all have been."""
    return replace(sample, view=(sample.epoch * num_repeats + sample.view) % fixed_views)


def draws_of_fixed(sample: Sample) -> Draws:
    """The draws that decide how a sample of fixed views is augmented, whatever the run's seed."""
    return Draws("fixed view", sample.index, sample.view)


def keep_whole(made: Any) -> Any:
    """Pass a batch through: torch would collate what is a whole batch already."""
    return made


def use_one_thread(worker: int) -> None:
    """Keep a worker to one core, because workers are many."""
    torch.set_num_threads(1)


def check_workers(number: int) -> int:
    """Refuse more processes that read images than could be of use on any machine like this one."""
    cores = os.cpu_count() or 1
    most = max(_ALWAYS_ALLOWED, _WORKERS_PER_CORE * cores)
    if number > most:
        raise ValueError(
            f"workers={number} on a machine of {cores} cores: at most {most} processes may read images here"
        )
    return number
