"""Changes of a gallery on Milvus: all of it is written beside the state that is there, which then is replaced at once.

What a writer that was killed leaves is told by the row `head`: images with numbers from `next_id` on belong to no
state, and those that are listed as dying did before. The next writer removes both (`recover`).
"""

import contextlib
import os
from collections.abc import Callable, Collection, Mapping

import torch
from torch import Tensor

from vitrail.gallery.gallery_manifest import GalleryFacts
from vitrail.gallery.image_rows import Rows
from vitrail.gallery.milvus_client import Database, GoneError
from vitrail.gallery.milvus_settings import MilvusSettings, choose_kind, complete_params, fields_of_rows, index_of_rows
from vitrail.gallery.milvus_state import Dying, Head, LabelSet, MilvusManifest, StateTexts, TextEntry
from vitrail.gallery.milvus_table import MilvusTable, encode_path, hash_path, label_field
from vitrail.gallery.store import GalleryBuilder, GalleryWriter
from vitrail.gallery.thumbnail_packs import ThumbnailPacks

_BATCH_BYTES, _MAX_BATCH = 8_000_000, 2_000  # of images that are sent at a time
_MANY = 10_000  # images after which the database is asked to sort what was written
_DELETED = 1_000  # images that are removed at a time


class MilvusWriter(GalleryWriter):
    """The writer whose turn it is."""

    table: MilvusTable

    def __init__(
        self, texts: StateTexts, table: MilvusTable, packs: ThumbnailPacks | None, check: Callable[[], None]
    ) -> None:
        self._texts, self.table, self._packs, self._check = texts, table, packs, check

    def change(
        self,
        *,
        without: Collection[int] = (),
        without_class: int | None = None,
        more: Rows | None = None,
        levels: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        texts, head, manifest = self._texts, self.table.head, self.table.facts
        sums = _Sums(self.table)
        gone = sorted(set(without))
        if gone:
            at = torch.tensor(gone)
            sums.add(self.table.labels_of(at), self.table.vectors_of(at), sign=-1)
        if without_class is not None:
            sums.drop_class(without_class)
        number = 0 if more is None else len(more)
        texts.write_head(head.model_copy(update={"is_writing": True}))
        if more is not None and number:
            more = _as_kept(more, manifest)
            send_rows(texts.database, more, first_id=head.next_id, packs=self._packs)
            sums.add(more.labels, more.vectors, sign=1)
        sets, replaced = sums.write(texts)
        now = manifest.model_copy(
            update={
                "generation": manifest.generation + 1,
                "levels": dict(levels or manifest.levels),
                "sets": sets,
            }
        )
        dying = Dying(ids=texts.write_ids(gone)) if gone else Dying(fine=without_class)
        after = Head(
            generation=now.generation,
            next_id=head.next_id + number,
            manifest=texts.write_manifest(now),
            dying=dying if gone or without_class is not None else None,
        )
        self._check()
        texts.write_head(after.model_copy(update={"is_writing": True}))  # from here on it is so
        with contextlib.suppress(GoneError):  # what is left now the next writer removes
            remove_dying(texts, after)
            texts.remove_texts([head.manifest, *replaced])
            texts.write_head(after.model_copy(update={"dying": None}))
            if after.dying is not None and after.dying.ids is not None:
                texts.remove_texts([after.dying.ids])
            if number >= _MANY:
                texts.database.flush(texts.address.name)


class MilvusBuilder(GalleryBuilder):
    """The writer that makes both collections. `find_packs` tells where thumbnails go by what the gallery says."""

    def __init__(
        self,
        texts: StateTexts,
        facts: GalleryFacts,
        *,
        settings: MilvusSettings,
        find_packs: Callable[[MilvusManifest], ThumbnailPacks | None],
        origin: str | None,
        check: Callable[[], None],
    ) -> None:
        self._texts, self._facts, self._settings, self._find_packs = texts, facts, settings, find_packs
        self._origin, self._check = origin, check
        self._head: Head | None = None
        self._manifest: MilvusManifest | None = None
        self.last_row = -1
        self._go_on()

    def _go_on(self) -> None:
        """Go on where an attempt before has come to; what one of another origin has left is removed."""
        texts, address = self._texts, self._texts.address
        head = texts.read_head()
        has_images = texts.database.has(address.name)
        if head is not None and has_images and self._origin is not None and head.origin == self._origin:
            with contextlib.suppress(LookupError):
                self._manifest = texts.read_manifest(head)
                texts.database.load(address.name)
                self._head, self.last_row = head, head.last_row
                recover(texts, head.model_copy(update={"is_writing": True}), self._manifest)
                return
        if head is not None:
            texts.database.delete(texts.collection, keys=["head"])
            texts.sweep([])
        if has_images:
            texts.database.drop(address.name)

    def add(self, rows: Rows, *, last_row: int) -> None:
        texts = self._texts
        if self._head is None or self._manifest is None:
            self._begin(rows)
        assert self._head is not None
        assert self._manifest is not None
        rows = _as_kept(rows, self._manifest)
        first = self._head.next_id
        send_rows(texts.database, rows, first_id=first, packs=self._find_packs(self._manifest))
        sums = _Sums(MilvusTable(texts, self._head, self._manifest, packs=None))
        sums.add(rows.labels, rows.vectors, sign=1)
        sets, replaced = sums.write(texts)
        self._manifest = self._manifest.model_copy(update={"sets": sets})
        before, self.last_row = self._head, last_row
        self._head = Head(
            generation=0,
            next_id=first + len(rows),
            manifest=texts.write_manifest(self._manifest),
            is_writing=True,
            origin=self._origin,
            last_row=last_row,
        )
        self._check()
        texts.write_head(self._head)
        texts.remove_texts([before.manifest, *replaced])

    def _begin(self, rows: Rows) -> None:
        """Make the collection of images."""
        texts, settings, facts = self._texts, self._settings, self._facts
        kind = choose_kind(facts.wanted_index, num_images=len(rows))
        files = settings.files
        if files is not None and "://" not in files:
            files = os.path.abspath(os.path.expanduser(files))
        self._manifest = MilvusManifest.model_validate(
            {
                **facts.plain(),
                "wanted_index": kind,
                **complete_params(settings, kind=kind, num_images=len(rows)),
                "consistency": settings.consistency,
                "is_partitioned": settings.partition,
                "is_half": rows.vectors.dtype == torch.float16,
                "files": files,
            }
        )
        if settings.partition and facts.coarse is None:
            raise ValueError("partition=true needs coarse labels, which the gallery does not have")
        packs = self._find_packs(self._manifest)
        if packs is not None:
            packs.make()
        texts.database.create(texts.address.name, fields_of_rows(self._manifest), index_of_rows(self._manifest))
        entry = texts.write_manifest(self._manifest)
        self._head = Head(generation=0, next_id=0, manifest=entry, is_writing=True, origin=self._origin)
        texts.write_head(self._head)

    def finish(self) -> None:
        texts = self._texts
        if self._head is None or self._manifest is None:  # a gallery without images
            self._begin(Rows(torch.zeros(0, self._facts.dim), torch.zeros(0, len(self._facts.levels)), (), ()))
        assert self._head is not None
        assert self._manifest is not None
        texts.database.flush(texts.address.name)
        head = Head(generation=max(1, self._facts.generation), next_id=self._head.next_id, manifest=self._head.manifest)
        self._check()
        texts.write_head(head)


class _Sums:
    """The numbers of images and sums of embeddings of each combination of labels, as a change makes them."""

    def __init__(self, table: MilvusTable) -> None:
        self._before = {entry.labels: entry for entry in table.facts.sets}
        sums = table.sums
        self._sums = {entry.labels: own.clone() for entry, own in zip(table.facts.sets, sums, strict=True)}
        self._counts = {entry.labels: entry.count for entry in table.facts.sets}
        self._touched: set[tuple[int, ...]] = set()

    def add(self, labels: Tensor, vectors: Tensor, *, sign: int) -> None:
        """Add images, or take them away."""
        if not len(labels):
            return
        kinds, of = labels.long().unique(dim=0, return_inverse=True)
        sums = torch.zeros(len(kinds), vectors.shape[1], dtype=torch.float64).index_add_(0, of, vectors.double())
        for labels_of_kind, count, own in zip(kinds.tolist(), torch.bincount(of).tolist(), sums, strict=True):
            key = tuple(labels_of_kind)
            self._sums[key] = self._sums[key] + sign * own if key in self._sums else sign * own
            self._counts[key] = self._counts.get(key, 0) + sign * count
            self._touched.add(key)

    def drop_class(self, fine: int) -> None:
        """Take all images of a class away."""
        for key in [key for key in self._counts if key[0] == fine]:
            self._counts[key] = 0
            self._touched.add(key)

    def write(self, texts: StateTexts) -> tuple[tuple[LabelSet, ...], list[TextEntry]]:
        """Keep the sums that are new; the combinations that there are then, and the texts that are needed no more."""
        sets, replaced = [], [self._before[key].sums for key in self._touched if key in self._before]
        for key, count in self._counts.items():
            if count > 0:
                kept = self._before[key].sums if key not in self._touched else texts.write_sums(self._sums[key])
                sets.append(LabelSet(labels=key, count=count, sums=kept))
        return tuple(sets), replaced


def recover(texts: StateTexts, head: Head, manifest: MilvusManifest) -> bool:
    """Remove what a writer that was killed has left: images and texts that belong to no state. Whether there were."""
    if not head.is_writing and head.dying is None:
        return False
    texts.database.delete(texts.address.name, where=f"id >= {head.next_id}")
    remove_dying(texts, head)
    texts.write_head(head.model_copy(update={"dying": None}))
    texts.sweep([head.manifest, *(entry.sums for entry in manifest.sets)])
    texts.write_head(head.model_copy(update={"is_writing": False, "dying": None}))
    return True


def remove_dying(texts: StateTexts, head: Head) -> None:
    """Remove the images that the state no longer has."""
    database, collection = texts.database, texts.address.name
    if head.dying is not None and head.dying.fine is not None:
        database.delete(collection, where=f"{label_field(0)} == {head.dying.fine}")
    elif head.dying is not None and head.dying.ids is not None:
        ids = texts.read_ids(head.dying.ids)
        for start in range(0, len(ids), _DELETED):
            database.delete(collection, keys=ids[start : start + _DELETED])


def send_rows(database: Database, rows: Rows, *, first_id: int, packs: ThumbnailPacks | None) -> None:
    """Write images with the numbers from `first_id` on, and their thumbnails before."""
    width = rows.vectors.shape[1] * rows.vectors.element_size() + 500
    step = max(1, min(_MAX_BATCH, _BATCH_BYTES // width))
    for start in range(0, len(rows), step):
        own = rows.choose(range(start, min(start + step, len(rows))))
        places = (
            ThumbnailPacks.nowhere(own.thumbnails)
            if packs is None
            else packs.write(own.thumbnails, number=first_id + start)
        )
        database.insert(
            database.address.name,
            [
                {
                    "id": first_id + start + place,
                    "vector": own.vectors[place].numpy(),
                    **{label_field(column): label for column, label in enumerate(labels)},
                    "path": encode_path(path),
                    "path_key": hash_path(path),
                    "picture_pack": picture.pack,
                    "picture_start": picture.start,
                    "picture_size": picture.size,
                }
                for place, (labels, path, picture) in enumerate(
                    zip(own.labels.tolist(), own.paths, places, strict=True)
                )
            ],
        )


def _as_kept(rows: Rows, manifest: MilvusManifest) -> Rows:
    """Images as precise as they are kept."""
    kind = torch.float16 if manifest.is_half else torch.float32
    return Rows(rows.vectors.to(kind), rows.labels, rows.paths, rows.thumbnails)
