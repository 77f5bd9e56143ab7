"""From what a person writes to the store of a gallery: a folder, unless the address names another kind of place."""

import os
from pathlib import Path

from vitrail.gallery.folder_store import FolderStore
from vitrail.gallery.store import GalleryStore


def open_store(place: str | os.PathLike[str] | GalleryStore) -> GalleryStore:
    """The store that an address means; nothing is read yet."""
    return place if isinstance(place, GalleryStore) else FolderStore(Path(place))
