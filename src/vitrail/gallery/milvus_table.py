"""The images of a gallery on Milvus, as the table that is asked: the database searches, and nothing is held here.

A row is the image's number in the collection. Numbers are never used again: those that a change has added since the
state was read are told by being too high, and are left out.
"""

import hashlib
import urllib.parse
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.evaluation.knn import weigh
from vitrail.gallery.answer_rules import ClassMeans, measure_spread
from vitrail.gallery.image_rows import Rows
from vitrail.gallery.milvus_client import Database
from vitrail.gallery.milvus_state import Head, MilvusManifest, StateTexts
from vitrail.gallery.store import ImageTable, Neighbours, StateReplacedError
from vitrail.gallery.thumbnail_packs import NO_PICTURE, PicturePlace, ThumbnailPacks

MAX_FOUND = 16_384  # images that Milvus finds for a query at most
_AT_ONCE = 1_000  # images that are asked for by their numbers at a time
_MAX_RESULTS = 262_144  # found images of all queries of one search
_MAX_LISTED = 10_000  # numbers in a filter
_ROUNDING = 1e-3  # by which a cosine may be above 1
_ENCODED = "%bytes:"  # how a path begins that is not written as it is
_MAX_SEARCHES = 3  # for one answer: with less effort, with all of it, without images that come at this moment
_Line = list[tuple[float, int, list[int]]]  # what is found for a query: cosines, rows and labels


class MilvusTable(ImageTable):
    """All images of one state of a collection."""

    max_whole = 2_000_000

    def __init__(
        self, texts: StateTexts, head: Head, manifest: MilvusManifest, *, packs: ThumbnailPacks | None
    ) -> None:
        self.facts: MilvusManifest = manifest
        self.head, self.place = head, texts.address.text
        self._texts, self._packs = texts, packs
        self._database: Database = texts.database
        self._collection = texts.address.name
        self._label_fields = [label_field(column) for column in range(len(manifest.levels))]

    def __len__(self) -> int:
        return sum(entry.count for entry in self.facts.sets)

    def label_sets(self) -> Mapping[tuple[int, ...], int]:
        """The combinations of labels."""
        return {entry.labels: entry.count for entry in self.facts.sets}

    def nearest(self, queries: Tensor, *, count: int, bonus: Tensor | None = None) -> Neighbours:
        """The best images for each query: one search, or with a bonus one for each that coarse classes have."""
        count = min(count, len(self))
        if count > MAX_FOUND:
            raise ValueError(f"Milvus finds {MAX_FOUND:,} images for a query at most, not {count:,}")
        if bonus is None:
            found = self._search(queries, count=count)
            return Neighbours(found.scores.to(queries.dtype), found.cosines, found.rows, found.labels)
        singles = [
            self._find_with_bonus(query[None], own, count=count) for query, own in zip(queries, bonus, strict=True)
        ]
        return Neighbours(*(torch.cat(parts) for parts in zip(*singles, strict=True)))

    def _find_with_bonus(self, query: Tensor, bonus: Tensor, *, count: int) -> Neighbours:
        """Search the coarse classes by their bonus, the highest first, until the next can't reach what was found."""
        column = self._coarse_column
        classes: dict[float, list[int]] = {}
        for label in sorted({labels[column] for labels in self.label_sets()}):
            classes.setdefault(float(bonus[label]), []).append(label)
        best: Neighbours | None = None
        for added, own in sorted(classes.items(), reverse=True):
            if best is not None and best.rows.shape[1] == count and float(best.scores[0, -1]) >= added + 1 + _ROUNDING:
                break
            num_there = sum(number for labels, number in self.label_sets().items() if labels[column] in own)
            found = self._search(query, count=min(count, num_there), where=f"{self._label_fields[column]} in {own}")
            found = found._replace(scores=found.scores + added)
            best = (
                found
                if best is None
                else Neighbours(*(torch.cat(pair, dim=1) for pair in zip(best, found, strict=True)))
            )
            order = best.scores[0].argsort(descending=True, stable=True)[:count]
            best = Neighbours(*(part[:, order] for part in best))
        assert best is not None
        return best

    def _search(self, queries: Tensor, *, count: int, where: str = "") -> Neighbours:
        """The `count` nearest images that a filter lets through, of which there are so many: scores are cosines."""
        lines: list[_Line] = []
        for part in queries.float().split(max(1, _MAX_RESULTS // max(1, count))):
            lines += self._search_part(part, count=count, where=where)
        width = min(map(len, lines), default=0)
        if not width:
            raise StateReplacedError
        shape = (len(lines), width)
        lines = [line[:width] for line in lines]
        cosines = torch.tensor([[cosine for cosine, _, _ in line] for line in lines], dtype=torch.float64).view(shape)
        rows = torch.tensor([[row for _, row, _ in line] for line in lines], dtype=torch.int64).view(shape)
        labels = torch.tensor([[own for _, _, own in line] for line in lines], dtype=torch.int64)
        return Neighbours(cosines, cosines.float(), rows, labels.view(*shape, len(self._label_fields)))

    def _search_part(self, queries: Tensor, *, count: int, where: str) -> list[_Line]:
        """As many images for each query, or where the index finds fewer even with all its effort, those."""
        kind = np.float16 if self.facts.is_half else np.float32
        data = [vector.astype(kind) for vector in queries.numpy()]
        lines: list[_Line] = []
        is_strict, params = False, search_params(self.facts, count=count)
        for _ in range(_MAX_SEARCHES):
            found = self._database.search(
                self._collection,
                data,
                count=count,
                where=self._filter(where, is_strict=is_strict),
                fields=self._label_fields,
                params=params,
                consistency_level=self.facts.consistency,
            )
            lines = [[self._read_hit(hit) for hit in hits] for hits in found]
            if any(row >= self.head.next_id for line in lines for _, row, _ in line):
                is_strict = True  # a change adds images at this moment
            elif any(len(line) < count for line in lines) and params != whole_effort(self.facts):
                params = whole_effort(self.facts)
            else:
                break
        if self.facts.wanted_index == "exact" and any(len(line) != count for line in lines):
            raise StateReplacedError  # images went meanwhile
        return lines

    def _read_hit(self, hit: Mapping[str, Any]) -> tuple[float, int, list[int]]:
        row = int(hit["id"])
        labels = [-1] * len(self._label_fields)
        if row < self.head.next_id:
            labels = self._check_labels(hit["entity"])
        return float(hit["distance"]), row, labels

    def _check_labels(self, entity: Mapping[str, Any]) -> list[int]:
        labels = [int(entity[field]) for field in self._label_fields]
        if any(not -1 <= label < len(names) for label, names in zip(labels, self.facts.levels.values(), strict=True)):
            raise self._texts.damage("it has labels that are not listed")
        return labels

    @cached_property
    def _without(self) -> str:
        """A filter against images that are about to be removed."""
        dying = self.head.dying
        if dying is None:
            return ""
        if dying.fine is not None:
            return f"{label_field(0)} != {dying.fine}"
        assert dying.ids is not None
        return f"id not in {self._texts.read_ids(dying.ids)}"

    def _filter(self, where: str = "", *, is_strict: bool = True) -> str:
        """The filter of this state and another; without need there is none, which is the fastest."""
        only = f"id < {self.head.next_id}" if is_strict or self.head.is_writing else ""
        return " and ".join(f"({part})" for part in (only, self._without, where) if part)

    def coarse_probabilities(self, queries: Tensor) -> Tensor:
        """The probabilities by the votes of the nearest images: of all, up to as many as Milvus finds for a query."""
        column = self._coarse_column
        num_classes = len(self.facts.levels[str(self.facts.coarse)])
        sums = torch.zeros(len(queries), num_classes + 1, dtype=torch.float64)
        for place, query in enumerate(queries):
            found = self._search(query[None], count=min(len(self), MAX_FOUND))
            sums[place].index_add_(0, found.labels[0, :, column].remainder(num_classes + 1), weigh(found.scores[0]))
        known = sums[:, :-1]
        return known / known.sum(dim=1, keepdim=True).clamp(min=torch.finfo(known.dtype).tiny)

    def means(self, coarse: int | None = None) -> ClassMeans:
        """The means, from sums that changes keep up to date."""
        whole = self._add_up(None)
        spread = measure_spread(whole.sums, whole.counts)
        found = whole if coarse is None else self._add_up(coarse)
        return ClassMeans(found.sums, found.counts, spread)

    def _add_up(self, coarse: int | None) -> ClassMeans:
        num_classes = len(self.facts.levels[self.facts.fine])
        sums, counts = torch.zeros(num_classes, self.facts.dim, dtype=torch.float64), torch.zeros(num_classes)
        for entry, own in zip(self.facts.sets, self._sums, strict=True):
            if entry.labels[0] >= 0 and (coarse is None or entry.labels[self._coarse_column] == coarse):
                sums[entry.labels[0]] += own
                counts[entry.labels[0]] += entry.count
        return ClassMeans(sums.float(), counts, 0.0)

    @cached_property
    def _sums(self) -> Tensor:
        return self._read(lambda: self._texts.read_sums(self.facts))

    @property
    def sums(self) -> Tensor:
        """The sums of the embeddings of each combination of labels, float64 [combinations, dim]."""
        return self._sums

    def find_rows(self, labels: Mapping[str, int], *, limit: int | None = None) -> Tensor:
        """The rows of images with these labels."""
        levels = list(self.facts.levels)
        where = self._filter(" and ".join(f"{label_field(levels.index(name))} == {of}" for name, of in labels.items()))
        if limit is not None:
            found = self._database.query(self._collection, where, fields=["id"], limit=min(limit, MAX_FOUND))
            return torch.tensor(sorted(int(row["id"]) for row in found), dtype=torch.int64)
        pages = self._database.iterate(self._collection, where, fields=["id"], size=MAX_FOUND // 2)
        return torch.tensor([int(row["id"]) for page in pages for row in page], dtype=torch.int64)

    def find_paths(self, paths: Collection[str]) -> list[int]:
        """The rows of images with these paths, by a hash of each."""
        keys, wanted, rows = sorted(set(map(hash_path, paths))), set(paths), []
        for start in range(0, len(keys), _AT_ONCE):
            where = self._filter(f"path_key in {keys[start : start + _AT_ONCE]}")
            found = self._database.query(self._collection, where, fields=["id", "path"])
            rows += [int(row["id"]) for row in found if decode_path(str(row["path"])) in wanted]
        return sorted(rows)

    def labels_of(self, rows: Tensor) -> Tensor:
        """The labels of images."""
        found = [self._check_labels(row) for row in self._get(rows.tolist(), self._label_fields)]
        return torch.tensor(found, dtype=torch.int64).view(len(found), len(self._label_fields))

    def vectors_of(self, rows: Tensor) -> Tensor:
        """The embeddings of images."""
        return self._read_vectors(self._get(rows.tolist(), ["vector"]))

    def paths_of(self, rows: Sequence[int]) -> list[str]:
        """Where images were."""
        return [decode_path(str(row["path"])) for row in self._get(rows, ["path"])]

    def thumbnails_of(self, rows: Sequence[int]) -> list[bytes]:
        """The thumbnails of images, from their packs."""
        if self._packs is None:
            return [b""] * len(rows)
        return self._packs.read([_read_place(row) for row in self._get(rows, PICTURE_FIELDS)])

    def pages(self, *, after: int = -1, size: int) -> Iterator[tuple[int, Rows]]:
        """All images behind a row, some at a time."""
        fields = ["id", "vector", "path", *self._label_fields, *PICTURE_FIELDS]
        where = self._filter(f"id > {after}")
        for page in self._database.iterate(self._collection, where, fields=fields, size=min(size, MAX_FOUND)):
            ids = [int(row["id"]) for row in page]
            if ids != sorted(ids) or ids[0] <= after:
                raise self._texts.damage("its images do not come in their order")
            after = ids[-1]
            labels = torch.tensor([self._check_labels(row) for row in page], dtype=torch.int32)
            paths = tuple(decode_path(str(row["path"])) for row in page)
            places = [_read_place(row) for row in page]
            pictures = [b""] * len(page) if self._packs is None else self._packs.read(places)
            yield after, Rows(self._read_vectors(page), labels, paths, tuple(pictures))

    @property
    def _coarse_column(self) -> int:
        return list(self.facts.levels).index(str(self.facts.coarse))

    def _get(self, rows: Sequence[int], fields: Sequence[str]) -> list[dict[str, Any]]:
        """Rows of the collection, in this order."""
        found: dict[int, dict[str, Any]] = {}
        for start in range(0, len(rows), _AT_ONCE):
            own = rows[start : start + _AT_ONCE]
            found.update(
                (int(row["id"]), row) for row in self._database.get(self._collection, own, fields=["id", *fields])
            )
        if any(row not in found for row in rows):
            raise StateReplacedError
        return [found[row] for row in rows]

    def _read(self, read: Any) -> Any:
        """What the texts of this state say, which go when another takes its place."""
        try:
            return read()
        except LookupError as error:
            now = self._texts.read_head()
            if now is not None and now.generation != self.head.generation:
                raise StateReplacedError from None
            raise self._texts.damage(f"the text {error} is missing") from None

    def _read_vectors(self, rows: Sequence[Mapping[str, Any]]) -> Tensor:
        kind = np.float16 if self.facts.is_half else np.float32
        values = [row["vector"] for row in rows]
        arrays = [
            np.frombuffer(value, dtype=kind) if isinstance(value, bytes) else np.asarray(value, dtype=kind)
            for value in values
        ]
        if any(array.shape != (self.facts.dim,) for array in arrays):
            raise self._texts.damage(f"it has embeddings that are not of {self.facts.dim} numbers")
        vectors = torch.from_numpy(np.stack(arrays)) if arrays else torch.zeros(0, self.facts.dim)
        if not bool(vectors.isfinite().all()):
            raise self._texts.damage("it has embeddings that are no numbers")
        return vectors


PICTURE_FIELDS = ("picture_pack", "picture_start", "picture_size")


def _read_place(row: Mapping[str, Any]) -> PicturePlace:
    place = PicturePlace(*(int(row[field]) for field in PICTURE_FIELDS))
    return place if min(place) >= 0 else NO_PICTURE


def label_field(column: int) -> str:
    """The field of the labels of a level."""
    return f"label_{column}"


def hash_path(path: str) -> int:
    """A number of 63 bits by which images with this path are found."""
    digest = hashlib.sha256(path.encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def encode_path(path: str) -> str:
    """A path as UTF-8 can write it: itself, or its bytes in percent signs."""
    try:
        path.encode("utf-8")
        if not path.startswith(_ENCODED):
            return path
    except UnicodeEncodeError:
        pass
    return _ENCODED + urllib.parse.quote_from_bytes(path.encode("utf-8", "surrogateescape"))


def decode_path(text: str) -> str:
    """The path that was written so."""
    if not text.startswith(_ENCODED):
        return text
    return urllib.parse.unquote_to_bytes(text.removeprefix(_ENCODED)).decode("utf-8", "surrogateescape")


def search_params(manifest: MilvusManifest, *, count: int) -> dict[str, int | float | str]:
    """What a search tells the index: what the gallery's settings say, and at least what finding so many needs."""
    params = dict(manifest.search_params)
    needed = {"hnsw": "ef", "diskann": "search_list"}.get(manifest.wanted_index)
    if needed is not None:
        params[needed] = max(int(params.get(needed, 0)), count)
    return params


def whole_effort(manifest: MilvusManifest) -> dict[str, int | float | str]:
    """What tells an index to look everywhere, or as far as it can."""
    effort: dict[str, dict[str, int | float | str]] = {
        "ivf": {"nprobe": manifest.index_params.get("nlist", MAX_FOUND)},
        "hnsw": {"ef": 2 * MAX_FOUND},
        "diskann": {"search_list": 4 * MAX_FOUND - 1},
    }
    return {**manifest.search_params, **effort.get(manifest.wanted_index, {})}
