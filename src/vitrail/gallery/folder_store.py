"""The store that is a folder: one file lists all others, and takes the place of the one before when it is complete."""

import contextlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from vitrail.gallery.folder_changes import change, with_index
from vitrail.gallery.folder_files import LOCK_FILE, MOVE_FILE, NOTE_FILES, Writer, check_new, read_state, writing
from vitrail.gallery.folder_table import FolderTable
from vitrail.gallery.gallery_damage import compare
from vitrail.gallery.gallery_manifest import MANIFEST_FILE, GalleryFacts, Manifest, PartEntry, read_manifest
from vitrail.gallery.image_rows import Rows
from vitrail.gallery.index import choose_index
from vitrail.gallery.part_files import read_part, write_part
from vitrail.gallery.store import GalleryBuilder, GalleryStore, GalleryWriter
from vitrail.storage import read_json, read_text, sync, write_text


class FolderStore(GalleryStore):
    """A gallery in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.expanduser()
        self.place = str(self.folder)
        self.embeddings_place = self.folder.with_name(f"{self.folder.name}.embeddings")

    @property
    def title(self) -> str:
        """The name of the folder."""
        return self.folder.name

    def read_facts(self) -> Manifest:
        """What `gallery.json` says."""
        return read_manifest(self.folder)

    def read(self) -> FolderTable:
        """One whole state, whose files stay on the disk."""
        return FolderTable(read_state(self.folder))

    def stamp(self) -> object:
        """When `gallery.json` was put in its place, and which file it is."""
        status = (self.folder / MANIFEST_FILE).stat()
        return status.st_mtime_ns, status.st_ino

    @contextlib.contextmanager
    def writing(self) -> Iterator[GalleryWriter]:
        """Hold the lock of the folder."""
        with writing(self.folder) as writer:
            yield _FolderWriter(writer)

    def check_new(self) -> None:
        """Refuse a folder that holds something else."""
        check_new(self.folder)

    def choose_index(self, name: str, *, num_images: int) -> str:
        """exact, or one of faiss."""
        return choose_index(name, num_images=num_images)

    @contextlib.contextmanager
    def building(self, facts: GalleryFacts, *, origin: str | None = None) -> Iterator[GalleryBuilder]:
        """Hold the lock of a new folder."""
        with writing(self.folder, is_new=True) as writer:
            yield _FolderBuilder(writer, facts, origin)

    def remove(self) -> None:
        """Remove the list of files first: what a kill in between leaves belongs to no gallery."""
        try:
            (self.folder / MANIFEST_FILE).unlink(missing_ok=True)
            if self.folder.is_dir():
                Writer(self.folder).clean(set())
                for name in (*NOTE_FILES, LOCK_FILE):
                    (self.folder / name).unlink(missing_ok=True)
                if not any(self.folder.iterdir()):
                    self.folder.rmdir()
        except OSError as error:
            raise ValueError(f"the gallery {self.folder} can't be removed: {error.strerror or error}") from None

    def write_note(self, name: str, text: str) -> None:
        """Keep a file in the folder."""
        with writing(self.folder):
            write_text(self.folder / name, text)

    def read_note(self, name: str) -> str | None:
        """The text of a file in the folder."""
        path = self.folder / name
        return read_text(path, remedy="remove it") if path.is_file() else None


class _FolderWriter(GalleryWriter):
    table: FolderTable

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self.table = FolderTable(read_state(writer.folder))

    def change(
        self,
        *,
        without: Collection[int] = (),
        without_class: int | None = None,
        more: Rows | None = None,
        levels: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        gone = set(without)
        if without_class is not None:
            gone |= set(self.table.find_rows({self.table.facts.fine: without_class}).tolist())
        if more is not None:  # as precise as those that are there
            more = replace(more, vectors=more.vectors.to(self.table.vectors.dtype))
        change(self._writer, self.table.state, without=gone, more=more, levels=levels)


class _FolderBuilder(GalleryBuilder):
    def __init__(self, writer: Writer, facts: GalleryFacts, origin: str | None) -> None:
        self._writer, self._facts, self._origin = writer, facts, origin
        self._progress = _find_progress(writer.folder, origin)
        self.last_row = self._progress.last_row
        writer.clean({part.file for part in self._progress.parts} | {MOVE_FILE})

    def add(self, rows: Rows, *, last_row: int) -> None:
        part = write_part(rows, self._writer.new_file("part", "safetensors"))
        self.last_row = last_row
        parts = (*self._progress.parts, part)
        self._progress = _Progress(origin=self._origin, parts=parts, last_row=last_row)
        if self._origin is not None:
            sync(self._writer.folder / part.file)
            write_text(self._writer.folder / MOVE_FILE, self._progress.model_dump_json())

    def finish(self) -> None:
        manifest = Manifest(**self._facts.plain(), parts=self._progress.parts)
        vectors = [read_part(self._writer.folder, part, manifest).vectors for part in manifest.parts]
        self._writer.commit(with_index(self._writer, manifest, vectors))


class _Progress(BaseModel):
    """How far a gallery has come from another place."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    origin: str | None
    parts: tuple[PartEntry, ...] = ()
    last_row: int = -1


def _find_progress(folder: Path, origin: str | None) -> _Progress:
    """How far an attempt before has come with images of the same origin; one that can't be told begins anew."""
    if origin is not None and (folder / MOVE_FILE).is_file():
        try:
            found = _Progress.model_validate(read_json(folder / MOVE_FILE, remedy="remove it"))
            if found.origin == origin:
                for part in found.parts:
                    compare(folder / part.file, size=part.size, sha256=part.sha256)
                return found
        except (ValueError, OSError):
            pass
    return _Progress(origin=origin)
