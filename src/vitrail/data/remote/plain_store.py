"""Objects of any store that fsspec knows, by nothing but its common methods: Google's here."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vitrail.data.contract import SourceFailedError
from vitrail.data.remote.extra import import_extra
from vitrail.data.remote.objects import Listed, ObjectMark, Store
from vitrail.data.remote.patience import PassingFaultError, changed, judge_status

_TAGS = ("etag", "ETag", "generation", "md5Hash", "mtime", "updated", "created")


def open_google() -> Any:
    """gcsfs, which finds its credentials as Google's own programs do."""
    gcsfs = import_extra("gcsfs", "remote", package="gcsfs")
    return gcsfs.GCSFileSystem(skip_instance_cache=True, use_listings_cache=False)


class PlainStore(Store):
    """A store by `info`, `cat_file`, `find` and `put_file` of a file system of fsspec."""

    def __init__(self, files: Any, *, scheme: str) -> None:
        self._files, self._scheme = files, scheme

    def look(self, address: str) -> ObjectMark:
        """How long an object is and what marks it."""
        found = self._ask(address, lambda path: self._files.info(path))
        if found.get("type") == "directory" or found.get("size") is None:
            raise FileNotFoundError(2, "no such object", address)
        return _mark_of(found)

    def read(self, address: str, start: int, stop: int, *, mark: ObjectMark) -> bytes:
        """A range; the mark is looked at after it, so that what was read is of the object that was opened."""
        data: bytes = self._ask(address, lambda path: self._files.cat_file(path, start=start, end=stop))
        if self.look(address) != mark:
            raise changed(address)
        if len(data) < stop - start:
            raise PassingFaultError(f"an answer cut short: {len(data):,} of {stop - start:,} bytes")
        return data[: stop - start]

    def list(self, prefix: str) -> Iterator[Listed]:
        """All objects whose addresses begin so."""
        folder, _, start = prefix.rpartition("/")
        found = self._ask(folder, lambda path: self._files.find(path, detail=True))
        for path, entry in found.items():
            address = f"{self._scheme}://{path.lstrip('/')}"
            if address.startswith(f"{folder}/{start}"):
                yield Listed(address, _mark_of(entry))

    def write(self, address: str, path: Path) -> None:
        """Upload a file."""
        self._ask(address, lambda target: self._files.put_file(str(path), target))

    def _ask(self, address: str, ask: Any) -> Any:
        try:
            return ask(address.partition("://")[2])
        except FileNotFoundError:
            raise FileNotFoundError(2, "no such object", address) from None
        except PermissionError:
            raise judge_status(address, 403) from None
        except (ValueError, TypeError, NotImplementedError) as error:
            raise SourceFailedError(f"{address} can't be read ({type(error).__name__})") from None
        except Exception as error:  # each store has errors of its own for connections
            raise PassingFaultError(f"no answer ({type(error).__name__})") from None


def _mark_of(entry: Any) -> ObjectMark:
    tag = next((str(entry[name]) for name in _TAGS if entry.get(name)), "")
    return ObjectMark(int(entry["size"]), tag)
