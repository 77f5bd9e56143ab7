"""The shards that a pattern of addresses names, and those that a list, `shards.json`, names anywhere."""

import fnmatch
import glob
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from vitrail.data.remote.addresses import check_address, is_address, join_address, parent_of
from vitrail.data.remote.objects import ObjectMark, list_objects, look_at, read_object
from vitrail.data.sources.shard_patterns import INDEX_SUFFIX, SPLIT, expand_braces, find_shards, match_splits
from vitrail.data.sources.shard_places import MAX_LIST_BYTES, LocalShard, RemoteShard, Shard
from vitrail.data.splits import canonical
from vitrail.storage import content_of, parse_json, read_json

LIST_NAME = "shards.json"
_NUM_AT_ONCE = 16
_REMEDY = "write it anew with `vitrail shards make`, or name the shards by a pattern"


def find_all_shards(pattern: str) -> dict[str, list[Shard]]:
    """The shards of every split that a pattern or a list names, on this disk or at addresses."""
    is_list = pattern.endswith(f"/{LIST_NAME}") or pattern == LIST_NAME
    if is_address(pattern):
        address = check_address(pattern)
        return _read_remote_list(address) if is_list else _find_remote(address)
    if is_list:
        path = Path(pattern).expanduser()
        content = read_json(path, remedy=_REMEDY)
        with content_of(path, remedy=_REMEDY):
            return {
                split: [LocalShard(path.parent / _plain_name(name)) for name in names]
                for split, names in _listed_names(content).items()
            }
    return {split: [LocalShard(path) for path in paths] for split, paths in find_shards(pattern).items()}


def _read_remote_list(address: str) -> dict[str, list[Shard]]:
    try:
        content = parse_json(read_object(address, most=MAX_LIST_BYTES))
    except FileNotFoundError:
        raise ValueError(f"no list of shards {address}") from None
    except OSError as error:
        raise ValueError(str(error)) from None
    except ValueError as error:
        raise ValueError(f"{address} can't be read ({error}): {_REMEDY}") from None
    with content_of(address, remedy=_REMEDY):
        names = _listed_names(content)
        folder = parent_of(address)
        addresses = {
            split: [join_address(folder, _plain_name(name)) for name in inner] for split, inner in names.items()
        }
    marks = _look_at_all([place for inner in addresses.values() for place in inner], address)
    return {split: [RemoteShard(place, marks[place]) for place in inner] for split, inner in addresses.items()}


def _listed_names(content: Any) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for entry in content["shards"]:
        found.setdefault(canonical(str(entry["split"])), []).append(entry["name"])
    if not found:
        raise ValueError("it lists no shards")
    return found


def _plain_name(name: Any) -> str:
    """The name of a shard beside its list: a list may come from elsewhere, and names nothing else."""
    if not isinstance(name, str) or not name or "/" in name or "\\" in name or name.startswith("."):
        raise ValueError(f"{name!r} is not the name of a shard beside it")
    return name


def _find_remote(pattern: str) -> dict[str, list[Shard]]:
    if SPLIT not in pattern:
        return {"train": _expand(pattern, pattern)}
    found: dict[str, list[Shard]] = {}
    listed = [entry.address for entry in list_objects(_prefix_of(pattern))]
    for name in match_splits(pattern, [address for address in listed if not address.endswith(INDEX_SUFFIX)]):
        found.setdefault(canonical(name), []).extend(_expand(pattern.replace(SPLIT, name), pattern))
    if not found:
        raise ValueError(f"no objects match {pattern}: {{split}} stands for train, val, test ...")
    return found


def _prefix_of(pattern: str) -> str:
    """What all addresses of a pattern begin with."""
    return pattern[: min(pattern.find(sign) for sign in "{*?[" if sign in pattern)]


def _expand(pattern: str, original: str) -> list[Shard]:
    names = list(expand_braces(pattern, original))
    plain = [name for name in names if not glob.has_magic(name)]
    marks = _look_at_all(plain, original)
    shards: list[Shard] = []
    for name in names:
        if name in marks:
            shards.append(RemoteShard(name, marks[name]))
            continue
        expression = name.replace("[!", "[^")
        found = [
            RemoteShard(entry.address, entry.mark)
            for entry in list_objects(_prefix_of(name))
            if fnmatch.fnmatchcase(entry.address, expression)
            and entry.address.count("/") == name.count("/")
            and not entry.address.endswith(INDEX_SUFFIX)
        ]
        if not found:
            raise ValueError(f"no object matches {name}")
        shards += found
    return list(dict.fromkeys(shards))


def _look_at_all(addresses: list[str], original: str) -> Mapping[str, ObjectMark]:
    """The marks of objects that must all be there."""

    def look(address: str) -> ObjectMark | None:
        try:
            return look_at(address)
        except FileNotFoundError:
            return None

    with ThreadPoolExecutor(_NUM_AT_ONCE) as pool:
        marks = dict(zip(addresses, pool.map(look, addresses), strict=True))
    missing = [address for address, mark in marks.items() if mark is None]
    if missing and len(marks) == 1:
        raise ValueError(f"there is no object {missing[0]}")
    if missing:
        raise ValueError(
            f"{len(missing)} of the {len(marks)} objects of {original} are missing, the first is {missing[0]}"
        )
    return {address: mark for address, mark in marks.items() if mark is not None}
