"""What one tar shard holds: its samples and their labels, read once and kept beside it as `NAME.tar.index`.

An index names the shard it is of: by its length and when it was changed. One that was written with its shard has a
fingerprint of the shard's two ends, with which it stays valid where both are copied to, and a sum of each image.
"""

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from vitrail.data.sources.folder import EXTENSIONS
from vitrail.data.sources.shard_patterns import INDEX_SUFFIX
from vitrail.data.sources.tar_index import Member, read_members
from vitrail.storage import parse_json, read_json_object, write_text
from vitrail.storage.reading import WRONG_CONTENT

VERSION = 4
_LABEL_KEYS = ("label", "cls", "class")  # in JSON, in order of preference
_SIZE_KEYS = ("width", "height", "original_width", "original_height")  # integers that repeat, but no labels
_MAX_LABEL_BYTES = 1 << 20
_END_BYTES = 1 << 16  # of each end of a shard, which its fingerprint is made of
_MAX_LABEL_LENGTH = 100  # of a text in JSON: a longer one is a caption or an address

LabelValue = int | str | None


@dataclass(frozen=True)
class ShardIndex:
    """The samples of one shard: a value for each in every list."""

    names: list[str]  # of the image's member
    offsets: list[int]
    sizes: list[int]
    labels: dict[str, list[LabelValue]]  # of every level, `label` among them; None: it has none
    num_without_image: int  # groups of members that were left out
    sums: list[int] | None = None  # a CRC-32 of each image, where the index was written with its shard


def fingerprint_ends(size: int, read: Callable[[int, int], bytes]) -> str:
    """A fingerprint of a file's length and of its two ends; `read` gives the bytes from one place to another."""
    ends = read(0, min(size, _END_BYTES)) + read(max(0, size - _END_BYTES), size)
    return hashlib.blake2b(str(size).encode() + ends, digest_size=16).hexdigest()


def index_shard(path: Path) -> ShardIndex:
    """The index of a shard: the one beside it if up to date, else a new one, which is kept if that can be written."""
    try:
        status = path.stat()
        key = {"version": VERSION, "size": status.st_size, "modified": status.st_mtime_ns}
        kept = Path(f"{path}{INDEX_SUFFIX}")
        index = _load(path, kept, key)
        if index is None:
            index = _read(path)
            _save(index, kept, key)
    except OSError as error:
        raise ValueError(f"cannot read the shard {path}: {error.strerror or error}") from None
    return index


def _load(path: Path, kept: Path, key: Mapping[str, int]) -> ShardIndex | None:
    """The kept index; None if there is none, it is of another file or is not whole."""
    try:
        content = read_json_object(kept, remedy="it is made anew")
    except WRONG_CONTENT:
        return None

    def read(start: int, stop: int) -> bytes:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(stop - start)

    is_known = content.get("modified") == key["modified"]
    return check_index(content, size=key["size"], read=None if is_known else read)


def check_index(content: Any, *, size: int, read: Callable[[int, int], bytes] | None) -> ShardIndex | None:
    """The index in a kept file; None if it is of another version or another shard, or is not whole.

    Where `read` is given, whether it is of this shard is told by the shard's two ends.
    """
    try:
        if content.get("version") != VERSION or content.get("size") != size:
            return None
        if read is not None:
            fingerprint = content.get("fingerprint")
            if not isinstance(fingerprint, str) or fingerprint != fingerprint_ends(size, read):
                return None
        index = ShardIndex(**content["index"])
        return index if _is_whole(index, size=size) else None
    except WRONG_CONTENT:
        return None


def _is_whole(index: ShardIndex, *, size: int) -> bool:
    """Whether all is there, of its type and inside a shard of that size: another program may have changed the file."""
    numbers: list[list[Any]] = [index.offsets, index.sizes, [index.num_without_image]]
    columns: list[list[Any]] = [index.names, index.offsets, index.sizes, *index.labels.values()]
    if index.sums is not None:
        numbers.append(index.sums)
        columns.append(index.sums)
    return (
        "label" in index.labels
        and all(isinstance(column, list) and len(column) == len(index.names) for column in columns)
        and all(type(name) is str for name in index.names)
        and all(type(number) is int and number >= 0 for column in numbers for number in column)
        and all(offset + length <= size for offset, length in zip(index.offsets, index.sizes, strict=True))
        and all(value is None or type(value) in (int, str) for values in index.labels.values() for value in values)
    )


def _save(index: ShardIndex, kept: Path, key: Mapping[str, int]) -> None:
    """Keep the index, where it can be written; several processes may do so at once."""
    with contextlib.suppress(OSError):
        write_text(kept, index_text(index, key))


def index_text(index: ShardIndex, key: Mapping[str, Any]) -> str:
    """What is kept of an index: the key that says which shard it is of, and all it holds."""
    return json.dumps({**key, "index": asdict(index)}, separators=(",", ":"))


def _read(path: Path) -> ShardIndex:
    with path.open("rb") as file:
        return read_index(file, read_members(path), place=str(path))


def read_index(file: BinaryIO, members: Iterable[Member], *, place: str) -> ShardIndex:
    """The index of an opened shard with those members."""
    groups: dict[str, dict[str, Member]] = {}
    for member in members:
        folder, slash, base = member.name.rpartition("/")
        if base.startswith("."):  # such as ._name, which macOS adds
            continue
        stem, _, extension = base.partition(".")
        group = groups.setdefault(f"{folder}{slash}{stem}", {})
        if extension.lower() in group:
            raise ValueError(f"{place} holds {member.name} twice")
        group[extension.lower()] = member
    images: list[Member] = []
    labels: list[dict[str, LabelValue]] = []
    for group in groups.values():
        image = next((group[extension] for extension in group if f".{extension}" in EXTENSIONS), None)
        if image is None:
            continue
        contents: dict[str, bytes] = {}
        for extension in ("cls", "json"):
            if extension in group and group[extension].size <= _MAX_LABEL_BYTES:
                file.seek(group[extension].offset)
                contents[extension] = file.read(group[extension].size)
        images.append(image)
        labels.append(_read_labels(contents, f"{place}!{image.name}"))
    levels = dict.fromkeys(["label", *(level for values in labels for level in values)])
    return ShardIndex(
        names=[image.name for image in images],
        offsets=[image.offset for image in images],
        sizes=[image.size for image in images],
        labels={level: [values.get(level) for values in labels] for level in levels},
        num_without_image=len(groups) - len(images),
    )


def _read_labels(contents: Mapping[str, bytes], place: str) -> dict[str, LabelValue]:
    """The values of a sample's levels: of its JSON, and the label of its `.cls` before that of its JSON."""
    values: dict[str, LabelValue] = {}
    try:
        if "json" in contents:
            entries = parse_json(contents["json"])
            entries = entries if isinstance(entries, dict) else {"label": entries}
            values = {key: value for key, value in entries.items() if key not in _SIZE_KEYS and _may_be_label(value)}
            main = next((key for key in _LABEL_KEYS if key in values), None)
            if main is not None:
                values = {"label": values.pop(main), **values}
        if "cls" in contents:
            text = contents["cls"].decode("utf-8").strip()
            values["label"] = int(text) if text.lstrip("-").isdecimal() else text or None
        label = values.get("label")
        if isinstance(label, int) and label < 0:  # the usual sign for "not known"
            values["label"] = None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the labels of {place} can't be read: {error}") from error
    return values


def _may_be_label(value: object) -> bool:
    return type(value) is int or (isinstance(value, str) and 0 < len(value) <= _MAX_LABEL_LENGTH)
