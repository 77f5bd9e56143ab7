"""The pictures of `vitrail retrieve`: ranked lists, t-SNE and energy of several runs side by side."""

import dataclasses
import logging
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from PIL import Image
from torch import Tensor

from vitrail.evaluation.drawings import draw_energies, draw_planes
from vitrail.evaluation.energy import cumulative_energy
from vitrail.evaluation.granularity import choose_coarse, find_coarser
from vitrail.evaluation.knn import find_neighbours
from vitrail.evaluation.ranked_lists import RankedList, judge, save_ranked_lists
from vitrail.evaluation.scatter import project_to_plane
from vitrail.gallery.gallery_images import make_thumbnail

if TYPE_CHECKING:
    from vitrail.data.contract import Dataset
    from vitrail.evaluation.retrieval import Levelled

_LOGGER = logging.getLogger(__name__)

_QUERIES, _FOUND = 10, 10  # of ranked lists
_MAX_POINTS = 2000  # of t-SNE


class Pictures:
    """What pictures need of each run, gathered run after run, so that no run's embeddings are kept for them."""

    def __init__(
        self,
        train: "Dataset",
        val: "Dataset",
        *,
        finest: str,
        with_lists: bool = False,
        with_tsne: bool = False,
        with_energy: bool = False,
        within: str | None = None,
        focus: str | None = None,
        colour: str | None = None,
        queries: Sequence[int] | None = None,
        coarse: str | None = None,
    ) -> None:
        self.train, self.val, self.finest = train, val, finest
        self.with_lists, self.with_tsne, self.with_energy = with_lists, with_tsne, with_energy
        self.within = None if within is None else self._find_class(within, find_coarser(train, finest))
        self.focus = None if focus is None else self._find_class(focus, (*find_coarser(train, finest), finest))
        self.queries = queries  # places in val; None: some of them
        coarser = find_coarser(train, finest) if coarse is None else filter(None, [self._find_coarse(coarse)])
        self.levels = [finest, *reversed(tuple(coarser))]  # of ranked lists, from fine to coarse
        # The level that colours the plane: one to choose, or the coarsest, unless a class is looked into.
        self.colour = colour or (finest if within or focus else self.levels[-1])
        self._lists: dict[str, list[RankedList]] = {}
        self._planes: dict[str, Tensor] = {}
        self._plane_labels = torch.zeros(0, dtype=torch.int64)
        self._curves: dict[str, Tensor] = {}

    def add(self, name: str, *, queries: "Levelled", images: "Levelled", places: tuple[Tensor, ...]) -> None:
        """Take from a run's embeddings what is to be drawn; `places` say where queries and images are in the data."""
        if self.with_lists:
            self._lists[name] = self._rank(queries, images, places)
        if self.with_energy:
            try:
                self._curves[name] = cumulative_energy(images.vectors)
            except ValueError as error:  # a collapsed run still has its figures
                _LOGGER.warning("%s has no curve in energy.png: %s", name, error)
        if self.with_tsne:
            shown = self._choose_points(queries)
            self._plane_labels = queries.labels[self.colour][shown]
            try:
                self._planes[name] = project_to_plane(queries.vectors[shown])
            except ValueError as error:
                _LOGGER.warning("%s is not in tsne.png: %s", name, error)

    def draw(self, folder: Path) -> list[str]:
        """Write what was asked for; the names of the files."""
        files = []
        if self._lists:
            named = [self._with_name(name) for name in self._lists]
            rows = [row for query in zip(*named, strict=True) for row in query]
            files.append(save_ranked_lists(rows, folder / "lists.png", levels=self.levels).name)
        if self._planes:
            classes, path = self.val.level(self.colour).classes, folder / "tsne.png"
            files.append(draw_planes(self._planes, self._plane_labels, classes, path, focus=self._in_focus()).name)
        if self._curves:
            files.append(draw_energies(self._curves, folder / "energy.png").name)
        return files

    def _rank(self, queries: "Levelled", images: "Levelled", places: tuple[Tensor, ...]) -> list[RankedList]:
        """Queries, and the training images that are nearest to each (figures 2.6 to 2.9)."""
        asked = self._choose_queries(queries, places[0])
        _, found = find_neighbours(queries.vectors[asked], images.vectors, count=min(_FOUND, len(images.vectors)))
        lists = []
        for query, rows in zip(asked.tolist(), found.tolist(), strict=True):
            own = _names(self.val, self.levels, int(places[0][query]))
            pictures = []
            for row in rows:
                index = int(places[1][row])
                pictures.append((_picture(self.train, index), judge(own, _names(self.train, self.levels, index))))
            picture = _picture(self.val, int(places[0][query]))
            assert picture is not None, "it was embedded"
            lists.append(RankedList(picture, " / ".join(filter(None, own)), pictures))
        return lists

    def _choose_queries(self, queries: "Levelled", places: Tensor) -> Tensor:
        """Those that were asked for, or one of each of some classes."""
        if self.queries is None:
            return _first_of_classes(queries.labels[self.finest])
        rows = {place: row for row, place in enumerate(places.tolist())}
        for place in self.queries:
            if place not in rows:
                raise ValueError(f"query {self.val.locate(place)} can't be read: choose another")
        return torch.tensor([rows[place] for place in self.queries])

    def _with_name(self, name: str) -> list[RankedList]:
        """A run's lists; with those of other runs beside them, they say whose they are."""
        if len(self._lists) == 1:
            return self._lists[name]
        return [dataclasses.replace(row, caption=f"{row.caption}: {name}") for row in self._lists[name]]

    def _choose_points(self, queries: "Levelled") -> Tensor:
        is_shown = queries.labels[self.colour] >= 0
        if self.within is not None:
            level, number = self.within
            is_shown &= queries.labels[level] == number
        places = is_shown.nonzero()[:, 0]
        if len(places) > _MAX_POINTS:
            order = torch.randperm(len(places), generator=torch.Generator().manual_seed(0))
            places = places[order[:_MAX_POINTS].sort().values]
        return places

    def _find_coarse(self, level: str) -> str | None:
        return choose_coarse(self.train, self.finest, wanted=level)

    def _find_class(self, name: str, levels: Sequence[str]) -> tuple[str, int]:
        """Which of the levels has a class of that name, and its number."""
        classes = {level: self.val.level(level).classes for level in levels}
        for level, known in classes.items():
            if name in known:
                return level, known.index(name)
        if not classes:
            raise ValueError(f"{self.val.name} has one level of labels: within= needs a coarser one")
        kind = "class" if self.finest in classes else "coarser class"
        shown = [one for known in classes.values() for one in known]
        raise ValueError(f"no {kind} {name!r} in {self.val.name}; there are: {', '.join(shown[:20])}")

    def _in_focus(self) -> set[int] | None:
        """The classes of the colours that images of the class in focus have; None: all."""
        if self.focus is None:
            return None
        level, number = self.focus
        coloured, own = self.val.level(self.colour).labels, self.val.level(level).labels
        return {int(label) for label in coloured[own == number] if label >= 0}


def _first_of_classes(labels: Tensor) -> Tensor:
    """Where the first image of each of up to ten classes is, the classes taken evenly from all."""
    present = labels[labels >= 0].unique()
    number = min(_QUERIES, len(present))
    chosen = present[torch.arange(number) * len(present) // number]
    return torch.stack([(labels == label).nonzero()[0, 0] for label in chosen])


def _names(data: "Dataset", levels: Sequence[str], index: int) -> list[str | None]:
    """The classes of an image, level by level; None where it has none."""
    found = [(data.level(level).classes, int(data.level(level).labels[index])) for level in levels]
    return [classes[number] if number >= 0 else None for classes, number in found]


def _picture(data: "Dataset", index: int) -> Image.Image | None:
    kept = make_thumbnail(data, index)
    return Image.open(BytesIO(kept)) if kept else None
