"""Addresses of galleries on Milvus: a server's, or a file's of milvus-lite, the same database inside this process."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

SCHEMES = ("milvus:", "milvus+tls:")
_FORMS = "milvus:FILE.db, milvus:FILE.db#NAME, milvus://HOST:PORT/NAME or milvus://HOST:PORT/DATABASE/NAME"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_SERVER = re.compile(
    r"milvus(?P<tls>\+tls)?://(?P<host>\[[0-9A-Fa-f:.]+\]|[\w.-]+)(?::(?P<port>\d{1,5}))?/(?P<path>.*)"
)
_DEFAULT_NAME, _DEFAULT_PORT, _MAX_PORT = "gallery", 19530, 65535
_ENDING = ".db"


@dataclass(frozen=True)
class MilvusAddress:
    """Where a gallery is: a collection of a database."""

    text: str  # as a person wrote it
    name: str  # of the collection
    file: Path | None = None  # of milvus-lite; None: a server
    host: str = ""
    port: int = _DEFAULT_PORT
    database: str = ""  # "": the server's default
    is_encrypted: bool = False  # by TLS

    @property
    def uri(self) -> str:
        """As the client wants it."""
        if self.file is not None:
            return str(self.file)
        return f"{'https' if self.is_encrypted else 'http'}://{self.host}:{self.port}"

    @property
    def state_name(self) -> str:
        """The collection that says what is in the other."""
        return f"{self.name}_vitrail"


def is_milvus(place: str | os.PathLike[str]) -> bool:
    """Whether a text is an address of Milvus rather than a path."""
    return isinstance(place, str) and place.startswith(SCHEMES)


def read_address(text: str) -> MilvusAddress:
    """The parts of an address; one that is not well formed is an error."""
    if text.startswith("milvus:") and not text.startswith("milvus://"):
        path, _, name = text.removeprefix("milvus:").partition("#")
        if not path.endswith(_ENDING) or path == _ENDING:
            raise ValueError(f"{text!r} names no file of milvus-lite, which ends in .db: write {_FORMS}")
        file = Path(os.path.abspath(os.path.expanduser(path)))
        return MilvusAddress(text, _check_name(name or _DEFAULT_NAME, text), file=file)
    found = _SERVER.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no address of Milvus: write {_FORMS}")
    port = int(found["port"] or _DEFAULT_PORT)
    if not 1 <= port <= _MAX_PORT:
        raise ValueError(f"{text!r} has the port {port}: it must be 1 to {_MAX_PORT:,}")
    *databases, name = found["path"].split("/")
    if len(databases) > 1:
        raise ValueError(f"{text!r} is no address of Milvus: write {_FORMS}")
    database = _check_name(databases[0], text) if databases else ""
    return MilvusAddress(
        text,
        _check_name(name, text),
        host=found["host"],
        port=port,
        database=database,
        is_encrypted=found["tls"] is not None,
    )


def _check_name(name: str, text: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{text!r}: {name!r} is no name of a collection: letters, digits and _, no digit first")
    return name
