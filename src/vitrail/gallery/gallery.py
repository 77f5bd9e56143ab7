"""The gallery: a catalogue that is searched by images, and learns a class from a few pictures without training."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor
from torch.nn import functional

from vitrail.data.contract import Dataset
from vitrail.data.quarantine import Problem
from vitrail.evaluation.features import Extraction
from vitrail.gallery.accuracy import measure_gallery
from vitrail.gallery.building import Choices, Origin, build_gallery
from vitrail.gallery.editing import change, label_rows, take_rows
from vitrail.gallery.gallery_answers import Contents, GalleryAnswer, Hit
from vitrail.gallery.gallery_images import AnyImage, Viewer, as_extraction, embed_unit, find_readable, make_thumbnail
from vitrail.gallery.gallery_manifest import Manifest
from vitrail.gallery.gallery_page import write_gallery_page
from vitrail.gallery.part_files import Rows
from vitrail.gallery.store import read_state, writing
from vitrail.gallery.suggesting import Group, suggest_groups


@dataclass(frozen=True)
class Added:
    """What came of adding images."""

    count: int
    coarse: str | None  # the coarse class they are in
    unread: tuple[Problem, ...]  # images that were left out


class Gallery:
    """A folder with the embeddings, labels and thumbnails of images, as it was when it was opened or last changed.

    Any number of processes may read it while one changes it; writers wait for each other. `refresh` sees what others
    have changed.
    """

    def __init__(self, folder: str | os.PathLike[str], *, model: Viewer | None = None) -> None:
        self.folder = Path(folder).expanduser()
        self._contents = Contents(read_state(self.folder))
        self._extraction = None if model is None else self._check(as_extraction(model))

    @classmethod
    def build(
        cls,
        model: Viewer,
        data: Dataset,
        *,
        folder: str | os.PathLike[str],
        held_out: Dataset | None = None,
        choices: Choices | None = None,
        origin: Origin | None = None,
        advance: Callable[[int], object] | None = None,
    ) -> "tuple[Gallery, tuple[Problem, ...]]":
        """A new gallery of all images of the data, and what could not be read.

        `held_out`, images of the same kind that are not in it, set the threshold of `unknown`. `origin` says where the
        model is, for those who open the gallery later.
        """
        extraction, path = as_extraction(model), Path(folder).expanduser()
        unread = build_gallery(
            extraction,
            data,
            folder=path,
            held_out=held_out,
            choices=choices or Choices(),
            origin=origin or Origin(),
            advance=advance,
        )
        return cls(path, model=extraction), unread

    def __len__(self) -> int:
        return len(self._contents)

    @property
    def manifest(self) -> Manifest:
        """What the gallery is made of."""
        return self._contents.state.manifest

    @property
    def contents(self) -> Contents:
        """The images, as one table."""
        return self._contents

    def counts(self, level: str | None = None) -> dict[str, int]:
        """The classes of a level (the one that is answered, unless told) and how many images each has."""
        if level is not None and level not in self.manifest.levels:
            raise ValueError(f"the gallery has no labels {level!r}; it has: {', '.join(self.manifest.levels)}")
        return self._contents.counts(level or self.manifest.fine)

    def refresh(self) -> None:
        """See what other processes have changed."""
        self._contents = Contents(read_state(self.folder))

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
        return self._contents.search(self._as_queries(vectors), top=top, ranking=ranking, coarse=coarse)

    def classify(
        self, image: AnyImage, *, top: int = 5, coarse: str | None = None, rule: str | None = None
    ) -> GalleryAnswer:
        """What the image shows, by the gallery's rule, or by `rule`; `unknown` where it is like nothing."""
        return self.classify_vectors(self.embed([image]), top=top, coarse=coarse, rule=rule)[0]

    def classify_vectors(
        self, vectors: Tensor, *, top: int = 5, coarse: str | None = None, rule: str | None = None
    ) -> list[GalleryAnswer]:
        """What the images of embeddings [images, dim] show, as in `classify`."""
        return self._contents.classify(self._as_queries(vectors), top=top, coarse=coarse, rule=rule)

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
        paths = tuple(data.locate(index) for index in indices.tolist())
        thumbnails = tuple(make_thumbnail(data, index) for index in indices.tolist())
        last = {path: place for place, path in enumerate(paths)}  # one that is named twice comes once
        with writing(self.folder) as writer:
            state = read_state(self.folder)
            self._check(extraction, state.manifest)
            contents = Contents(state)
            labels, levels = label_rows(contents, label, coarse=coarse)
            rows = Rows(vectors.to(contents.vectors.dtype), labels.expand(len(paths), -1), paths, thumbnails)
            same = [row for row, path in enumerate(contents.paths()) if path in last]
            change(writer, state, without=same, more=rows.choose(sorted(last.values())), levels=levels)
        self.refresh()
        column = None if self.manifest.coarse is None else int(labels[list(levels).index(self.manifest.coarse)])
        known = None if column is None or column < 0 else levels[str(self.manifest.coarse)][column]
        return Added(len(last), known, unread)

    def remove(self, what: str | os.PathLike[str]) -> int:
        """Remove all images of a class, or one image by its path; how many there were."""
        name = os.fspath(what)
        with writing(self.folder) as writer:
            state = read_state(self.folder)
            contents = Contents(state)
            fine = state.manifest.fine
            if name in contents.counts(fine):
                rows = (contents.labels[fine] == contents.classes(fine).index(name)).nonzero()[:, 0].tolist()
            else:
                wanted = {name, os.path.abspath(os.path.expanduser(name))}
                rows = [row for row, path in enumerate(contents.paths()) if path in wanted]
            if not rows:
                raise ValueError(f"no {fine} and no image {name!r} in the gallery; {contents.hint(fine, name)}")
            change(writer, state, without=rows)
        self.refresh()
        return len(rows)

    def rename(self, paths: Sequence[str], label: str) -> int:
        """Give images of the gallery this label of the level that is answered; their coarser ones stay."""
        wanted = set(paths)
        with writing(self.folder) as writer:
            state = read_state(self.folder)
            contents = Contents(state)
            rows = [row for row, path in enumerate(contents.paths()) if path in wanted]
            if not rows:
                raise ValueError(f"none of these {len(wanted)} images is in the gallery {self.folder}")
            labels, levels = label_rows(contents, label, coarse=None)
            taken = take_rows(state, rows)
            own = taken.labels.clone()
            own[:, 0] = labels[0]
            more = Rows(taken.vectors, own, taken.paths, taken.thumbnails)
            change(writer, state, without=rows, more=more, levels=levels)
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
        return measure_gallery(self._contents, self.extraction, data, rule=rule, cache=cache, advance=advance)

    def suggest(self, coarse: str | None = None, *, groups: int | None = None, examples: int = 8) -> list[Group]:
        """Groups inside a coarse class (inside the whole gallery, without one) that a person may name."""
        return suggest_groups(self._contents, coarse=coarse, num_groups=groups, num_examples=examples)

    def report(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write a page that shows what is in the gallery, with all pictures in it: `report.html` unless told."""
        return write_gallery_page(
            self._contents, self.folder / "report.html" if path is None else Path(path).expanduser()
        )

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

    def _check(self, extraction: Extraction, manifest: Manifest | None = None) -> Extraction:
        """Refuse a model other than the gallery's: embeddings of two models can't be compared."""
        entry = (manifest or self.manifest).model
        if not extraction.has_model_key(entry.key):
            raise ValueError(
                f"the gallery {self.folder} holds embeddings of another model ({entry.name}, {entry.source}): its "
                "weights, image size or crop ratio differ from those of the one given; build the gallery anew"
            )
        return extraction
