"""From what a person writes to the store of a gallery: a folder, unless the address is one of Milvus."""

import os
from pathlib import Path
from typing import Any

from vitrail.gallery.folder_store import FolderStore
from vitrail.gallery.milvus_address import is_milvus, read_address
from vitrail.gallery.store import GalleryStore


def open_store(place: str | os.PathLike[str] | GalleryStore, **settings: Any) -> GalleryStore:
    """The store that an address means; nothing is read yet. `settings` are those of a new gallery on Milvus."""
    if isinstance(place, GalleryStore):
        return place
    if is_milvus(place):
        from vitrail.gallery.milvus_settings import MilvusSettings
        from vitrail.gallery.milvus_store import MilvusStore

        return MilvusStore(read_address(os.fspath(place)), settings=MilvusSettings(**settings))
    if settings:
        raise ValueError(f"{next(iter(settings))} is for galleries on Milvus, and {place} is a folder")
    return FolderStore(Path(place))
