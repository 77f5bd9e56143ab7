"""A trained model with all that is needed to use it: its classes and how images are prepared for it."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.data.augment import EvaluationView
from vitrail.data.blend import Normalize
from vitrail.data.contract import Dataset, ImageBatch
from vitrail.data.loader import ImageLoader
from vitrail.data.quarantine import NotingQuarantine, Problem
from vitrail.data.sampler import Sampler
from vitrail.data.sources.given import AnyImage, GivenImages
from vitrail.evaluation.predict import predict
from vitrail.inference.description import SYNONYMS, TASK_FILE, fetch_description, read_description
from vitrail.inference.export_record import EXPORT_FILE, is_exported
from vitrail.inference.exported import KeepBytes, load_engine_model
from vitrail.models.contract import AnyModel, Model
from vitrail.settings.image_recipe import ImageRecipe
from vitrail.settings.own import is_own
from vitrail.settings.recipe import Recipe
from vitrail.settings.section import ImageSize
from vitrail.settings.text import read_recipe, stage_of
from vitrail.storage import content_of
from vitrail.tasks import TASKS, find_task
from vitrail.tasks.contract import Task
from vitrail.tasks.images.initial_weights import locate_weights
from vitrail.tasks.results import Answer
from vitrail.tasks.site import Site
from vitrail.training.loop.ema import MovingAverage
from vitrail.training.runs.checkpoint import Checkpoints, load_run_state
from vitrail.training.runs.checkpoint_content import REMEDY
from vitrail.training.runs.run_folder import RunFolder
from vitrail.weights.hub import HUB_PREFIX
from vitrail.weights.pack import PACK_FILE, read_pack, unpack
from vitrail.weights.save import CONFIG_FILE, load_any_model

_LOGGER = logging.getLogger(__name__)
_SHOWN = 80  # letters of a text that came from a file, in messages


@dataclass(frozen=True)
class Coarse:
    """Classes that are coarser than those a model tells apart."""

    name: str
    classes: tuple[str, ...]
    of: tuple[int, ...]  # the coarse class of each class


@dataclass(frozen=True, eq=False)
class Loaded:
    """A model in eval mode, on the CPU, whatever it takes, with what lies beside its weights."""

    model: AnyModel
    description: dict[str, Any] | None  # the content of its task.json
    label: str  # where it is, for messages
    stage: Recipe | None = None  # the last stage of the run that it is of

    @property
    def task(self) -> str:
        """What it has learnt."""
        return str((self.description or {}).get("task", "classify"))


@dataclass(frozen=True, eq=False, repr=False)
class Trained:
    """A model of images in eval mode, on the CPU, and how it is used."""

    model: Model
    classes: tuple[str, ...] | None  # None: nobody has said what they are called
    coarse: Coarse | None
    view: EvaluationView
    normalize: Normalize
    level: str | None = None  # the name of the labels it was trained on, where data has several
    task: str = "classify"  # what it has learnt
    uses_labels: bool = True  # whether it has learnt from labels at all
    is_multiple: bool = False  # whether an image may have several of its classes, or none
    synonyms: Mapping[str, int] = field(
        default_factory=dict
    )  # indices of classes by other names, such as WordNet's ids
    description: Mapping[str, Any] = field(default_factory=dict)  # the content of task.json

    @property
    def num_classes(self) -> int:
        """Logits of an image."""
        return self.model.config.num_classes

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes; their numbers where they have no names."""
        return tuple(map(str, range(self.num_classes))) if self.classes is None else self.classes

    def require_classifier(self, label: str, *, of_images: bool = False) -> None:
        """Refuse a model that answers with an embedding where classes are asked for, or those of whole images."""
        if of_images and self.model.is_dense:
            raise ValueError(f"{label} has learnt the task {self.task}: it says nothing about an image as a whole")
        if not self.num_classes:
            raise ValueError(find_task(self.task).refusal_of_classes(label))

    def predict(
        self,
        images: AnyImage | Sequence[AnyImage],
        *,
        top: int = 5,
        batch_size: int = 32,
        device: str = "auto",
    ) -> list[Answer] | Answer:
        """What the model says about images: paths, arrays, pictures of Pillow or tensors; of one alone its answer.

        Tensors are [3, height, width] of bytes or of 0 ... 1. They are resized, cropped and normalised as files are. An
        image that can't be read is a ValueError.
        """
        from vitrail.inference.passes import Passes

        given, is_several = _as_several(images)
        if not given:
            return []
        if top < 1:
            raise ValueError(f"top must be at least 1, not {top}")
        self.require_classifier("the model")
        data = GivenImages(given)
        passes = Passes(data, None, {"device": device, "batch_size": batch_size, "workers": 0})
        found = find_task(self.task).answer(self, data, passes=passes, top=top, note_unread=_refuse)
        answers = list(found)
        return answers if is_several else answers[0]

    def embed(
        self, images: AnyImage | Sequence[AnyImage], *, batch_size: int = 32, device: str = "auto"
    ) -> Tensor:  # [images, dim]; of one alone [dim]
        """The embeddings of images, float32, as galleries and probes read them; what `predict` takes is taken here."""
        from vitrail.evaluation.features import embed
        from vitrail.inference.passes import Passes, make_extraction

        given, is_several = _as_several(images)
        data = GivenImages(given)
        passes = Passes(data, None, {"device": device, "batch_size": batch_size, "workers": 0})
        found = embed(make_extraction(self, passes), data)
        for problem in found.unread:
            _refuse(problem)
        return found.vectors if is_several else found.vectors[0]

    def __repr__(self) -> str:
        size = self.view.image_size
        classes = f"{self.num_classes} classes" if self.num_classes else "embeddings"
        return f"Trained({self.model.name or type(self.model).__name__}, task {self.task}, {classes}, {size} px)"

    def of_trunk(self) -> "Trained":
        """The trunk of an embedding model, which has no classes; any other model as it is."""
        if self.model.trunk is self.model:
            return self
        return replace(self, model=self.model.trunk, classes=None, coarse=None)

    def seeing(self, *, image_size: ImageSize | None = None, crop_ratio: float | None = None) -> "Trained":
        """The same model for pictures of another size (positions are resized, thesis 3.4.5) or crop ratio."""
        view = replace(
            self.view,
            image_size=self.view.image_size if image_size is None else image_size,
            crop_ratio=self.view.crop_ratio if crop_ratio is None else crop_ratio,
        )
        return replace(self, view=view, model=self.model.resized(view.image_size))


def load_trained(source: str | os.PathLike[str], *, trunk: str | None = None) -> Trained:
    """The model of a run, of a folder that `save_model` or `vitrail export` wrote, of a pack, of the hub, or by name.

    Names are those of published weights, such as `deit_tiny`, `cait_s24@384`, `deit3_base@384,in22k` or
    `timm/resnet50.a1_in1k`, or of a model with a file of weights, `deit_tiny init=FILE`; a folder that is there goes
    before a name.

    A run that has not ended gives the weights of its newest checkpoint: their moving average where there is one.
    `trunk` is the place of a pack's trunk, where it is not the one that the pack names.
    """
    trained = load_whatever(source, trunk=trunk)
    if isinstance(trained, Loaded):
        raise ValueError(
            f"{trained.label} holds a model of the task {trained.task}, which takes {trained.model.takes} and no images"
        )
    return trained


def load_whatever(source: str | os.PathLike[str], *, trunk: str | None = None) -> "Trained | Loaded":
    """The model of a source of `load_trained`; one that takes no images with what lies beside it, and no more."""
    text = os.fspath(source)
    folder = Path(text).expanduser()
    if (folder / PACK_FILE).is_file():
        return load_pack(trunk, text)
    if trunk is not None:
        raise ValueError(f"{text} is no pack: it has no trunk=")
    if is_exported(folder):
        return load_exported(folder)
    if not text.startswith(HUB_PREFIX) and not folder.exists():
        from vitrail.inference.named import load_by_name, read_name  # which makes what this file describes

        return load_by_name(read_name(text))
    loaded = load_parts(text)
    if not isinstance(loaded.model, Model):
        return loaded
    size = None
    if isinstance(loaded.stage, ImageRecipe):
        size = loaded.stage.evaluation.image_size or loaded.stage.image_size
    return make_trained(loaded.model, loaded.description, label=loaded.label, image_size=size)


def load_exported(folder: str | os.PathLike[str], *, threads: int | None = None) -> Trained:
    """The model of a folder that `vitrail export` wrote, which its engine computes.

    `threads` are those of one call; None: those that the export names, or as the engine thinks best.
    """
    place = Path(folder).expanduser()
    model, description = load_engine_model(place, threads=threads), read_description(place)
    trained = make_trained(model, description, label=str(folder))
    with content_of(f"{folder}: {TASK_FILE}", remedy="export the model again"):
        synonyms = {str(name): int(place) for name, place in (description or {}).get(SYNONYMS, {}).items()}
        if not all(0 <= place < trained.num_classes for place in synonyms.values()):
            raise ValueError(f"{SYNONYMS} names classes that there are not")
    if trained.model.is_dense:  # its images are resized and padded after they are normalised
        return replace(trained, synonyms=synonyms)
    normalize = KeepBytes(mean=trained.normalize.mean, std=trained.normalize.std)
    return replace(trained, synonyms=synonyms, normalize=normalize)


def load_parts(text: str) -> Loaded:
    """The model of a run's folder, of one that `save_model` wrote or of the hub, and what lies beside it."""
    if text.startswith(HUB_PREFIX):
        return Loaded(load_any_model(text), fetch_description(text), text)
    folder = Path(text).expanduser()
    run = RunFolder(folder)
    if run.is_begun:
        return _load_run(run)
    if not (folder / CONFIG_FILE).is_file():
        raise ValueError(
            f"{text} holds neither a run (recipe.yaml), a saved model ({CONFIG_FILE}), a pack ({PACK_FILE}) nor an "
            f"export ({EXPORT_FILE}); "
            "bare weights are read with vitrail.load_weights into a model, which vitrail.save_model makes a folder of"
        )
    return Loaded(load_any_model(folder), read_description(folder), text)


def load_pack(trunk: Model | str | os.PathLike[str] | None, pack: str | os.PathLike[str]) -> Trained:
    """The model of a folder that `vitrail pack` wrote, on its trunk.

    `trunk` is a loaded model of any number of classes and image size, or the place of its weights: a run, a saved
    model, a file, hf://OWNER/NAME; None: the place that the pack names. A loaded trunk is not copied and not changed:
    all models that are made of it read its memory, whatever they do not have of their own, and live beside each
    other. They are frozen and in eval mode. Another trunk than the one that the pack was made on is an error.
    """
    folder = Path(pack).expanduser()
    place = trunk if isinstance(trunk, Model) else locate_weights(str(trunk or read_pack(folder).trunk))
    return make_trained(unpack(place, folder), read_description(folder), label=str(folder))


def make_trained(
    model: Model, description: dict[str, Any] | None, *, label: str, image_size: ImageSize | None = None
) -> Trained:
    """A model with the content of its task.json, for pictures of the model's own size unless another is given."""
    classes, coarse, level = None, None, None
    if description is not None:
        with content_of(f"{label}: {TASK_FILE}", remedy="restore it, or delete it to do without names of classes"):
            # A task that names itself may have no classes; a file of before always has.
            named = description.get("classes")
            if named is None and "task" not in description:
                raise ValueError("it is incomplete, without classes")
            classes = None if named is None else _read_names(named)
            level = description.get("level")
            if level is not None and not isinstance(level, str):
                raise ValueError(f"level is no name: {level!r}")
            task = description.get("task", "classify")
            if not isinstance(task, str) or not (task in TASKS or is_own(task)):
                raise ValueError(f"there is no task {str(task)[:_SHOWN]!r}")
            if description.get("coarse"):
                coarse = _read_coarse(description["coarse"])
        if not model.config.num_classes:  # it was trained on these labels and answers with an embedding
            classes = coarse = None
        elif classes is not None and (
            len(classes) != model.config.num_classes or (coarse is not None and len(coarse.of) != len(classes))
        ):
            raise ValueError(
                f"{label}: {TASK_FILE} names {len(classes)} classes and the model has {model.config.num_classes}"
            )
    preprocessing = model.preprocessing
    with content_of(f"{label}: the preprocessing in {CONFIG_FILE}", remedy="save the model again"):
        view = EvaluationView(
            image_size=image_size or model.image_size,
            crop_ratio=preprocessing.crop_ratio,
            interpolation=preprocessing.interpolation,
        )
        normalize = Normalize(mean=preprocessing.mean, std=preprocessing.std)
    model = model.resized(view.image_size).eval()
    model.reads_patches = model.class_stage is not None and bool((description or {}).get("reads_patches"))
    return Trained(
        model=model,
        classes=classes,
        coarse=coarse,
        view=view,
        normalize=normalize,
        level=level,
        task=str((description or {}).get("task", "classify")),
        uses_labels=bool((description or {}).get("uses_labels", True)),
        is_multiple=bool((description or {}).get("is_multiple", False)),
        description=description or {},
    )


def _read_names(names: object) -> tuple[str, ...]:
    if not isinstance(names, (list, tuple)) or not all(type(name) in (str, int) for name in names):
        raise ValueError("classes is no list of names")
    return tuple(map(str, names))


def _read_coarse(parts: Any) -> Coarse:
    """The coarser classes in a task.json."""
    names, of = _read_names(parts["classes"]), tuple(parts["of"])
    if not all(type(place) is int and 0 <= place < len(names) for place in of):
        raise ValueError("coarse gives classes of that are not in its list")
    return Coarse(str(parts["name"]), names, of)


def _as_several(images: AnyImage | Sequence[AnyImage]) -> tuple[list[Any], bool]:
    """Images as a list, and whether they were several."""
    is_several = isinstance(images, (list, tuple)) or (isinstance(images, Tensor) and images.ndim == 4)
    return (list(images), True) if is_several else ([images], False)  # type: ignore[arg-type]


def _refuse(problem: Problem) -> None:
    raise ValueError(f"{problem.path}: {problem.detail}")


def answer(
    trained: Trained,
    data: Dataset,
    *,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    level: str | None = None,
    sampler: Sampler,
    workers: int = 0,
    note_unread: Callable[[Problem], object],
) -> Iterator[tuple[Tensor, ImageBatch]]:
    """Logits in float32 [batch, classes] for the samples of a sampler, in its order, with the batch they belong to.

    An image that can't be read is left out and handed to `note_unread`, before the answers of its batch.
    """
    loader = ImageLoader(
        data,
        transform=trained.view,
        sampler=sampler,
        level=level,
        num_workers=workers,
        quarantine=NotingQuarantine(note_unread),
        pin_memory=device.type == "cuda",
    )
    model = trained.model.to(device)
    yield from predict(model, loader.epoch(0), normalize=trained.normalize, device=device, dtype=dtype)


def _load_run(run: RunFolder) -> Loaded:
    recipe = read_recipe(run.recipe_file)
    description: dict[str, Any] | None
    if (run.model / CONFIG_FILE).is_file():
        number, model = recipe.num_stages - 1, load_any_model(run.model)
        description = read_description(run.path)
    else:
        number, model, description = _load_newest(run, recipe)
    stage = stage_of(recipe, number)
    if description is not None:
        description = _task_of(stage).describe(description)
    return Loaded(model, description, str(run.path), stage)


def _load_newest(run: RunFolder, recipe: Recipe) -> tuple[int, AnyModel, dict[str, Any]]:
    """The stage, the model and the description of the newest checkpoint."""
    newest = Checkpoints(run.checkpoints).newest()
    if newest is None:
        raise ValueError(f"{run.path} has neither a model nor a checkpoint yet: train on with vitrail train out=...")
    state = load_run_state(newest, num_stages=recipe.num_stages)
    with content_of(newest, remedy=REMEDY):
        stage = stage_of(recipe, state["stage"])
        if (task := state["data"].get("task", stage.task)) != stage.task:
            raise ValueError(f"it is of the task {task!r}, and the recipe of {stage.task}")
        model = _task_of(stage).make_model(state["data"])
        model.load_state_dict(state["model"])
        if state["average"] is not None:
            average = MovingAverage(model, decay=0.0)
            average.load_state_dict(state["average"])
            average.copy_to(model)
    _LOGGER.warning("%s has not ended: these are its weights after step %d", run.path, state["step"])
    return state["stage"], model.for_inference().eval(), state["data"]


def _task_of(recipe: Recipe) -> Task[Any]:
    """The task of a stage, here and for one process."""
    return find_task(recipe.task)(recipe, Site())
