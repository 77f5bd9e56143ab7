"""A class that was held out of training, added to a gallery from five pictures: its recall before and after."""

from pathlib import Path

import numpy as np
import torch
from rich.console import Console

import vitrail
from vitrail.data.contract import Dataset
from vitrail.data.exclusion import leave_out
from vitrail.data.stored import Subset
from vitrail.inference.trained import Trained
from vitrail.recipes.small import small
from vitrail.settings.text import change, parse_assignments
from vitrail.training.loop.stages import train
from vitrail.training.parallel.distributed import World
from vitrail.training.runs.progress import Progress
from vitrail.training.runs.run_folder import RunFolder

NEW, COARSE = "ankle boot", "shoes"
PER_CLASS = 10  # pictures in the gallery of each class that is known


def list_images(folder: Path, *datasets: Dataset) -> Path:
    """A quarantine.csv with all images of the new class."""
    lines = [data.locate(int(index)) for data in datasets for index in places_of(data, NEW)]
    path = folder / "quarantine.csv"
    path.write_text("\n".join(["path", *lines]) + "\n")
    return path


def pictures_of(data: Dataset, places: np.ndarray) -> list[np.ndarray]:
    return [np.asarray(data.read(int(index))) for index in places]


def places_of(data: Dataset, name: str) -> np.ndarray:
    return np.flatnonzero(data.level().labels == data.level().classes.index(name))


def train_briefly(folder: Path, quarantine: Path) -> Trained:
    """The recipe `small` on the coarse labels, for about seventy steps."""
    words = ["data=fashion", "data.level=coarse", f"data.quarantine={quarantine}", "epochs=0.4"]
    recipe = change(small(), parse_assignments([*words, "regularisation.ema=0.9", "run.device=cpu"]))
    run = RunFolder(folder)
    progress = Progress(is_shown=False, console=Console(quiet=True))
    train(run.begin(recipe), run, world=World(), device=torch.device("cpu"), progress=progress)
    return vitrail.load_trained(run.path)


def test_five_pictures_of_a_class_that_training_never_saw_are_enough_to_find_it(tmp_path: Path) -> None:
    fashion, val = (vitrail.open_dataset("fashion", split) for split in ("train", "val"))
    quarantine = list_images(tmp_path, fashion, val)
    trained = train_briefly(tmp_path / "run", quarantine)
    known = leave_out(fashion, quarantine)
    few = [places_of(known, name)[:PER_CLASS] for name in known.level().classes if name != NEW]
    gallery, _ = vitrail.Gallery.build(
        trained,
        Subset(known, np.sort(np.concatenate(few))),
        folder=tmp_path / "gallery",
        held_out=leave_out(val, quarantine),
    )
    assert NEW not in gallery.counts()

    others = np.flatnonzero(val.level().labels != val.level().classes.index(NEW))[:300]
    boots, rest = (gallery.embed(pictures_of(val, places)) for places in (places_of(val, NEW), others))
    names = [val.level().classes[number] for number in val.level().labels[others]]

    def measure() -> tuple[float, float]:
        """The recall of the new class, and the accuracy on the others."""
        found = [answer.label for answer in gallery.classify_vectors(boots)]
        pairs = zip(gallery.classify_vectors(rest), names, strict=True)
        return found.count(NEW) / len(found), sum(answer.label == name for answer, name in pairs) / len(names)

    recall, accuracy = measure()
    assert recall == 0.0
    assert accuracy > 0.4
    five = pictures_of(fashion, places_of(fashion, NEW)[:5])
    assert gallery.add(NEW, five, coarse=COARSE).coarse == COARSE
    recall_after, accuracy_after = measure()
    assert recall_after > 0.3
    assert accuracy_after > accuracy - 0.08
