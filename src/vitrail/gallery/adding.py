"""Labelled data that is added to a gallery page by page: each page is in the gallery before the next is embedded."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from vitrail.data.contract import Dataset
from vitrail.data.quarantine import Problem
from vitrail.data.stored import Subset
from vitrail.evaluation.features import Extraction
from vitrail.gallery.gallery_answers import UNKNOWN, UNNAMED
from vitrail.gallery.gallery_images import embed_unit, make_thumbnail
from vitrail.gallery.gallery_manifest import GalleryFacts
from vitrail.gallery.image_rows import Rows
from vitrail.gallery.store import GalleryStore

PAGE = 10_000  # images that are embedded and added at a time


def add_data(
    store: GalleryStore,
    extraction: Extraction,
    data: Dataset,
    *,
    check: Callable[[GalleryFacts], object],
    thumbnails: bool = True,
    page: int = PAGE,
    advance: Callable[[int], object] = lambda count: None,
) -> tuple[int, tuple[Problem, ...]]:
    """Add all images of the data that are not in the gallery yet; how many came, and what could not be read.

    Images are told by their paths, so that the same call goes on where one was ended. Labels are matched by the names
    of their levels and classes, and classes that are new come too. An image that can't be read is tried again by the
    next call; where none can be, it is an error. `check` refuses a gallery of another model. Where processes share the
    work, this is the main one's, and the others call `help_adding`.
    """
    facts = store.read_facts()
    levels = [name for name in facts.levels if name in data.levels and not data.levels[name].is_multiple]
    if not levels:
        raise ValueError(
            f"the gallery has the labels {', '.join(facts.levels)}, of which {data.name} has none: it has "
            f"{', '.join(data.levels)}"
        )
    for name in levels:
        if wrong := {UNKNOWN, UNNAMED} & set(data.levels[name].classes):
            raise ValueError(f"{min(wrong)!r} is an answer of galleries, not a class: {data.name} has one of that name")
    count = 0
    unread: list[Problem] = []
    for start in range(0, len(data), page):
        indices = np.arange(start, min(start + page, len(data)))
        paths = [data.locate(int(index)) for index in indices]
        table = store.read()
        there = set(table.paths_of(table.find_paths(set(paths))))
        wanted = [int(index) for index, path in zip(indices, paths, strict=True) if path not in there]
        extraction.world.share(wanted)
        advance(len(indices) - len(wanted))
        if not wanted:
            continue
        part = Subset(data, np.array(wanted))
        vectors, places, problems = embed_unit(extraction, part, may_be_empty=True, advance=advance)
        unread += problems
        if not len(places):
            continue
        own = tuple(part.locate(place) for place in places.tolist())
        pictures = tuple(make_thumbnail(part, place) if thumbnails else b"" for place in places.tolist())
        with store.writing() as writer:
            check(writer.table.facts)
            labels, known = _match_labels(writer.table.facts, part, places)
            writer.change(
                without=writer.table.find_paths(set(own)), more=Rows(vectors, labels, own, pictures), levels=known
            )
        count += len(own)
    if len(unread) == len(data) > 0:
        raise ValueError(
            f"none of the {len(data)} images of {data.name} could be read: {unread[0].path} {unread[0].detail}"
        )
    return count, tuple(unread)


def help_adding(extraction: Extraction, data: Dataset, *, page: int = PAGE) -> None:
    """Embed a share of what the main process adds; this process needs no gallery."""
    for _ in range(0, len(data), page):
        wanted = extraction.world.share(None)
        if wanted:
            embed_unit(extraction, Subset(data, np.array(wanted)), may_be_empty=True)


def _match_labels(facts: GalleryFacts, data: Dataset, places: Tensor) -> tuple[Tensor, dict[str, tuple[str, ...]]]:
    """The labels int32 [images, levels] of images by the gallery's classes, and the classes that there are then."""
    known, columns = {}, []
    for level, names in facts.levels.items():
        if level not in data.levels or data.levels[level].is_multiple:
            columns.append(torch.full((len(places),), -1))
            known[level] = names
            continue
        found = data.levels[level]
        own = torch.from_numpy(np.array(found.labels, dtype=np.int64))[places]
        used = [found.classes[label] for label in own.unique().tolist() if label >= 0]
        known[level] = (*names, *(name for name in used if name not in set(names)))
        place_of = {name: place for place, name in enumerate(known[level])}
        table = torch.tensor([*(place_of.get(name, -1) for name in found.classes), -1])  # -1 leads to the last
        columns.append(table[own])
    return torch.stack(columns, dim=1).int(), known
