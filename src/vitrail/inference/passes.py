"""Passes of models over data, as settings ask for them; whatever is heavy is imported when it is used."""

import contextlib
import dataclasses
import difflib
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from vitrail.data.contract import Dataset, ImageBatch, Labels
    from vitrail.data.quarantine import Problem
    from vitrail.data.sampler import Sampler
    from vitrail.evaluation.features import Extraction
    from vitrail.evaluation.together import Together
    from vitrail.inference.trained import Trained
    from vitrail.settings.recipe import Recipe

MODEL_HELP = (
    "a folder of a run, a model, an export or a pack; a name such as deit_tiny, cait_s24@384, deit3_base@384,in22k, "
    "timm/resnet50.a1_in1k or NAME init=FILE; or hf://OWNER/NAME"
)
KEYS = ("data", "split", "level", "image_size", "crop_ratio", "batch_size", "workers", "precision", "device", "trunk")
_LOGGER = logging.getLogger(__name__)
_BATCH_SIZE = 64
_INIT = "init="  # of the model before it: the file of its weights
_SETTING = re.compile(r"[A-Za-z_][\w.]*=")  # how key=value begins; a path before the sign makes it no key


class Passes:
    """Passes over one data set on one device, each with another model; `world` shares the images among processes."""

    def __init__(
        self, data: "Dataset", level: str | None, settings: Mapping[str, Any], *, world: "Together | None" = None
    ) -> None:
        from vitrail.data.loader import check_workers
        from vitrail.evaluation.predict import choose_device, choose_precision
        from vitrail.evaluation.together import Alone
        from vitrail.tasks.images.image_task import default_workers

        self.data, self.level, self.world = data, level, world or Alone()
        self.device = choose_device(str(settings.get("device", "auto")))
        self.dtype = choose_precision(str(settings.get("precision", "auto")), self.device)
        self.batch_size = read_whole(settings.get("batch_size", _BATCH_SIZE), "batch_size")
        self.workers = check_workers(
            read_whole(settings.get("workers", default_workers(self.device)), "workers", least=0)
        )

    def make_sampler(self, num_images: int, *, batch_size: int | None = None) -> "Sampler":
        """Of so many images those that are this process's own, in order; of one process, all of them."""
        from vitrail.data.turns import RangeSampler, own_ranges

        size = batch_size or self.batch_size
        own = own_ranges(num_images, batch_size=self.batch_size, ranks=self.world.ranks)
        return RangeSampler(num_images, batch_size=size, epochs=[own])

    def answers(
        self, trained: "Trained", *, title: str, note_unread: "Callable[[Problem], object]"
    ) -> "Iterator[tuple[Tensor, ImageBatch]]":
        """What the model says about this process's images, batch by batch, beside a bar that shows how far it is."""
        with show_progress(title, total=len(self.data)) as advance:
            for logits, batch in self.ask(trained, note_unread=note_unread):
                yield logits, batch
                advance(len(logits) * self.world.num_ranks)

    def ask(
        self, trained: "Trained", *, note_unread: "Callable[[Problem], object]"
    ) -> "Iterator[tuple[Tensor, ImageBatch]]":
        """What the model says about this process's images, batch by batch."""
        from vitrail.inference.trained import answer

        return answer(
            trained,
            self.data,
            device=self.device,
            dtype=self.dtype,
            level=self.level,
            sampler=self.make_sampler(len(self.data)),
            workers=self.workers,
            note_unread=note_unread,
        )


def folded(trained: "Trained") -> "tuple[Trained, bool]":
    """The model in its fastest form; one with two heads gives the answers of both, [batch, 2, classes], and True."""
    from vitrail.evaluation.heads import SeparateHeads
    from vitrail.inference.folding import as_folded

    model = as_folded(trained.model)
    is_double = model.has_two_heads
    return dataclasses.replace(trained, model=SeparateHeads(model) if is_double else model), is_double


def split_words(words: list[str], *, keys: Sequence[str] = KEYS) -> tuple[list[str], dict[str, Any]]:
    """Runs, models and packs, and the settings among them, in any order; init=FILE belongs to the model before it."""
    words = join_init(words)
    sources = [word for word in words if not _SETTING.match(word)]
    return sources, _read_settings([word for word in words if _SETTING.match(word)], keys=keys)


def is_setting(word: str) -> bool:
    """Whether a word has the form key=value."""
    return _SETTING.match(word) is not None


def join_init(words: Sequence[str]) -> list[str]:
    """Words with every init=FILE made part of the model before it, `NAME init=FILE`; settings may stand between."""
    joined: list[str] = []
    for word in words:
        if not word.startswith(_INIT):
            joined.append(word)
            continue
        models = [place for place, known in enumerate(joined) if not _SETTING.match(known)]
        if not models:
            raise ValueError(f"{word} belongs behind the name of a model, such as deit_tiny {word}")
        joined[models[-1]] += f" {word}"
    return joined


def join_init_of(model: str, words: Sequence[str]) -> list[str]:
    """The one model with its init=FILE, and the other words, which are no models."""
    inits = [word for word in words if word.startswith(_INIT)]
    return [*join_init([model, *inits]), *(word for word in words if not word.startswith(_INIT))]


def keep_source(source: str) -> str:
    """The text of a model as it can be used from any folder: paths absolute, names as they are."""
    import os

    from vitrail.models.published import read_unless_there
    from vitrail.weights.hub import HUB_PREFIX
    from vitrail.weights.pretrained import RANDOM

    if source.startswith(HUB_PREFIX):
        return source
    named = read_unless_there(source)
    if named is None:
        return os.path.abspath(os.path.expanduser(source))
    if named.init is None or named.init == RANDOM:
        return str(named)
    return str(dataclasses.replace(named, init=keep_source(named.init)))


def load_seeing(source: str, settings: Mapping[str, Any]) -> "Trained":
    """A run, model or pack, for pictures of the size and crop ratio that the settings ask for."""
    from vitrail.inference.trained import load_trained

    trunk = settings.get("trunk")
    return seeing(load_trained(source, trunk=None if trunk is None else str(trunk)), settings)


def seeing(trained: "Trained", settings: Mapping[str, Any]) -> "Trained":
    """The same model for pictures of the size and crop ratio that the settings ask for."""
    return trained.seeing(
        image_size=read_image_size(settings.get("image_size")), crop_ratio=_crop_ratio(settings.get("crop_ratio"))
    )


def _read_settings(words: list[str], *, keys: Sequence[str]) -> dict[str, Any]:
    from vitrail.settings.text import parse_assignments

    settings = parse_assignments(words)
    check_keys(settings, keys=keys)
    return settings


def check_keys(settings: Iterable[str], *, keys: Sequence[str] = KEYS) -> None:
    """Refuse a setting that there is not."""
    for key in settings:
        if key not in keys:
            near = difflib.get_close_matches(key, keys, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(keys)}"
            raise ValueError(f"unknown key {key!r}; {hint}")


def open_data(
    source: str, settings: Mapping[str, Any], trained: "Trained", *, labels: "Labels" = "required"
) -> "tuple[Dataset, str]":
    """The data asked for, or the run's own, and the name of the labels that count; "" where there may be none.

    A published model was not trained on it: without split= it is measured on all of data that has no val.
    """
    from pathlib import Path

    from vitrail.data.datasets import open_dataset, open_whole_val
    from vitrail.data.splits import canonical

    recipe = find_recipe(source)
    split = str(settings.get("split", "val"))
    share = recipe.data.val_share if recipe else 0.1
    if "data" in settings and "split" not in settings and is_named(source):
        data = open_whole_val(str(settings["data"]), labels=labels)
    elif "data" in settings:
        data = open_asked([source], str(settings["data"]), split, val_share=share, labels=labels)
    elif recipe is None or recipe.data.spec is None:
        raise ValueError(f"{source} is no run that has data of its own: add data=SPEC")
    elif not recipe.data.is_measured and canonical(split) == "val":
        raise ValueError(f"{source} was trained without val (data.val=none): add data=SPEC")
    elif recipe.data.val is not None and canonical(split) == "val":
        data = open_whole_val(recipe.data.val, labels=labels)
    else:
        exclude = Path(recipe.data.quarantine) if recipe.data.quarantine else None
        try:
            data = open_dataset(recipe.data.spec, split, val_share=share, exclude=exclude, labels=labels)
        except ValueError:
            if not trained.model.is_dense:
                raise
            raise ValueError(
                f"the images of {source} have masks or boxes, not classes: say which images to look at, data=FOLDER"
            ) from None
    if not data.levels and labels != "required":
        return data, ""
    level = settings.get("level")
    if level is None:
        level = trained.level if trained.level in data.levels else next(iter(data.levels))
    data.level(str(level))  # an unknown one is an error
    return data, str(level)


def open_asked(
    sources: Iterable[str], spec: str, split: str, *, val_share: float, labels: "Labels" = "required"
) -> "Dataset":
    """A split that models are asked about; a warning for each run that was trained on all of the data, val too."""
    from vitrail.data.datasets import open_source, open_split
    from vitrail.data.splits import AUTOMATIC

    opened = open_source(spec, val_share=val_share, labels=labels)
    data = open_split(opened, split)
    if data.split == "val" and any(note.problem == AUTOMATIC for note in opened.notes):
        for source in sources:
            recipe = find_recipe(source)
            if recipe and recipe.data.val is not None and _is_same_data(recipe.data.spec, spec):
                _LOGGER.warning(
                    "%s was trained on all of %s (data.val=%s): the images of this val are among its training images",
                    source,
                    recipe.data.spec,
                    recipe.data.val,
                )
    return data


def _is_same_data(first: str | None, second: str) -> bool:
    """Whether two texts name the same data; a path may be written in several ways."""
    from pathlib import Path

    if first is None or first == second:
        return first == second
    places = [Path(text).expanduser() for text in (first, second)]
    return all(place.exists() for place in places) and places[0].resolve() == places[1].resolve()


def is_named(source: str) -> bool:
    """Whether a text is the name of a published model, and of no folder."""
    from vitrail.models.published import read_unless_there

    named = read_unless_there(source)
    return named is not None and named.init is None


def find_recipe(source: str) -> "Recipe | None":
    """The last stage of the run, or of the run that was exported, where there is one."""
    from pathlib import Path

    from vitrail.inference.export_record import RECIPE_FILE, is_exported
    from vitrail.settings.text import read_recipe, stage_of
    from vitrail.training.runs.run_folder import RunFolder

    place = Path(source).expanduser()
    folder = RunFolder(place)
    file = place / RECIPE_FILE if is_exported(place) else folder.recipe_file
    if not file.is_file() and not folder.is_begun:
        return None
    recipe = read_recipe(file)
    return stage_of(recipe, recipe.num_stages - 1)


def share_of_val(sources: Iterable[str]) -> float:
    """Which part to hold out of data that has no val, so that no run was trained on it: that of the smallest val."""
    recipes = [recipe for recipe in map(find_recipe, sources) if recipe is not None]
    return min((recipe.data.val_share for recipe in recipes), default=0.1)  # a smaller val is a part of a larger one


def read_whole(value: Any, key: str, *, least: int = 1) -> int:
    """The value of a setting that is a whole number."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{key} must be a whole number of at least {least}, not {value!r}")
    return value


def read_image_size(value: Any) -> "int | tuple[int, int] | None":
    """A side, or [height, width]."""
    if isinstance(value, (list, tuple)) and len(value) == 2:
        return read_whole(value[0], "image_size"), read_whole(value[1], "image_size")
    return None if value is None else read_whole(value, "image_size")


def _crop_ratio(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"crop_ratio must be a number above 0 and at most 1, not {value!r}")
    return float(value)


def make_extraction(trained: "Trained", passes: Passes) -> "Extraction":
    """What makes embeddings of images with a model, as these passes are to be made."""
    from vitrail.evaluation.features import Extraction
    from vitrail.inference.folding import as_folded

    return Extraction(
        trained.model,
        view=trained.view,
        normalize=trained.normalize,
        device=passes.device,
        dtype=passes.dtype,
        batch_size=passes.batch_size,
        workers=passes.workers,
        faster=as_folded(trained.model),
        world=passes.world,
    )


@contextlib.contextmanager
def show_progress(name: str, *, total: int) -> Iterator[Callable[[int], object]]:
    """A bar on stderr where that is a terminal."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    from vitrail.pages.terminal import can_draw_bars

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not can_draw_bars(console), redirect_stdout=False) as bars:
        task = bars.add_task(escape(name), total=total)
        yield lambda count: bars.advance(task, count)
