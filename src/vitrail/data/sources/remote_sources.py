"""Folders and manifests at addresses: listed and read as those of this disk, with images that are objects."""

from pathlib import Path

from vitrail.data.contract import Faults, Labels, Source
from vitrail.data.remote.addresses import name_of, parent_of
from vitrail.data.remote.block_cache import block_cache
from vitrail.data.remote.objects import look_at
from vitrail.data.remote.remote_file import RemoteFile
from vitrail.data.remote.remote_images import RemoteFolder
from vitrail.data.sources.folder import open_folder
from vitrail.data.sources.manifest import open_manifest
from vitrail.storage import replacing

_MAX_MANIFEST_BYTES = 1 << 33
_PART = 1 << 24


def open_remote_folder(address: str, *, val_share: float, seed: int, labels: Labels) -> Source:
    """The images below a prefix of a bucket, which is listed once."""
    root = RemoteFolder(address)
    return open_folder(root, name=root.name, val_share=val_share, seed=seed, labels=labels)


def open_remote_manifest(address: str, *, val_share: float, seed: int, needs_labels: bool, faults: Faults) -> Source:
    """The images that a manifest at an address lists: their paths start where it lies, or are addresses themselves."""
    path = _fetch(address)
    try:
        return open_manifest(
            path,
            name=path.stem,
            val_share=val_share,
            seed=seed,
            needs_labels=needs_labels,
            faults=faults,
            base=parent_of(address),
        )
    except ValueError as error:  # what a person knows it by
        raise ValueError(str(error).replace(str(path), address)) from None


def _fetch(address: str) -> Path:
    """A copy of an object on this disk, of the state it is in now."""
    try:
        file = RemoteFile(address, look_at(address))
    except FileNotFoundError:
        raise ValueError(f"there is no object {address}") from None
    if file.mark.size > _MAX_MANIFEST_BYTES:
        raise ValueError(f"{address} has {file.mark.size:,} bytes, more than any manifest: put the images into shards")
    folder = block_cache().folder / "manifests" / file.key
    path = folder / name_of(address)
    try:
        if not path.exists() or path.stat().st_size != file.mark.size:
            folder.mkdir(parents=True, exist_ok=True)
            with replacing(path) as draft, draft.open("wb") as target:
                for start in range(0, file.mark.size, _PART):
                    target.write(file.read(_PART, start))
    except OSError as error:
        raise ValueError(f"{address} can't be kept in {folder}: {error.strerror or error}") from None
    return path
