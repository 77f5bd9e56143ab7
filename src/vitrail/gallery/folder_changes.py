"""Changes of a gallery's folder: images that come and go. Each is one new state of the folder."""

from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from vitrail.gallery.folder_files import State, Writer
from vitrail.gallery.gallery_damage import hash_content
from vitrail.gallery.gallery_manifest import FORMAT, IndexEntry, Manifest, PartEntry
from vitrail.gallery.image_rows import Rows
from vitrail.gallery.index import write_index
from vitrail.gallery.part_files import read_part, write_part

Listed = TypeVar("Listed", PartEntry, IndexEntry)
_MAX_PARTS = 32  # files of images; where there are more, all but the first become one
_UNCOVERED_SHARE, _UNCOVERED_LEAST = 0.1, 1000  # images beside an approximate index that a search may go through


def change(
    writer: Writer,
    state: State,
    *,
    without: Collection[int] = (),
    more: Rows | None = None,
    levels: Mapping[str, tuple[str, ...]] | None = None,
) -> None:
    """Commit the state without some rows, with more images, and with these classes."""
    parts, start, gone = [], 0, set(without)
    for entry, part in zip(state.manifest.parts, state.parts, strict=True):
        kept = [place for place in range(len(part)) if start + place not in gone]
        start += len(part)
        if len(kept) == len(part):
            parts.append(_with_checksum(writer, entry))
        elif kept:
            parts.append(write_part(part.rows().choose(kept), writer.new_file("part", "safetensors")))
    if more is not None and len(more):
        parts.append(write_part(more, writer.new_file("part", "safetensors")))
    manifest = state.manifest.model_copy(
        update={
            "format": FORMAT,
            "generation": state.manifest.generation + 1,
            "levels": dict(levels or state.manifest.levels),
            "parts": tuple(parts),
        }
    )
    if len(parts) > _MAX_PARTS:
        manifest = manifest.model_copy(update={"parts": (parts[0], _join(writer, manifest, parts[1:]))})
    writer.commit(_keep_index(writer, manifest))


def take_rows(state: State, rows: Sequence[int]) -> Rows:
    """Some images of a state, with all that is known of them."""
    found, start = [], 0
    for part in state.parts:
        own = [row - start for row in rows if start <= row < start + len(part)]
        if own:
            found.append(part.rows().choose(own))
        start += len(part)
    return Rows.joined(found)


def with_index(writer: Writer, manifest: Manifest, vectors: Sequence[Tensor]) -> Manifest:
    """The manifest with a new approximate index of all images of its parts, where it asks for one."""
    if manifest.wanted_index == "exact" or not sum(map(len, vectors)):
        return manifest.model_copy(update={"index": None})
    path = writer.new_file("index", "faiss")
    write_index(manifest.wanted_index, vectors[0] if len(vectors) == 1 else torch.cat(list(vectors)), path)
    entry = IndexEntry(
        kind=manifest.wanted_index,
        file=path.name,
        size=path.stat().st_size,
        parts=tuple(part.file for part in manifest.parts),
        sha256=hash_content(path),
    )
    return manifest.model_copy(update={"index": entry})


def _join(writer: Writer, manifest: Manifest, parts: Sequence[PartEntry]) -> PartEntry:
    rows = Rows.joined([read_part(writer.folder, part, manifest).rows() for part in parts])
    return write_part(rows, writer.new_file("part", "safetensors"))


def _with_checksum(writer: Writer, entry: Listed) -> Listed:
    """The entry with its file's checksum, which galleries of before do not have."""
    if entry.sha256 is not None:
        return entry
    return entry.model_copy(update={"sha256": hash_content(writer.folder / entry.file)})


def _keep_index(writer: Writer, manifest: Manifest) -> Manifest:
    """The same index while its images are all there and few are not in it; else a new one."""
    entry = manifest.index
    if entry is None and manifest.wanted_index == "exact":
        return manifest
    covered = manifest.parts[: len(entry.parts)] if entry is not None else ()
    num_covered = sum(part.count for part in covered)
    num_others = sum(part.count for part in manifest.parts) - num_covered
    is_whole = entry is not None and tuple(part.file for part in covered) == entry.parts
    if is_whole and num_others <= max(_UNCOVERED_LEAST, _UNCOVERED_SHARE * num_covered):
        assert entry is not None
        return manifest.model_copy(update={"index": _with_checksum(writer, entry)})
    return with_index(writer, manifest, [read_part(writer.folder, part, manifest).vectors for part in manifest.parts])
