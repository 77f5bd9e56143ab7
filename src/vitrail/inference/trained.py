"""A trained model with all that is needed to use it: its classes and how images are prepared for it."""

import dataclasses
import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.data.augment import EvaluationView
from vitrail.data.blend import Normalize
from vitrail.data.contract import Batch, Dataset, Level
from vitrail.data.loader import Loader
from vitrail.data.quarantine import NotingQuarantine, Problem
from vitrail.data.sampler import Sampler
from vitrail.data.stored import FileDataset, printable
from vitrail.evaluation.predict import predict
from vitrail.models.contract import Model
from vitrail.settings.recipe import Recipe
from vitrail.settings.text import read_recipe, stage_of
from vitrail.training.loop import build
from vitrail.training.loop.ema import MovingAverage
from vitrail.training.runs.checkpoint import Checkpoints, load_checkpoint
from vitrail.training.runs.run_folder import RunFolder
from vitrail.weights import load_model
from vitrail.weights.hub import HUB_PREFIX, HubAddress, fetch
from vitrail.weights.pack import PACK_FILE, read_pack, unpack
from vitrail.weights.save import CONFIG_FILE

_LOGGER = logging.getLogger(__name__)
CLASSES_FILE = "classes.json"
ImageSize = int | tuple[int, int]


@dataclass(frozen=True)
class Coarse:
    """Classes that are coarser than those a model tells apart."""

    name: str
    classes: tuple[str, ...]
    of: tuple[int, ...]  # the coarse class of each class


@dataclass(frozen=True, eq=False)
class Trained:
    """A model in eval mode, on the CPU, and how it is used."""

    model: Model
    classes: tuple[str, ...] | None  # None: nobody has said what they are called
    coarse: Coarse | None
    view: EvaluationView
    normalize: Normalize
    level: str | None = None  # the name of the labels it was trained on, where data has several

    @property
    def num_classes(self) -> int:
        """Logits of an image."""
        return self.model.config.num_classes

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes; their numbers where they have no names."""
        return tuple(map(str, range(self.num_classes))) if self.classes is None else self.classes

    def require_classifier(self, label: str) -> None:
        """Refuse a model that answers with an embedding where classes are asked for."""
        if not self.num_classes:
            raise ValueError(
                f"{label} has no classifier, it gives embeddings: search with vitrail gallery, measure with vitrail "
                "retrieve or probe"
            )

    def of_trunk(self) -> "Trained":
        """The trunk of an embedding model, which has no classes; any other model as it is."""
        if self.model.trunk is self.model:
            return self
        return dataclasses.replace(self, model=self.model.trunk, classes=None, coarse=None)

    def seeing(self, *, image_size: ImageSize | None = None, crop_ratio: float | None = None) -> "Trained":
        """The same model for pictures of another size (positions are resized, thesis 3.4.5) or crop ratio."""
        view = dataclasses.replace(
            self.view,
            image_size=self.view.image_size if image_size is None else image_size,
            crop_ratio=self.view.crop_ratio if crop_ratio is None else crop_ratio,
        )
        return dataclasses.replace(self, view=view, model=self.model.resized(view.image_size))


def load_trained(source: str | os.PathLike[str], *, trunk: str | None = None) -> Trained:
    """The model of a run's folder, of a folder that `save_model` wrote, of a pack, or of `hf://owner/name`.

    A run that has not ended gives the weights of its newest checkpoint: their moving average where there is one.
    `trunk` is the place of a pack's trunk, where it is not the one that the pack names.
    """
    text = os.fspath(source)
    if (Path(text).expanduser() / PACK_FILE).is_file():
        return load_pack(trunk, text)
    if trunk is not None:
        raise ValueError(f"{text} is no pack: it has no trunk=")
    if text.startswith(HUB_PREFIX):
        return make_trained(load_model(text), fetch_description(text), label=text)
    folder = Path(text).expanduser()
    run = RunFolder(folder)
    if run.is_begun:
        return _load_run(run)
    if not folder.exists():
        raise ValueError(
            f"{text}: no such run or model; give a run's folder, a saved model's, a pack's, or hf://OWNER/NAME"
        )
    if not (folder / CONFIG_FILE).is_file():
        raise ValueError(
            f"{text} holds neither a run (recipe.yaml), a saved model ({CONFIG_FILE}) nor a pack ({PACK_FILE}); "
            "bare weights are read with vitrail.load_weights into a model, which vitrail.save_model makes a folder of"
        )
    return make_trained(load_model(folder), read_description(folder / CLASSES_FILE), label=text)


def load_pack(trunk: Model | str | os.PathLike[str] | None, pack: str | os.PathLike[str]) -> Trained:
    """The model of a folder that `vitrail pack` wrote, on its trunk.

    `trunk` is a loaded model of any number of classes and image size, or the place of its weights: a run, a saved
    model, a file, hf://OWNER/NAME; None: the place that the pack names. A loaded trunk is not copied and not changed:
    all models that are made of it read its memory, whatever they do not have of their own, and live beside each
    other. They are frozen and in eval mode. Another trunk than the one that the pack was made on is an error.
    """
    folder = Path(pack).expanduser()
    place = trunk if isinstance(trunk, Model) else build.locate_weights(str(trunk or read_pack(folder).trunk))
    return make_trained(unpack(place, folder), read_description(folder / CLASSES_FILE), label=str(folder))


def make_trained(
    model: Model, description: dict[str, Any] | None, *, label: str, image_size: ImageSize | None = None
) -> Trained:
    """A model with the content of its classes.json, for pictures of the model's own size unless another is given."""
    classes, coarse, level = None, None, None
    if description is not None:
        try:
            classes = tuple(map(str, description["classes"]))
            level = description.get("level")
            if description.get("coarse"):
                parts = description["coarse"]
                coarse = Coarse(parts["name"], tuple(parts["classes"]), tuple(parts["of"]))
        except (KeyError, TypeError):
            raise ValueError(f"{label}: {CLASSES_FILE} is incomplete: it must hold classes and coarse") from None
        if not model.config.num_classes:  # it was trained on these labels and answers with an embedding
            classes = coarse = None
        elif len(classes) != model.config.num_classes or (coarse is not None and len(coarse.of) != len(classes)):
            raise ValueError(
                f"{label}: {CLASSES_FILE} names {len(classes)} classes and the model has {model.config.num_classes}"
            )
    preprocessing = model.preprocessing
    view = EvaluationView(
        image_size=image_size or model.image_size,
        crop_ratio=preprocessing.crop_ratio,
        interpolation=preprocessing.interpolation,
    )
    return Trained(
        model=model.resized(view.image_size).eval(),
        classes=classes,
        coarse=coarse,
        view=view,
        normalize=Normalize(mean=preprocessing.mean, std=preprocessing.std),
        level=level,
    )


def read_description(path: Path) -> dict[str, Any] | None:
    """The content of a classes.json; None if there is none."""
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} can't be read ({error})") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold an object with the key classes")
    return content


def fetch_description(address: str) -> dict[str, Any] | None:
    """The classes.json of a model on the hub; None where it has none, or none can be had without a network."""
    try:
        return read_description(fetch(HubAddress.parse(address), files=(CLASSES_FILE,)))
    except ValueError as error:
        _LOGGER.info("the classes have no names: %s", error)
        return None


def match_classes(trained: Trained, classes: Sequence[str], *, name: str) -> Tensor | None:
    """For each class of the data called `name` the model's index of it; None where the indices are the same.

    They are matched by name, so that the data may have fewer of them or another order. Without names the data must have
    as many classes as the model.
    """
    if trained.classes is None and len(classes) != trained.num_classes:
        raise ValueError(
            f"{name} has {len(classes)} classes and the model {trained.num_classes}, which have no names "
            f"(there is no {CLASSES_FILE} beside it): they can't be matched"
        )
    if trained.classes is None or tuple(classes) == trained.classes:
        return None
    places = {known: place for place, known in enumerate(trained.classes)}
    unknown = [known for known in classes if known not in places]
    if unknown:
        some = ", ".join(map(repr, unknown[:3])) + (", ..." if len(unknown) > 3 else "")
        raise ValueError(
            f"the model does not know {len(unknown)} of the {len(classes)} classes of {name}: {some} "
            f"(its own begin with {', '.join(map(repr, trained.classes[:3]))})"
        )
    return torch.tensor([places[known] for known in classes])


def map_targets(targets: Tensor, places: Tensor | None, *, num_classes: int) -> Tensor:
    """Targets of data in the model's order of classes: indices [batch], negative without a label, or masks."""
    if places is None:
        return targets
    if targets.ndim == 1:
        return torch.where(targets < 0, targets, places[targets.clamp(min=0)])
    mapped = targets.new_zeros(len(targets), num_classes)
    mapped[:, places] = targets
    return mapped


def answer(
    trained: Trained,
    data: Dataset,
    *,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    level: str | None = None,
    batch_size: int = 64,
    workers: int = 0,
    note_unread: Callable[[Problem], object],
) -> Iterator[tuple[Tensor, Batch]]:
    """Logits in float32 [batch, classes] for all of the data, in its order, with the batch they belong to.

    An image that can't be read is left out and handed to `note_unread`, before the answers of its batch.
    """
    loader = Loader(
        data,
        transform=trained.view,
        sampler=Sampler(len(data), batch_size=batch_size, is_training=False),
        level=level,
        num_workers=workers,
        quarantine=NotingQuarantine(note_unread),
        pin_memory=device.type == "cuda",
    )
    model = trained.model.to(device)
    yield from predict(model, loader.epoch(0), normalize=trained.normalize, device=device, dtype=dtype)


class ImageFiles(FileDataset):
    """Files whose classes nobody knows, under the names they are given."""

    def __init__(self, paths: Sequence[str]) -> None:
        levels = {"label": Level(classes=("unknown",), labels=np.zeros(len(paths), dtype=np.int64))}
        super().__init__(name="images", split="files", root=Path(), paths=paths, levels=levels)

    def locate(self, index: int) -> str:
        """The path as it was given."""
        return printable(self.paths[index])


def _load_run(run: RunFolder) -> Trained:
    recipe = read_recipe(run.recipe_file)
    if (run.model / CONFIG_FILE).is_file():
        number, model, description = recipe.num_stages - 1, load_model(run.model), read_description(run.classes_file)
    else:
        number, model, description = _load_newest(run, recipe)
    stage = stage_of(recipe, number)
    size = stage.evaluation.image_size or stage.image_size
    return make_trained(model, description, label=str(run.path), image_size=size)


def _load_newest(run: RunFolder, recipe: Recipe) -> tuple[int, Model, dict[str, Any]]:
    """The stage, the model and the classes of the newest checkpoint."""
    newest = Checkpoints(run.checkpoints).newest()
    if newest is None:
        raise ValueError(f"{run.path} has neither a model nor a checkpoint yet: train on with vitrail train out=...")
    state = load_checkpoint(newest)
    stage = stage_of(recipe, state["stage"])
    stage = stage.model_copy(update={"model": stage.model.model_copy(update={"init": None})})
    model = build.make_model(stage, num_classes=len(state["data"]["classes"]))
    model.load_state_dict(state["model"])
    if state["average"] is not None:
        average = MovingAverage(model, decay=0.0)
        average.load_state_dict(state["average"])
        average.copy_to(model)
    _LOGGER.warning("%s has not ended: these are its weights after step %d", run.path, state["step"])
    return state["stage"], model.eval(), state["data"]
