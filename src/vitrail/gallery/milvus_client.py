"""The client of Milvus, as galleries use it: short time-outs, errors of one line, and milvus-lite shared in a process.

Nothing that comes from a person or from the database enters a filter as text: filters are made of the names of our own
fields and of whole numbers alone.
"""

import atexit
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from vitrail.gallery.milvus_address import MilvusAddress
from vitrail.gallery.store_failures import StoreFailedError
from vitrail.storage import locked

Result = TypeVar("Result")
TOKEN_VARIABLE = "MILVUS_TOKEN"  # user:password, or an API key
_CONNECT_SECONDS = 5.0
_CALL_SECONDS = 60.0
_WAIT_SECONDS = 30.0  # for another process to close a file of milvus-lite
_NOT_LOADED = ("not loaded", "'released'")  # what servers say of collections that can't be searched yet
# milvus-lite ends connections that ask every ten seconds whether it lives: in this process it need not be asked.
_QUIET = {"grpc.keepalive_time_ms": 2**31 - 1, "grpc.keepalive_permit_without_calls": False}
_MAX_REASON = 200  # characters
_opening = threading.Lock()
_open_files: dict[Path, contextlib.ExitStack] = {}  # of milvus-lite: one server each in this process, until it ends


class GoneError(StoreFailedError):
    """The database does not answer, or can't do what is asked; the message is one line for a person."""


class Database:
    """A connection to the database of an address."""

    def __init__(self, address: MilvusAddress, *, is_new: bool = False) -> None:
        self.address = address
        client = _load_client()
        if address.file is not None:
            if not is_new and not address.file.exists():
                raise missing_gallery(address)
            _open_file(address.file)
        token = os.environ.get(TOKEN_VARIABLE, "") if address.file is None else ""
        options = {} if address.file is None else {"grpc_options": _QUIET}
        self._client = self._tell(
            lambda: client(uri=address.uri, token=token, db_name=address.database, timeout=_CONNECT_SECONDS, **options)
        )

    def has(self, collection: str) -> bool:
        """Whether there is such a collection."""
        return bool(self._call("has_collection", collection))

    def create(
        self,
        collection: str,
        fields: Sequence[tuple[str, str, Mapping[str, Any]]],
        indexes: Sequence[tuple[str, str, Mapping[str, Any]]],
        **settings: Any,
    ) -> None:
        """Make a collection of fields (name, type, settings) with indexes (field, kind, settings), and load it."""
        from pymilvus import DataType

        schema = self._client.create_schema(auto_id=False, enable_dynamic_field=False)
        for name, kind, more in fields:
            schema.add_field(name, DataType[kind], **more)
        index = self._client.prepare_index_params()
        for name, kind, more in indexes:
            index.add_index(name, index_type=kind, **more)
        self._call("create_collection", collection, schema=schema, consistency_level="Strong", **settings)
        self._call("create_index", collection, index, sync=False)  # there is nothing in it yet to wait for
        self.load(collection)

    def describe(self, collection: str) -> dict[str, Any]:
        """The types of a collection's fields by name, and the settings of each."""
        found = self._call("describe_collection", collection)
        return {field["name"]: (field["type"].name, dict(field["params"])) for field in found["fields"]}

    def load(self, collection: str) -> None:
        """Make a collection ready to be searched, where it is not."""
        self._call("load_collection", collection)

    def drop(self, collection: str) -> None:
        """Remove a collection with all that is in it."""
        self._call("drop_collection", collection)

    def insert(self, collection: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows."""
        self._call("insert", collection, list(rows))

    def upsert(self, collection: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows, or put them in the place of those with the same key."""
        self._call("upsert", collection, list(rows))

    def delete(self, collection: str, *, keys: Sequence[int | str] = (), where: str | None = None) -> None:
        """Remove rows by their keys, or all that a filter finds."""
        if where is not None:
            self._call("delete", collection, filter=where)
        elif keys:
            self._call("delete", collection, ids=list(keys))

    def get(self, collection: str, keys: Sequence[int | str], *, fields: Sequence[str]) -> list[dict[str, Any]]:
        """The rows that have these keys, in any order; those that there are not are left out."""
        return list(self._call("get", collection, ids=list(keys), output_fields=list(fields))) if keys else []

    def query(
        self, collection: str, where: str, *, fields: Sequence[str], limit: int | None = None
    ) -> list[dict[str, Any]]:
        """Rows that a filter finds."""
        more = {} if limit is None else {"limit": limit}
        return list(self._call("query", collection, filter=where, output_fields=list(fields), **more))

    def iterate(
        self, collection: str, where: str, *, fields: Sequence[str], size: int
    ) -> Iterator[list[dict[str, Any]]]:
        """All rows that a filter finds, in the order of their keys, so many at a time."""
        iterator = self._call("query_iterator", collection, batch_size=size, filter=where, output_fields=list(fields))
        try:
            while rows := self._tell(iterator.next):
                yield list(rows)
        finally:
            with contextlib.suppress(GoneError):
                self._tell(iterator.close)

    def search(
        self,
        collection: str,
        vectors: Sequence[Any],
        *,
        count: int,
        where: str,
        fields: Sequence[str],
        params: Mapping[str, Any],
        **more: Any,
    ) -> list[list[dict[str, Any]]]:
        """The `count` nearest rows of each vector, nearest first: `id`, `distance` and the `entity`'s fields."""
        found = self._call(
            "search",
            collection,
            data=list(vectors),
            limit=count,
            filter=where,
            output_fields=list(fields),
            search_params={"metric_type": "IP", "params": dict(params)},
            **more,
        )
        return [list(hits) for hits in found]

    def flush(self, collection: str) -> None:
        """Have what was written sorted into its files and indexes at once, where the server allows it now."""
        try:
            self._call("flush", collection)
        except GoneError as error:
            if "rate" not in str(error):  # servers limit how often one may ask; it happens by itself in time
                raise

    def _call(self, name: str, *arguments: Any, **settings: Any) -> Any:
        def ask() -> Any:
            return getattr(self._client, name)(*arguments, timeout=_CALL_SECONDS, **settings)

        try:
            return self._tell(ask)
        except GoneError as error:
            if not any(words in str(error) for words in _NOT_LOADED):
                raise
        self.load(arguments[0])  # as after a server was started again
        return self._tell(ask)

    def _tell(self, ask: Callable[[], Result]) -> Result:
        """What the database answers; an error of its own, or its silence, becomes one line."""
        import grpc
        from pymilvus import MilvusException

        try:
            return ask()
        except (MilvusException, grpc.RpcError, OSError, ConnectionError) as error:
            raise GoneError(f"the database of {self.address.text} {_explain(error)}") from None


def missing_gallery(address: MilvusAddress) -> StoreFailedError:
    """The error that there is no gallery at an address."""
    text = address.text
    return StoreFailedError(f"no gallery {text!r}: make one with `vitrail gallery build RUN data=SPEC out={text}`")


def _explain(error: Exception) -> str:
    reason = " ".join(str(getattr(error, "message", "") or error).split())
    lower = reason.lower()
    if any(words in lower for words in ("fail connecting", "unavailable", "failed to connect", "connection refused")):
        return "can't be reached: see that its server runs and that host and port are right, and try again"
    if "deadline" in lower or "timeout" in lower:
        return "does not answer in time: try again when it does"
    if "auth" in lower or "permission" in lower:
        return f"refuses access: set {TOKEN_VARIABLE} to user:password or to an API key ({reason[:_MAX_REASON]})"
    return f"says: {reason[:_MAX_REASON]}"


def _load_client() -> Any:
    """The client's class; a message that says how to get it where it is missing."""
    # Processes that are forked to read images never call the database: gRPC need not prepare for them, nor tell of it.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        from pymilvus import MilvusClient
    except ImportError:
        raise ValueError("a gallery on Milvus needs its client: pip install 'vitrail[milvus]'") from None
    for name in ("pymilvus", "milvus_lite"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # what goes wrong is told in one line, by us
    return MilvusClient


def _open_file(file: Path) -> None:
    """Serve a file of milvus-lite in this process. Another process that has it open is waited for."""
    try:
        import milvus_lite  # noqa: F401
        from milvus_lite.server_manager import server_manager_instance
    except ImportError:
        raise ValueError(
            "a gallery in a file of milvus-lite needs it: pip install 'vitrail[milvus]', or use a server"
        ) from None
    with _opening:
        if file in _open_files:
            return
        if file.exists() and not file.is_dir():
            raise ValueError(f"{file} is no database of milvus-lite 3, which is a folder: choose another name")
        stack = contextlib.ExitStack()
        try:
            folder = files_beside(file)
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(folder / ".open", patience=_WAIT_SECONDS))
            if server_manager_instance.start_and_get_uri(str(file)) is None:
                raise BlockingIOError
        except BlockingIOError:
            stack.close()
            raise StoreFailedError(
                f"{file} is open in another process, or damaged: milvus-lite serves one process at a time; wait for "
                f"it, or serve the file to several with `milvus-lite server --data-dir {file}`"
            ) from None
        except OSError as error:
            stack.close()
            raise StoreFailedError(f"{file} can't be opened: {error.strerror or error}") from None
        stack.callback(server_manager_instance.release_server, str(file))
        if not _open_files:
            atexit.register(_close_all)
        _open_files[file] = stack


def close_file(file: Path) -> None:
    """End serving a file of milvus-lite, so that another process may open it."""
    with _opening:
        stack = _open_files.pop(file, None)
        if stack is not None:
            stack.close()


def _close_all() -> None:
    for file in list(_open_files):
        close_file(file)


def files_beside(file: Path) -> Path:
    """The folder next to a file of milvus-lite, for thumbnails and pages."""
    return file.with_suffix(".files")
