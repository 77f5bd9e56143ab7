"""Making a gallery of a data set: which labels it keeps, how many neighbours answer, and what is unknown."""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitrail.data.contract import Dataset
from vitrail.data.quarantine import Problem
from vitrail.evaluation.features import Extraction
from vitrail.evaluation.knn import THESIS_CHOICES, find_neighbours, fit_neighbours
from vitrail.evaluation.probe_data import Labelled
from vitrail.evaluation.together import leave_rest_to_main
from vitrail.gallery.answer_rules import AUTO, ClassMeans, Held, check_rule, choose_rule
from vitrail.gallery.gallery_images import embed_unit, make_thumbnail
from vitrail.gallery.gallery_manifest import GalleryFacts, ModelEntry, Threshold
from vitrail.gallery.image_rows import Rows
from vitrail.gallery.store import GalleryStore

NEW_LEVEL = "fine"  # the labels to come of data that has only coarse ones
_FEWEST = 10  # neighbours of a gallery that has too few images to choose by
_MAX_PICTURES, _PICTURES_PER_CLASS = 20_000, 50  # thumbnails, where nothing is said: all of up to so many; else so many
_OWN_FOLDER = "of-gallery-build"  # among embeddings: others may keep theirs in the same place
_MAX_ASKED = 10_000  # images of the gallery that set the threshold where none were held out


@dataclass(frozen=True)
class Choices:
    """What may be said when a gallery is made."""

    level: str | None = None  # the labels that are answered; None: the data's first
    coarse: str | None = None  # those that rankings are conditioned by; None: the model's own, or the next coarser ones
    index: str = "exact"  # or ivf, hnsw, auto
    is_half: bool = False  # embeddings in half precision: half of the space, cosines off by about 0.0005 at most
    false_reject: float = 0.05  # the share of held-out images that may be answered `unknown`
    thumbnails: int | None = None  # kept of each class; None: all of up to 20,000 images, else 50
    rule: str = AUTO  # how images are answered: means, neighbours, mix, or the best of them on held-out images
    cache: str | None = None  # a folder of embeddings that may be known from before

    def __post_init__(self) -> None:
        if not 0.0 <= self.false_reject < 1.0:
            raise ValueError(f"false_reject is a share of at least 0 and below 1, not {self.false_reject}")
        if self.thumbnails is not None and self.thumbnails < 0:
            raise ValueError(f"thumbnails is a number of at least 0, not {self.thumbnails}")
        check_rule(self.rule)


@dataclass(frozen=True, eq=False)
class Origin:
    """Where the model of a gallery comes from, so that it is found again."""

    source: str | None = None
    trunk: str | None = None
    level: str | None = None  # the labels it was trained on


def build_gallery(
    extraction: Extraction,
    data: Dataset,
    *,
    store: GalleryStore,
    held_out: Dataset | None = None,
    choices: Choices,
    origin: Origin,
    advance: Callable[[int], object] | None = None,
) -> tuple[Problem, ...]:
    """Write a new gallery of all images of the data; returns those that could not be read.

    Processes that share the work embed together, and the main one alone writes the gallery. Where a store has a place
    for them, embeddings are kept until the gallery is written: a build that was killed goes on with them.

    The threshold of `unknown` is set with the images of `held_out`, or where there are none with those of the gallery,
    each held out in turn.
    """
    if extraction.world.is_main:
        store.check_new()
    levels = choose_levels(data, choices, trained_on=origin.level)
    with keeping_embeddings(store, data, extraction, cache=choices.cache) as cache:
        embedded = embed_unit(extraction, data, cache=cache, advance=advance)
        others = None if held_out is None else embed_unit(extraction, held_out, cache=cache, advance=advance)
        leave_rest_to_main(extraction.world)
        _write(extraction, data, embedded, held_out, others, levels, store=store, choices=choices, origin=origin)
    return embedded[2]


def _write(
    extraction: Extraction,
    data: Dataset,
    embedded: tuple[Tensor, Tensor, tuple[Problem, ...]],
    held_out: Dataset | None,
    others: tuple[Tensor, Tensor, tuple[Problem, ...]] | None,
    levels: dict[str, tuple[str, ...]],
    *,
    store: GalleryStore,
    choices: Choices,
    origin: Origin,
) -> None:
    """Write a gallery of images that are embedded."""
    kind = store.choose_index(choices.index, num_images=len(data))
    vectors, indices, _ = embedded
    labels = _stack_labels(data, tuple(levels), indices)
    paths = tuple(data.locate(index) for index in indices.tolist())
    held = _hold_out(held_out, others, vectors, labels, levels, paths)
    rows = Rows(
        vectors.half() if choices.is_half else vectors,
        labels,
        paths,
        _make_thumbnails(data, indices, labels, limit=choices.thumbnails),
    )
    neighbours = _choose_neighbours(vectors, labels, levels)
    fine, num_classes = labels[:, 0].long(), len(next(iter(levels.values())))
    facts = GalleryFacts(
        generation=1,
        model=ModelEntry(
            source=origin.source,
            trunk=origin.trunk,
            name=extraction.model.name,
            key=extraction.model_key(),
            image_size=extraction.view.image_size,
            crop_ratio=extraction.view.crop_ratio,
            level=origin.level,
        ),
        dim=vectors.shape[1],
        levels=levels,
        coarse=_name_coarse(levels, choices, data, trained_on=origin.level),
        neighbours=neighbours,
        threshold=set_threshold(vectors, fine, held, num_classes=num_classes, false_reject=choices.false_reject),
        rule=choose_rule(choices.rule, vectors, fine, held, num_classes=num_classes, neighbours=neighbours),
        wanted_index=kind,
    )
    with store.building(facts) as builder:
        builder.add(rows, last_row=len(rows) - 1)
        builder.finish()


@contextlib.contextmanager
def keeping_embeddings(
    store: GalleryStore, data: Dataset, extraction: Extraction, *, cache: str | None
) -> Iterator[str | None]:
    """The folder where embeddings are kept until a gallery is written: the cache, which stays, or one that goes.

    The one that goes is the build's own: whatever else is in the store's place for embeddings stays. Images that are no
    files are not kept unasked: to know them again they would have to be read twice.
    """
    place = store.embeddings_place
    if cache is not None or place is None or not len(data) or not os.path.isfile(data.locate(0)):
        yield cache
        return
    own, is_made = place / _OWN_FOLDER, False
    if extraction.world.is_main:
        with contextlib.suppress(OSError):
            own.mkdir(parents=True, exist_ok=True)
            is_made = True
    yield str(own) if extraction.world.share(is_made) else None
    if extraction.world.is_main and is_made:
        shutil.rmtree(own, ignore_errors=True)
        with contextlib.suppress(OSError):  # others have something there
            place.rmdir()


def choose_levels(data: Dataset, choices: Choices, *, trained_on: str | None) -> dict[str, tuple[str, ...]]:
    """The levels of a gallery with their classes: the one that is answered first, then the coarse one, then others.

    Where the level to condition by is the data's only one, or the one that is answered, the finer one is yet to be
    named and has no classes; so is the only one of data without labels.
    """
    single = {name: level.classes for name, level in data.levels.items() if not level.is_multiple}
    if not data.levels and choices.level is None and choices.coarse is None:
        return {NEW_LEVEL: ()}
    if not single:
        raise ValueError(f"an image of {data.name} may have several classes: a gallery needs one label for each")
    for name in (choices.level, choices.coarse):
        if name is not None and name not in single:
            data.level(name)  # an unknown one is an error
            raise ValueError(f"an image may have several labels {name!r}: a gallery needs one for each")
    fine = choices.level or next(iter(single))
    if choices.coarse == fine:
        return {NEW_LEVEL: (), **{name: single[name] for name in (fine, *single)}}
    coarse = _name_coarse({fine: single[fine], **single}, choices, data, trained_on=trained_on)
    first = (fine,) if coarse is None else (fine, coarse)
    return {name: single[name] for name in (*first, *single)}


def set_threshold(
    vectors: Tensor, labels: Tensor, held: Held, *, num_classes: int, false_reject: float
) -> Threshold | None:
    """The cosines that `false_reject` of the held-out images do not reach: to their nearest image, and to their class.

    None with too few images. An image without a label might be like no class and known all the same: the likeness to
    classes decides nothing where there are such.
    """
    nearest, _ = find_neighbours(held.vectors, vectors, count=1, without=held.rows)
    found = _reject(nearest[nearest.isfinite()], false_reject)
    if found is None:  # there is no other image
        return None
    of_class = None
    if not bool((labels < 0).any()):
        of_class = _reject(held.likeness(ClassMeans.of(vectors, labels, num_classes=num_classes)), false_reject)
    return Threshold(
        cosine=found[0],
        false_reject=found[1],
        num_held_out=int(nearest.isfinite().sum()),
        held_out=held.name,
        class_cosine=None if of_class is None else of_class[0],
        class_false_reject=None if of_class is None else of_class[1],
    )


def _reject(cosines: Tensor, share: float) -> tuple[float, float] | None:
    """The cosine that at most this share lies below, and the share that does; None without cosines."""
    ordered = cosines.double().sort().values
    if not len(ordered):
        return None
    cosine = ordered[int(share * len(ordered))].item()
    return cosine, (ordered < cosine).double().mean().item()


def _name_coarse(
    levels: dict[str, tuple[str, ...]], choices: Choices, data: Dataset, *, trained_on: str | None
) -> str | None:
    """The level that rankings go by: the one asked for, the model's, or the first with fewer classes."""
    if choices.coarse is not None:
        return choices.coarse
    fine, *others = levels
    if trained_on in others:
        return trained_on
    return next((name for name in others if 1 < len(levels[name]) < len(levels[fine])), None)


def _stack_labels(data: Dataset, levels: tuple[str, ...], indices: Tensor) -> Tensor:
    columns = [
        np.asarray(data.levels[name].labels)[indices.numpy()] if name in data.levels else np.full(len(indices), -1)
        for name in levels
    ]
    return torch.from_numpy(np.stack(columns, axis=1).astype(np.int32))


def _choose_neighbours(vectors: Tensor, labels: Tensor, levels: dict[str, tuple[str, ...]]) -> int:
    """The number of neighbours that answers best, by the first level that has enough labels."""
    for column, classes in enumerate(levels.values()):
        is_known = labels[:, column] >= 0
        if int(is_known.sum()) > max(THESIS_CHOICES):
            known = Labelled(vectors[is_known], labels[is_known, column].long(), len(classes))
            return int(fit_neighbours(known, choices=THESIS_CHOICES).setting["neighbours"])
    return _FEWEST


def _make_thumbnails(data: Dataset, indices: Tensor, labels: Tensor, *, limit: int | None) -> tuple[bytes, ...]:
    """Thumbnails of the first images of each combination of labels; empty for the others."""
    if limit is None:
        limit = len(indices) if len(indices) <= _MAX_PICTURES else _PICTURES_PER_CLASS
    counts: dict[tuple[int, ...], int] = {}
    pictures = []
    for index, own in zip(indices.tolist(), labels.tolist(), strict=True):
        key = tuple(own)
        counts[key] = counts.get(key, 0) + 1
        pictures.append(make_thumbnail(data, index) if counts[key] <= limit else b"")
    return tuple(pictures)


def _hold_out(
    data: Dataset | None,
    embedded: tuple[Tensor, Tensor, tuple[Problem, ...]] | None,
    vectors: Tensor,
    labels: Tensor,
    levels: dict[str, tuple[str, ...]],
    paths: tuple[str, ...],
) -> Held:
    """The images of the data that is held out, as they are embedded, or without it the gallery's own, each in turn."""
    fine = next(iter(levels))
    if data is None or embedded is None:
        asked = torch.randperm(len(vectors), generator=torch.Generator().manual_seed(0))[:_MAX_ASKED]
        return Held(vectors[asked], labels[asked, 0].long(), asked, "the gallery's own images, each in turn")
    others, places, _ = embedded
    own = torch.full((len(places),), -1)
    if fine in data.levels and not data.levels[fine].is_multiple:
        place_of = {name: place for place, name in enumerate(levels[fine])}
        table = torch.tensor([*(place_of.get(name, -1) for name in data.levels[fine].classes), -1])
        own = table[torch.from_numpy(np.array(data.levels[fine].labels, dtype=np.int64))[places]]
    row_of = {path: row for row, path in enumerate(paths)}
    rows = torch.tensor([row_of.get(data.locate(place), -1) for place in places.tolist()])
    return Held(others, own, rows, f"{data.split} of {data.name}")
