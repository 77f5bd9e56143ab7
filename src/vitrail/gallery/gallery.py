"""The gallery: a catalogue that is searched by images, and learns a class from a few pictures without training."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from torch import Tensor
from torch.nn import functional

from vitrail.data.contract import Dataset
from vitrail.data.quarantine import Problem
from vitrail.evaluation.features import Extraction
from vitrail.gallery.accuracy import measure_gallery
from vitrail.gallery.adding import add_data
from vitrail.gallery.building import Choices, Origin, build_gallery
from vitrail.gallery.gallery_answers import Contents, GalleryAnswer, Hit
from vitrail.gallery.gallery_images import AnyImage, Viewer, as_extraction, embed_unit, find_readable, make_thumbnail
from vitrail.gallery.gallery_manifest import GalleryFacts
from vitrail.gallery.gallery_page import write_gallery_page
from vitrail.gallery.image_rows import Rows
from vitrail.gallery.naming import label_rows
from vitrail.gallery.store import GalleryStore, StateReplacedError
from vitrail.gallery.store_failures import StoreFailedError
from vitrail.gallery.stores import open_store
from vitrail.gallery.suggesting import Group, suggest_groups

Answer = TypeVar("Answer")
_ATTEMPTS = 100  # at a state that other processes replace while it is asked


@dataclass(frozen=True)
class Added:
    """What came of adding images."""

    count: int
    coarse: str | None  # the coarse class they are in
    unread: tuple[Problem, ...] = ()  # images that were left out


class Gallery:
    """The embeddings, labels and thumbnails of images, as they were when it was opened or last changed.

    Any number of processes may read it while one changes it; writers wait for each other. `refresh` sees what others
    have changed.
    """

    def __init__(self, folder: str | os.PathLike[str] | GalleryStore, *, model: Viewer | None = None) -> None:
        self.store = open_store(folder)
        self._contents = Contents(self.store.read())
        self._extraction = None if model is None else self._check(as_extraction(model))

    @classmethod
    def build(
        cls,
        model: Viewer,
        data: Dataset,
        *,
        folder: str | os.PathLike[str] | GalleryStore,
        held_out: Dataset | None = None,
        choices: Choices | None = None,
        origin: Origin | None = None,
        advance: Callable[[int], object] | None = None,
    ) -> "tuple[Gallery, tuple[Problem, ...]]":
        """A new gallery of all images of the data, and what could not be read.

        `held_out`, images of the same kind that are not in it, set the threshold of `unknown`. `origin` says where the
        model is, for those who open the gallery later.
        """
        extraction, store = as_extraction(model), open_store(folder)
        unread = build_gallery(
            extraction,
            data,
            store=store,
            held_out=held_out,
            choices=choices or Choices(),
            origin=origin or Origin(),
            advance=advance,
        )
        return cls(store, model=extraction), unread

    def __len__(self) -> int:
        return len(self.contents)

    @property
    def folder(self) -> Path:
        """Where it is, or where pages about it are written if it is no folder."""
        return self.store.folder

    @property
    def manifest(self) -> GalleryFacts:
        """What the gallery is made of."""
        return self._contents.facts

    @property
    def contents(self) -> Contents:
        """The images, and what they say about others; of a store that can't keep a state, those there are now."""
        table = self.store.renewed(self._contents.table)
        if table is not self._contents.table:
            self._contents = Contents(table)
        return self._contents

    def ask(self, question: Callable[[Contents], Answer]) -> Answer:
        """What a state of the gallery answers; where another process has replaced it meanwhile, the next one."""
        for _ in range(_ATTEMPTS):
            try:
                return question(self.contents)
            except StateReplacedError:
                self.refresh()
        raise StoreFailedError(
            f"the gallery {self.store.place} changes faster than it can be read: try again when fewer write"
        )

    def counts(self, level: str | None = None) -> dict[str, int]:
        """The classes of a level (the one that is answered, unless told) and how many images each has."""
        if level is not None and level not in self.manifest.levels:
            raise ValueError(f"the gallery has no labels {level!r}; it has: {', '.join(self.manifest.levels)}")
        return self.contents.counts(level or self.manifest.fine)

    def refresh(self) -> None:
        """See what other processes have changed."""
        self._contents = Contents(self.store.read())

    def close(self) -> None:
        """Give back what the store holds open: a file of milvus-lite serves one process at a time."""
        self.store.close()

    def embed(self, images: Sequence[AnyImage]) -> Tensor:
        """Embeddings of length 1 [images, dim]; an image that can't be read is an error."""
        extraction = self.extraction
        if not len(images):
            raise ValueError("no images given")
        data, unread = find_readable(images)
        if unread:
            raise ValueError(f"{unread[0].path} {unread[0].detail}")
        return embed_unit(extraction, data)[0]

    def search(
        self, image: AnyImage, *, top: int = 10, rank: str | None = None, coarse: str | None = None
    ) -> list[Hit]:
        """The images that rank first: by cosine, conditional on the coarse prediction, or with a known `coarse`."""
        return self.search_vectors(self.embed([image]), top=top, rank=rank, coarse=coarse)[0]

    def search_vectors(
        self, vectors: Tensor, *, top: int = 10, rank: str | None = None, coarse: str | None = None
    ) -> list[list[Hit]]:
        """The images that rank first for embeddings [images, dim], as in `search`."""
        ranking = rank or ("cosine" if coarse is None else "oracle")
        if coarse is not None and ranking != "oracle":
            raise ValueError(f"a coarse class is for the oracle ranking: leave it out, or rank oracle, not {ranking}")
        queries = self._as_queries(vectors)
        return self.ask(lambda contents: contents.search(queries, top=top, ranking=ranking, coarse=coarse))

    def classify(
        self, image: AnyImage, *, top: int = 5, coarse: str | None = None, rule: str | None = None
    ) -> GalleryAnswer:
        """What the image shows, by the gallery's rule, or by `rule`; `unknown` where it is like nothing."""
        return self.classify_vectors(self.embed([image]), top=top, coarse=coarse, rule=rule)[0]

    def classify_vectors(
        self, vectors: Tensor, *, top: int = 5, coarse: str | None = None, rule: str | None = None
    ) -> list[GalleryAnswer]:
        """What the images of embeddings [images, dim] show, as in `classify`."""
        queries = self._as_queries(vectors)
        return self.ask(lambda contents: contents.classify(queries, top=top, coarse=coarse, rule=rule))

    def add(self, label: str, images: Sequence[AnyImage], *, coarse: str | None = None) -> Added:
        """Add images of one class, new or known; answers change at once. An image that is there already is replaced."""
        if isinstance(images, (str, os.PathLike)):
            raise ValueError(f"images are a list, such as [{os.fspath(images)!r}]")
        if not len(images):
            raise ValueError(f"no images of {label!r} given")
        extraction = self.extraction
        data, unread = find_readable(images)
        if not len(data):
            raise ValueError(f"none of the {len(images)} images can be read: {unread[0].path} {unread[0].detail}")
        vectors, indices, _ = embed_unit(extraction, data)
        paths = [data.locate(index) for index in indices.tolist()]
        thumbnails = [make_thumbnail(data, index) for index in indices.tolist()]
        added = self.add_embedded(label, vectors, paths=paths, thumbnails=thumbnails, coarse=coarse)
        return replace(added, unread=unread)

    def add_embedded(
        self,
        label: str,
        vectors: Tensor,
        *,
        paths: Sequence[str],
        thumbnails: Sequence[bytes],
        coarse: str | None = None,
    ) -> Added:
        """Add images as `add` does, by embeddings [images, dim] of length 1 that the gallery's model has given."""
        extraction = self.extraction
        last = {path: place for place, path in enumerate(paths)}  # one that is named twice comes once
        with self.store.writing() as writer:
            contents = Contents(writer.table)
            self._check(extraction, contents.facts)
            labels, levels = label_rows(contents, label, coarse=coarse)
            rows = Rows(vectors, labels.expand(len(paths), -1), tuple(paths), tuple(thumbnails))
            rows = rows.choose(sorted(last.values()))
            writer.change(without=writer.table.find_paths(last), more=rows, levels=levels)
        self.refresh()
        column = None if self.manifest.coarse is None else int(labels[list(levels).index(self.manifest.coarse)])
        known = None if column is None or column < 0 else levels[str(self.manifest.coarse)][column]
        return Added(len(last), known)

    def add_data(
        self, data: Dataset, *, thumbnails: bool = True, advance: Callable[[int], object] = lambda count: None
    ) -> tuple[int, tuple[Problem, ...]]:
        """Add labelled images that are not in the gallery yet, by their paths: the same call goes on where one ended.

        How many came, and what could not be read. The threshold of `unknown` and the rule stay as they are.
        """
        extraction = self.extraction
        found = add_data(
            self.store,
            extraction,
            data,
            check=lambda facts: self._check(extraction, facts),
            thumbnails=thumbnails,
            advance=advance,
        )
        self.refresh()
        return found

    def remove(self, what: str | os.PathLike[str]) -> int:
        """Remove all images of a class, or one image by its path; how many there were."""
        name = os.fspath(what)
        with self.store.writing() as writer:
            contents = Contents(writer.table)
            fine = contents.facts.fine
            known = contents.counts(fine)
            if name in known:
                writer.change(without_class=contents.class_index(fine, name))
                count = known[name]
            else:
                rows = writer.table.find_paths({name, os.path.abspath(os.path.expanduser(name))})
                if not rows:
                    raise ValueError(f"no {fine} and no image {name!r} in the gallery; {contents.hint(fine, name)}")
                writer.change(without=rows)
                count = len(rows)
        self.refresh()
        return count

    def rename(self, paths: Sequence[str], label: str) -> int:
        """Give images of the gallery this label of the level that is answered; their coarser ones stay."""
        wanted = set(paths)
        with self.store.writing() as writer:
            rows = writer.table.find_paths(wanted)
            if not rows:
                raise ValueError(f"none of these {len(wanted)} images is in the gallery {self.store.place}")
            labels, levels = label_rows(Contents(writer.table), label, coarse=None)
            taken = writer.table.take(rows)
            own = taken.labels.clone()
            own[:, 0] = labels[0]
            more = Rows(taken.vectors, own, taken.paths, taken.thumbnails)
            writer.change(without=rows, more=more, levels=levels)
        self.refresh()
        return len(rows)

    def evaluate(
        self,
        data: Dataset,
        *,
        rule: str | None = None,
        cache: str | None = None,
        advance: Callable[[int], object] | None = None,
    ) -> Mapping[str, object]:
        """How well the gallery answers for labelled images: accuracy, mean average precision, and `unknown`."""
        extraction = self.extraction
        return self.ask(
            lambda contents: measure_gallery(contents, extraction, data, rule=rule, cache=cache, advance=advance)
        )

    def suggest(self, coarse: str | None = None, *, groups: int | None = None, examples: int = 8) -> list[Group]:
        """Groups inside a coarse class (inside the whole gallery, without one) that a person may name."""
        return self.ask(
            lambda contents: suggest_groups(contents, coarse=coarse, num_groups=groups, num_examples=examples)
        )

    def report(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write a page that shows what is in the gallery, with all pictures in it: `report.html` unless told."""
        page = self.folder / "report.html" if path is None else Path(path).expanduser()
        return self.ask(lambda contents: write_gallery_page(contents, page, name=self.store.title))

    @property
    def extraction(self) -> Extraction:
        """How the model's embeddings are computed."""
        if self._extraction is None:
            raise ValueError(
                "the gallery was opened without its model: Gallery(folder, model=vitrail.load_trained(RUN))"
            )
        return self._extraction

    def _as_queries(self, vectors: Tensor) -> Tensor:
        if vectors.ndim != 2 or vectors.shape[1] != self.manifest.dim:
            raise ValueError(f"embeddings are [images, {self.manifest.dim}], not {list(vectors.shape)}")
        return functional.normalize(vectors.float(), dim=1)

    def _check(self, extraction: Extraction, manifest: GalleryFacts | None = None) -> Extraction:
        """Refuse a model other than the gallery's: embeddings of two models can't be compared."""
        entry = (manifest or self.manifest).model
        if not extraction.has_model_key(entry.key):
            raise StoreFailedError(
                f"the gallery {self.store.place} holds embeddings of another model ({entry.name}, {entry.source}): its "
                "weights, image size or crop ratio differ from those of the one given; build the gallery anew"
            )
        return extraction
