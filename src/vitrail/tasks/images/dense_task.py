"""What tasks on marked images share: augmented images of train, and whole ones of val."""

from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from vitrail.data.contract import Dataset
from vitrail.data.dense.contract import DenseData
from vitrail.data.draws import seed_of_stage
from vitrail.data.loader import Loader, draws_of
from vitrail.data.quarantine import Quarantine
from vitrail.data.sampler import Sampler
from vitrail.data.samples import SampleMaker
from vitrail.settings.image_recipe import ImageRecipe
from vitrail.tasks.contract import B, Loaders
from vitrail.tasks.images.image_task import VisualTask, count_workers

Data = TypeVar("Data", bound=DenseData)
Made = TypeVar("Made")


class DenseTask(VisualTask[B], Generic[B, Data]):
    """A task whose images have masks or boxes: it says what is made of an image, to learn from and to be measured."""

    data: Data  # type: ignore[assignment]  # pixels and objects have one kind of labels: there are no levels
    whole_batch: ClassVar[int]  # whole images that a process evaluates at a time

    @abstractmethod
    def open_marked(self) -> Data:
        """The images of the recipe; what is wrong with them is told here."""

    @abstractmethod
    def make_samples(self) -> SampleMaker[Any, Any]:
        """What makes training samples."""

    @abstractmethod
    def make_whole(self) -> SampleMaker[Any, Any]:
        """What makes samples of whole images."""

    def open(self) -> Data:
        """The data; that val was taken from train is said once a run."""
        self.check()
        count_workers(self.recipe, self.site.device)  # more than can be are refused before anything is read
        self.data = self.open_marked()
        if self.data.is_held_out and self.site.stage == 0:
            share = self.recipe.data.val_share
            self.site.reporter.say(f"there is no val: {share:.0%} of train is set aside for it (data.val_share)")
        return self.data

    def make_loaders(self, *, num_parts: int, listing: Path | None) -> Loaders:
        """Augmented images of train, and whole ones of val."""
        recipe = self.recipe
        quarantine = self.make_quarantine(listing)
        train: Loader[Any] = Loader(
            self.data.train,
            make=self.make_samples(),
            sampler=Sampler(
                len(self.data.train),
                batch_size=recipe.batch_size,
                seed=self.site.seed,
                ranks=self.site.world.ranks,
                num_micro_batches=num_parts,
            ),
            num_workers=self.count_readers(),
            quarantine=quarantine,
            pin_memory=self.site.device.type == "cuda",
        )
        return Loaders(train, self.load_whole(self.data.val, quarantine=quarantine))

    def load_whole(self, dataset: Any, *, quarantine: Quarantine) -> Loader[B]:
        """Whole images, each once, in parts for the processes."""
        return Loader(
            dataset,
            make=self.make_whole(),
            sampler=Sampler(len(dataset), batch_size=self.val_batch, is_training=False, ranks=self.site.world.ranks),
            num_workers=count_workers(self.recipe, self.site.device),
            quarantine=quarantine,
            pin_memory=self.site.device.type == "cuda",
        )

    @property
    def val_batch(self) -> int:
        """Images of val that are evaluated at a time, over all processes."""
        recipe, ranks = self.recipe, self.site.world.ranks
        return recipe.evaluation.batch_size or min(recipe.batch_size, self.whole_batch * ranks.num_ranks)


def first_samples(
    maker: SampleMaker[Made, Any], dataset: Dataset, *, recipe: ImageRecipe, stage: int, count: int
) -> Iterator[Made]:
    """The first samples of the first step of a stage, by the draws of the run."""
    seed = seed_of_stage(recipe.seed, stage)
    batch = next(iter(Sampler(len(dataset), batch_size=recipe.batch_size, seed=seed).epoch(0)))
    for sample in batch[:count]:
        yield maker.make(dataset, sample, draws_of(sample, seed=seed))
