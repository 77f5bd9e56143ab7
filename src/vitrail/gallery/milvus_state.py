"""What a gallery on Milvus says of itself: a small collection of texts beside that of the images.

The row `head` names the state of the gallery. It is one row, so that a state takes the place of the one before at one
moment: everything that a state consists of is written before, and what it no longer needs is removed after.
"""

import base64
import binascii
import json
import secrets
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from vitrail.gallery.gallery_manifest import GalleryFacts
from vitrail.gallery.milvus_address import MilvusAddress
from vitrail.gallery.milvus_client import Database
from vitrail.gallery.store_failures import StoreFailedError
from vitrail.storage import parse_json

_CHUNK = 60_000  # characters of a row's text; Milvus takes 65,535 bytes, and our texts are ASCII
_KEY_LENGTH = 200
_AT_ONCE = 500  # rows that are asked for or removed at a time
MAX_DIM = 6_000  # numbers of an embedding whose sums fit in a row
_HEAD = "head"
_FIELDS = [
    ("key", "VARCHAR", {"is_primary": True, "max_length": _KEY_LENGTH}),
    ("text", "VARCHAR", {"max_length": 65_535}),
    ("nothing", "FLOAT_VECTOR", {"dim": 2}),  # a collection must have vectors
]
_Count = Annotated[int, Field(ge=0)]
_Label = Annotated[int, Field(ge=-1)]
_Checked = TypeVar("_Checked", bound=BaseModel)


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class TextEntry(_Frozen):
    """A text in the state's collection, in as many rows as it needs."""

    key: str = Field(pattern=r"^[a-z]+/[0-9a-f]{12}$")
    parts: _Count


class Dying(_Frozen):
    """Images that are in no state any more, and perhaps still in the collection."""

    ids: TextEntry | None = None  # a list of them
    fine: int | None = None  # all of a class


class Head(_Frozen):
    """The gallery's state."""

    format: Literal[1] = 1
    generation: _Count  # 0: it is being made
    next_id: _Count  # every image of the state has a number below it
    manifest: TextEntry
    is_writing: bool = False  # images from next_id on may be there, and texts, that belong to no state
    dying: Dying | None = None
    origin: str | None = None  # where the images come from, while it is being made
    last_row: int = -1  # of the origin's, which has come already


class LabelSet(_Frozen):
    """A combination of labels: how many images have it, and the sum of their embeddings."""

    labels: tuple[_Label, ...]
    count: _Count
    sums: TextEntry


class MilvusManifest(GalleryFacts):
    """What is in a gallery on Milvus at one moment."""

    wanted_index: Literal["exact", "ivf", "hnsw", "diskann"] = "exact"
    index_params: dict[str, int | float | str] = Field(default_factory=dict)
    search_params: dict[str, int | float | str] = Field(default_factory=dict)
    consistency: Literal["Strong", "Session", "Bounded", "Eventually"] = "Strong"
    is_partitioned: bool = False  # by the coarse class
    is_half: bool = False
    files: str | None = None  # where thumbnails are; None: beside a file of milvus-lite, and nowhere of a server
    sets: tuple[LabelSet, ...] = ()


class StateTexts:
    """The collection of texts of one gallery."""

    def __init__(self, database: Database) -> None:
        self.database, self.address = database, database.address
        self.collection = self.address.state_name

    def create(self) -> None:
        """Make the collection."""
        self.database.create(self.collection, _FIELDS, [("nothing", "FLAT", {"metric_type": "L2"})])

    def read_head(self) -> Head | None:
        """The state; None while there is none yet."""
        rows = self.database.get(self.collection, [_HEAD], fields=["key", "text"])
        return self._check(rows[0]["text"], Head, _HEAD) if rows else None

    def write_head(self, head: Head) -> None:
        """Make this the state."""
        self._put({_HEAD: head.model_dump_json()})

    def write_text(self, kind: str, text: str) -> TextEntry:
        """Keep a text of ASCII under a key that no text has had."""
        entry = TextEntry(key=f"{kind}/{secrets.token_hex(6)}", parts=-(-len(text) // _CHUNK))
        for part in range(entry.parts):
            self._put({f"{entry.key}/{part}": text[part * _CHUNK : (part + 1) * _CHUNK]})
        return entry

    def read_texts(self, entries: "list[TextEntry]") -> list[str]:
        """Texts that were kept; one that is missing is damage."""
        wanted = [f"{entry.key}/{part}" for entry in entries for part in range(entry.parts)]
        found: dict[str, str] = {}
        for start in range(0, len(wanted), _AT_ONCE):
            rows = self.database.get(self.collection, wanted[start : start + _AT_ONCE], fields=["key", "text"])
            found.update((str(row["key"]), str(row["text"])) for row in rows)
        if missing := next((key for key in wanted if key not in found), None):
            raise LookupError(missing)
        return ["".join(found[f"{entry.key}/{part}"] for part in range(entry.parts)) for entry in entries]

    def remove_texts(self, entries: "list[TextEntry]") -> None:
        """Remove texts."""
        keys = [f"{entry.key}/{part}" for entry in entries for part in range(entry.parts)]
        for start in range(0, len(keys), _AT_ONCE):
            self.database.delete(self.collection, keys=keys[start : start + _AT_ONCE])

    def sweep(self, kept: "list[TextEntry]") -> None:
        """Remove all texts of states but these: those of writers that were killed."""
        keys_kept = {entry.key for entry in kept}
        for kind in ("manifest", "sums", "ids"):
            where = f'key like "{kind}/%"'
            for page in self.database.iterate(self.collection, where, fields=["key"], size=_AT_ONCE):
                keys = [str(row["key"]) for row in page]
                gone = [key for key in keys if key.rpartition("/")[0] not in keys_kept]
                self.database.delete(self.collection, keys=gone)

    def read_manifest(self, head: Head) -> MilvusManifest:
        """What is in the gallery in this state."""
        (text,) = self.read_texts([head.manifest])
        return self._check(text, MilvusManifest, "the list of what is in it")

    def write_manifest(self, manifest: MilvusManifest) -> TextEntry:
        """Keep what will be in the gallery."""
        return self.write_text("manifest", json.dumps(manifest.model_dump(mode="json")))

    def write_sums(self, sums: Tensor) -> TextEntry:
        """Keep the sum of some embeddings, float64 [dim]."""
        return self.write_text("sums", base64.b64encode(sums.double().numpy().astype("<f8").tobytes()).decode())

    def read_sums(self, manifest: MilvusManifest) -> Tensor:
        """The sums of the embeddings of each combination of labels, float64 [combinations, dim]."""
        rows = []
        for text in self.read_texts([entry.sums for entry in manifest.sets]):
            try:
                numbers = np.frombuffer(base64.b64decode(text, validate=True), dtype="<f8")
            except (ValueError, binascii.Error):
                numbers = np.zeros(0)
            if len(numbers) != manifest.dim or not np.isfinite(numbers).all():
                raise self.damage("the sum of a class is not what was written")
            rows.append(torch.from_numpy(numbers.astype(np.float64)))
        return torch.stack(rows) if rows else torch.zeros(0, manifest.dim, dtype=torch.float64)

    def write_ids(self, ids: "list[int]") -> TextEntry:
        """Keep a list of images."""
        return self.write_text("ids", json.dumps(ids))

    def read_ids(self, entry: TextEntry) -> list[int]:
        """A list of images."""
        (text,) = self.read_texts([entry])
        ids = self._parse(text, "a list of images")
        if not isinstance(ids, list) or not all(type(number) is int for number in ids):
            raise self.damage("a list of images is not what was written")
        return ids

    def write_note(self, name: str, text: str) -> None:
        """Keep a text under a name of its own, in the place of the one before."""
        former = self._find_note(name)
        self._put({f"note/{name}": self.write_text("note", json.dumps(text)).model_dump_json()})
        if former is not None:
            self.remove_texts([former])

    def read_note(self, name: str) -> str | None:
        """A text by its name; None where there is none."""
        entry = self._find_note(name)
        if entry is None:
            return None
        text = self._parse(self.read_texts([entry])[0], name)
        return text if isinstance(text, str) else None

    def damage(self, what: str) -> StoreFailedError:
        """The error that says what is wrong with what the database holds."""
        return damaged(self.address, what)

    def _find_note(self, name: str) -> TextEntry | None:
        rows = self.database.get(self.collection, [f"note/{name}"], fields=["key", "text"])
        return self._check(rows[0]["text"], TextEntry, name) if rows else None

    def _put(self, texts: dict[str, str]) -> None:
        rows = [{"key": key, "text": text, "nothing": [0.0, 0.0]} for key, text in texts.items()]
        self.database.upsert(self.collection, rows)

    def _parse(self, text: Any, what: str) -> Any:
        try:
            return parse_json(str(text))
        except ValueError as error:
            raise self.damage(f"{what}: {error}") from None

    def _check(self, text: Any, kind: type[_Checked], what: str) -> _Checked:
        try:
            return kind.model_validate(self._parse(text, what))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise self.damage(f"{what}: {where + ': ' if where else ''}{first['msg']}") from None


def damaged(address: MilvusAddress, what: str) -> StoreFailedError:
    """The error that says what is wrong with what the database holds."""
    return StoreFailedError(
        f"the gallery {address.text} is damaged: {what}; restore the database from a copy, or build the gallery anew"
    )
