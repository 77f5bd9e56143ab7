"""The store that is a collection of Milvus, on a server or in a file of milvus-lite."""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

from vitrail.gallery.gallery_manifest import GalleryFacts
from vitrail.gallery.milvus_address import MilvusAddress
from vitrail.gallery.milvus_client import Database, GoneError, close_file, files_beside, missing_gallery
from vitrail.gallery.milvus_settings import MilvusSettings, choose_kind, fields_of_rows
from vitrail.gallery.milvus_state import MAX_DIM, MilvusManifest, StateTexts, damaged
from vitrail.gallery.milvus_table import MilvusTable
from vitrail.gallery.milvus_turns import taking_turn
from vitrail.gallery.milvus_writing import MilvusBuilder, MilvusWriter, recover
from vitrail.gallery.store import GalleryBuilder, GalleryStore, GalleryWriter, ImageTable
from vitrail.gallery.store_failures import StoreFailedError
from vitrail.gallery.thumbnail_packs import ThumbnailPacks
from vitrail.storage import locked

_ATTEMPTS = 100  # at a state that other processes replace while it is read


class MilvusStore(GalleryStore):
    """A gallery in two collections: NAME has the images, NAME_vitrail says what is in it."""

    def __init__(self, address: MilvusAddress, *, settings: MilvusSettings | None = None) -> None:
        self.address, self.settings = address, settings or MilvusSettings()
        self.place = address.text
        self.folder = Path.cwd() if address.file is None else files_beside(address.file) / address.name

    @property
    def title(self) -> str:
        """The name of the collection."""
        return self.address.name

    def close(self) -> None:
        """Let other processes open a file of milvus-lite."""
        self.__dict__.pop("_texts", None)
        if self.address.file is not None:
            close_file(self.address.file)

    def read_facts(self) -> MilvusManifest:
        """What the gallery is made of."""
        return self.read().facts

    def read(self) -> MilvusTable:
        """One whole state."""
        return self._read_at(self._texts_of_gallery())

    def renewed(self, table: ImageTable) -> ImageTable:
        """The gallery's present state: the database does not keep those of before."""
        head = self._texts_of_gallery().read_head()
        return table if isinstance(table, MilvusTable) and head == table.head else self.read()

    @contextlib.contextmanager
    def writing(self) -> Iterator[GalleryWriter]:
        """Wait for one's turn, and set right what a writer that was killed has left."""
        texts = self._texts_of_gallery()
        with self._turn(texts) as check:
            table = self._read_at(texts)
            if recover(texts, table.head, table.facts):
                table = self._read_at(texts)
            yield MilvusWriter(texts, table, self._packs(table.facts), check)

    def check_new(self) -> None:
        """Refuse a name that is taken; what a killed `build` left is no hindrance."""
        if self.address.file is not None:
            _check_place(self.address.file)
            if not self.address.file.exists():
                return
        database = Database(self.address)
        texts = StateTexts(database)
        has_images, has_texts = database.has(self.address.name), database.has(self.address.state_name)
        if has_images and not has_texts:
            raise _foreign(self.address)
        head = texts.read_head() if has_texts else None
        if head is not None and head.generation > 0:
            raise ValueError(f"{self.place} holds a gallery already: choose another name, or remove it first")

    def choose_index(self, name: str, *, num_images: int) -> str:
        """One of Milvus's."""
        kind = choose_kind(name, num_images=num_images)
        if kind == "diskann" and self.address.file is not None:
            raise ValueError("milvus-lite has no index diskann: use a server, or index=hnsw")
        return kind

    @contextlib.contextmanager
    def building(self, facts: GalleryFacts, *, origin: str | None = None) -> Iterator[GalleryBuilder]:
        """Make both collections, or go on with those that an attempt before has made of the same origin."""
        if facts.dim > MAX_DIM:
            raise ValueError(f"a gallery on Milvus has embeddings of up to {MAX_DIM:,} numbers, not {facts.dim:,}")
        self.check_new()
        database = Database(self.address, is_new=True)
        texts = StateTexts(database)
        if not database.has(self.address.state_name):
            texts.create()
        database.load(self.address.state_name)
        with self._turn(texts) as check:
            self.check_new()  # nobody has made one meanwhile
            yield MilvusBuilder(
                texts, facts, settings=self.settings, find_packs=self._packs, origin=origin, check=check
            )

    def write_note(self, name: str, text: str) -> None:
        """Keep a text in the database."""
        texts = self._texts_of_gallery()
        with self._turn(texts):
            texts.write_note(name, text)

    def read_note(self, name: str) -> str | None:
        """A text of the database."""
        return self._texts_of_gallery().read_note(name)

    def remove(self) -> None:
        """Remove the thumbnails and both collections; a kill in between leaves what the next `build` clears away."""
        database = Database(self.address)
        texts = StateTexts(database)
        if not database.has(self.address.state_name):
            return
        database.load(self.address.state_name)
        head = texts.read_head()
        if head is not None:
            texts.write_head(head.model_copy(update={"generation": 0, "origin": None, "last_row": -1}))
            with contextlib.suppress(LookupError):
                packs = self._packs(texts.read_manifest(head))
                if packs is not None:
                    packs.remove()
        for collection in (self.address.name, self.address.state_name):
            if database.has(collection):
                database.drop(collection)
        self.__dict__.pop("_texts", None)

    @cached_property
    def _texts(self) -> StateTexts:
        database = Database(self.address)
        has_images, has_texts = database.has(self.address.name), database.has(self.address.state_name)
        if not has_texts and has_images:
            raise _foreign(self.address)
        if not has_texts or not has_images:
            raise missing_gallery(self.address)
        for collection in (self.address.state_name, self.address.name):
            database.load(collection)
        return StateTexts(database)

    def _texts_of_gallery(self) -> StateTexts:
        """The texts of the gallery, which must be one."""
        try:
            return self._texts
        except GoneError as error:
            if "not found" in str(error).lower():
                raise missing_gallery(self.address) from None
            raise

    def _read_at(self, texts: StateTexts) -> MilvusTable:
        for _ in range(_ATTEMPTS):
            head = texts.read_head()
            if head is None or head.generation == 0:
                raise missing_gallery(self.address)
            try:
                manifest = texts.read_manifest(head)
            except LookupError as error:
                if texts.read_head() == head:
                    raise texts.damage(f"the text {error} is missing") from None
                continue
            self._check_fields(texts, manifest)
            return MilvusTable(texts, head, manifest, packs=self._packs(manifest))
        raise StoreFailedError(
            f"the gallery {self.place} changes faster than it can be read: try again when fewer write"
        )

    def _check_fields(self, texts: StateTexts, manifest: MilvusManifest) -> None:
        """Refuse a collection of images that is not the one that is listed."""
        found = texts.database.describe(self.address.name)
        for name, kind, settings in fields_of_rows(manifest):
            if name not in found or found[name][0] != kind:
                raise damaged(self.address, f"its images have no field {name} of {kind}")
            if "dim" in settings and int(found[name][1].get("dim", 0)) != manifest.dim:
                has = found[name][1].get("dim")
                raise damaged(self.address, f"its embeddings have {has} numbers instead of {manifest.dim}")

    def _packs(self, manifest: MilvusManifest) -> ThumbnailPacks | None:
        if manifest.files is not None:
            return ThumbnailPacks(manifest.files)
        return ThumbnailPacks(str(self.folder)) if self.address.file is not None else None

    @contextlib.contextmanager
    def _turn(self, texts: StateTexts) -> Iterator[Callable[[], None]]:
        """The turn to write: of threads of this process for a file, of all processes for a server."""
        if self.address.file is None:
            with taking_turn(texts.database, texts.collection) as check:
                yield check
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder / ".lock"):
            yield lambda: None


def _check_place(file: Path) -> None:
    there: Sequence[Path] = [place for place in (file, *file.parents) if place.exists()]
    if not there[0].is_dir():
        raise ValueError(f"a gallery can't be made in {file}: {there[0]} is a file")
    if not os.access(there[0], os.W_OK):
        raise ValueError(f"a gallery can't be made in {file}: {there[0]} may not be written to")


def _foreign(address: MilvusAddress) -> ValueError:
    return ValueError(
        f"{address.text}: the collection {address.name} is there and is no gallery of vitrail's: choose another name"
    )
