"""What one tar shard holds: its samples and their labels, read once and kept beside it as `NAME.tar.index`."""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vitrail.data.sources.folder import EXTENSIONS
from vitrail.data.sources.shard_patterns import INDEX_SUFFIX
from vitrail.data.sources.tar_index import Member, read_members
from vitrail.storage import parse_json, read_json_object, write_text
from vitrail.storage.reading import WRONG_CONTENT

_VERSION = 3
_LABEL_KEYS = ("label", "cls", "class")  # in JSON, in order of preference
_SIZE_KEYS = ("width", "height", "original_width", "original_height")  # integers that repeat, but no labels
_MAX_LABEL_BYTES = 1 << 20
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


def index_shard(path: Path) -> ShardIndex:
    """The index of a shard: the one beside it if up to date, else a new one, which is kept if that can be written."""
    try:
        status = path.stat()
        key = {"version": _VERSION, "size": status.st_size, "modified": status.st_mtime_ns}
        kept = Path(f"{path}{INDEX_SUFFIX}")
        index = _load(kept, key)
        if index is None:
            index = _read(path)
            _save(index, kept, key)
    except OSError as error:
        raise ValueError(f"cannot read the shard {path}: {error.strerror or error}") from None
    return index


def _load(kept: Path, key: Mapping[str, int]) -> ShardIndex | None:
    """The kept index; None if there is none, it is of another file or is not whole."""
    try:
        content = read_json_object(kept, remedy="it is made anew")
        if any(content.get(name) != value for name, value in key.items()):
            return None
        index = ShardIndex(**content["index"])
        return index if _is_whole(index, size=key["size"]) else None
    except WRONG_CONTENT:
        return None


def _is_whole(index: ShardIndex, *, size: int) -> bool:
    """Whether all is there, of its type and inside a shard of that size: another program may have changed the file."""
    numbers: list[list[Any]] = [index.offsets, index.sizes, [index.num_without_image]]
    columns: list[list[Any]] = [index.names, index.offsets, index.sizes, *index.labels.values()]
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
        write_text(kept, json.dumps({**key, "index": asdict(index)}, separators=(",", ":")))


def _read(path: Path) -> ShardIndex:
    groups: dict[str, dict[str, Member]] = {}
    for member in read_members(path):
        folder, slash, base = member.name.rpartition("/")
        if base.startswith("."):  # such as ._name, which macOS adds
            continue
        stem, _, extension = base.partition(".")
        group = groups.setdefault(f"{folder}{slash}{stem}", {})
        if extension.lower() in group:
            raise ValueError(f"{path} holds {member.name} twice")
        group[extension.lower()] = member
    images: list[Member] = []
    labels: list[dict[str, LabelValue]] = []
    with path.open("rb") as file:
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
            labels.append(_read_labels(contents, f"{path}!{image.name}"))
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
