"""The store that is a folder: one file lists all others, and takes the place of the one before when it is complete."""

import contextlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from vitrail.gallery.folder_changes import change, with_index
from vitrail.gallery.folder_files import Writer, check_new, read_state, writing
from vitrail.gallery.folder_table import FolderTable
from vitrail.gallery.gallery_manifest import GalleryFacts, Manifest, PartEntry, read_manifest
from vitrail.gallery.image_rows import Rows
from vitrail.gallery.index import choose_index
from vitrail.gallery.part_files import read_part, write_part
from vitrail.gallery.store import GalleryBuilder, GalleryStore, GalleryWriter
from vitrail.storage import read_text, write_text


class FolderStore(GalleryStore):
    """A gallery in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.expanduser()
        self.place = str(self.folder)

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
            yield _FolderBuilder(writer, facts)

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
    def __init__(self, writer: Writer, facts: GalleryFacts) -> None:
        self._writer, self._facts = writer, facts
        self._parts: list[PartEntry] = []
        self.last_row = -1

    def add(self, rows: Rows, *, last_row: int) -> None:
        self._parts.append(write_part(rows, self._writer.new_file("part", "safetensors")))
        self.last_row = last_row

    def finish(self) -> None:
        manifest = Manifest(**self._facts.plain(), parts=tuple(self._parts))
        vectors = [read_part(self._writer.folder, part, manifest).vectors for part in manifest.parts]
        self._writer.commit(with_index(self._writer, manifest, vectors))
