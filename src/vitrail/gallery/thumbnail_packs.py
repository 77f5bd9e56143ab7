"""Thumbnails of galleries on a database: packs of many in one file, in a folder or in an object store.

A pack is written once. An image's row says which pack holds its thumbnail, where it starts and how long it is, so that
one range of one file is read for it.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vitrail.gallery.store_failures import StoreFailedError
from vitrail.storage import write_whole

_MARK = ".vitrail-thumbnails"  # the file that folders of thumbnails have
_STORES = re.compile(r"(s3|gs|gcs|az|abfs|https?|memory)://[^:]+(:\d+/[^:]*)?")  # of objects; no chains of fsspec's
_MAX_PICTURE = 1 << 20  # bytes; ours have about 2,000


class PicturePlace(NamedTuple):
    """Where a thumbnail is."""

    pack: int
    start: int
    size: int  # 0: there is none


NO_PICTURE = PicturePlace(0, 0, 0)


class ThumbnailPacks:
    """The packs of one gallery, in a folder or below an address such as s3://BUCKET/PATH."""

    def __init__(self, place: str) -> None:
        self.place = place
        self._remote = _open_remote(place) if "://" in place else None

    @staticmethod
    def nowhere(pictures: Sequence[bytes]) -> list[PicturePlace]:
        """The places of pictures that are not kept."""
        return [NO_PICTURE] * len(pictures)

    def make(self) -> None:
        """Make the folder. Only a folder that was made so is written to: its name may come from a database."""
        if self._remote is None:
            try:
                Path(self.place).mkdir(parents=True, exist_ok=True)
                (Path(self.place) / _MARK).touch()
            except OSError as error:
                raise StoreFailedError(f"thumbnails can't be kept in {self.place}: {error.strerror}") from None

    def _check_made(self) -> None:
        if not (Path(self.place) / _MARK).is_file():
            raise ValueError(f"it has no file {_MARK}: make the folder and that file if thumbnails belong there")

    def write(self, pictures: Sequence[bytes], *, number: int) -> list[PicturePlace]:
        """Write a pack and tell where each of its pictures is; a pack of the same number is replaced."""
        if not any(pictures):
            return self.nowhere(pictures)
        places, start = [], 0
        for picture in pictures:
            places.append(PicturePlace(number, start, len(picture)) if picture else NO_PICTURE)
            start += len(picture)
        content = b"".join(pictures)
        try:
            if self._remote is None:
                self._check_made()
                write_whole(Path(self.place) / _name(number), lambda file: file.write(content))
            else:
                system, root = self._remote
                system.pipe_file(f"{root}/{_name(number)}", content)
        except Exception as error:  # object stores have errors of their own
            raise StoreFailedError(f"thumbnails can't be written to {self.place}: {_reason(error)}") from None
        return places

    def read(self, places: Sequence[PicturePlace]) -> list[bytes]:
        """The pictures at some places; empty where there is none, or its pack is gone."""
        return [self._read_one(place) if 0 < place.size <= _MAX_PICTURE else b"" for place in places]

    def _read_one(self, place: PicturePlace) -> bytes:
        try:
            if self._remote is None:
                with (Path(self.place) / _name(place.pack)).open("rb") as file:
                    file.seek(place.start)
                    return file.read(place.size)
            system, root = self._remote
            return bytes(system.cat_file(f"{root}/{_name(place.pack)}", place.start, place.start + place.size))
        except (OSError, ValueError):
            return b""

    def remove(self) -> None:
        """Remove all packs."""
        try:
            if self._remote is None:
                for path in Path(self.place).glob("pack-*.bin"):
                    path.unlink(missing_ok=True)
            else:
                system, root = self._remote
                for path in system.glob(f"{root}/pack-*.bin"):
                    system.rm_file(path)
        except Exception as error:
            raise StoreFailedError(f"thumbnails can't be removed from {self.place}: {_reason(error)}") from None


def _name(number: int) -> str:
    return f"pack-{number:012d}.bin"


def _open_remote(place: str) -> tuple[Any, str]:
    if not _STORES.fullmatch(place):
        raise ValueError(f"{place} is no place for thumbnails: give a folder, or one such as s3://BUCKET/PATH")
    try:
        import fsspec

        system, root = fsspec.core.url_to_fs(place)
    except ImportError as error:
        raise ValueError(
            f"thumbnails in {place} need fsspec and what it reads such places with ({error}): install it, or give a "
            "folder"
        ) from None
    except ValueError as error:
        raise ValueError(f"{place} is no place for thumbnails: {_reason(error)}") from None
    return system, str(root).rstrip("/")


def _reason(error: Exception) -> str:
    return " ".join(str(getattr(error, "strerror", None) or error or type(error).__name__).split())[:200]
