"""The one door to data: a text that says which, and the table of kinds that it may name."""

import difflib
import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import get_args

from vitrail.data.checks import check_choice
from vitrail.data.contract import Dataset, Faults, Labels, Note, Source
from vitrail.data.exclusion import leave_out
from vitrail.data.remote.addresses import check_address, is_address
from vitrail.data.sources.folder import open_folder
from vitrail.data.sources.grouping import GroupedSource, split_grouping
from vitrail.data.sources.manifest import open_manifest
from vitrail.data.sources.names import MARKED_KINDS, NAMED
from vitrail.data.splits import canonical
from vitrail.data.stored import OpenedSource, UnlabelledSource
from vitrail.settings.own import is_own, load_own, working_directory_on_path

MANIFEST_EXTENSIONS = (".csv", ".tsv", ".parquet")
_MAX_NEAR, _NEARNESS = 2, 0.7  # of names that are offered for one that is not there
_SHORT, _NEARNESS_OF_SHORT = 4, 0.6  # letters of a name in which two that changed places are a large part


@dataclass(frozen=True)
class Opening:
    """How a source is to be opened."""

    val_share: float  # of train, where there is no val; 0: none is made
    seed: int  # of the automatic split
    download: bool  # whether a named set may be fetched
    labels: Labels  # whether labels must be there
    faults: Faults  # whether rows of a manifest that are faulty are an error


def open_source(
    spec: str | Path,
    *,
    val_share: float = 0.1,
    seed: int = 0,
    download: bool = False,
    labels: Labels = "required",
    faults: Faults = "refused",
) -> Source:
    """The data of that name or place, with all its splits.

    `spec` is one of: a folder of class folders; a manifest (.csv, .tsv, .parquet); `NAME` or `NAME:ROOT` for a named
    set such as cifar100; `hf://...`; `shards:PATTERN`; an address (s3://, gs://, https://) of a folder or a
    manifest; `fashion`; `shapes` or `shapes:size=64,count=1000`. A name in this table goes before a folder that is
    called the same, and a note says so: write `./NAME` for the folder.
    `module:function` of one's own returns a `Source`, or a list of data sets, one a split. `,coarse=FILE` behind any of
    them adds the level `coarse`: FILE says the coarse class of each class.

    Where there is no val, a `val_share` of train is set aside as val; with 0 there is none.

    With labels="optional" a folder of images or a manifest without labels opens too, as data sets that have no levels;
    with labels="ignored" no data set has any, and the folders below a folder mean nothing. With faults="noted" a
    manifest opens without its faulty rows, and a note tells of each.
    """
    check_choice("choice of labels", labels, get_args(Labels))
    opening = Opening(val_share=val_share, seed=seed, download=download, labels=labels, faults=faults)
    spec, grouping = split_grouping(spec) if isinstance(spec, str) else (spec, None)
    source = _open(spec, opening)
    if labels == "ignored":
        return UnlabelledSource(source)
    return GroupedSource(source, grouping) if grouping else source


def _open(spec: str | Path, opening: Opening) -> Source:
    if isinstance(spec, str):
        if not spec.strip():
            raise ValueError("the data is named by an empty text: give a folder, a manifest or the name of a data set")
        if is_address(spec):
            return _open_address(spec, opening)
        name, _, rest = spec.partition(":")
        if name in KINDS:
            return _open_kind(name, rest, opening, has_folder=not rest and os.path.isdir(name))
        if name in MARKED_KINDS and not os.path.lexists(spec):
            raise ValueError(
                f"{name} has masks or boxes, not labels of whole images: recipes for segmentation or detection learn it"
            )
        if is_own(spec) and not os.path.lexists(spec):
            return _open_own(spec)
    return _open_path(Path(spec), opening)


def open_dataset(
    spec: str | Path,
    split: str = "train",
    *,
    val_share: float = 0.1,
    seed: int = 0,
    download: bool = False,
    exclude: str | Path | None = None,
    labels: Labels = "required",
) -> Dataset:
    """One split of the data of that name or place (see `open_source`), without the samples that `exclude` lists.

    The names of splits are train, val and test; "valid", "validation", "training" and their like are understood.
    """
    source = open_source(spec, val_share=val_share, seed=seed, download=download, labels=labels)
    return open_split(source, split, exclude=exclude)


def open_whole_val(spec: str | Path, *, labels: Labels = "required") -> Dataset:
    """The val of data that is there to evaluate on; all of it where it has no splits."""
    source = open_source(spec, val_share=0.0, labels=labels)
    if len(source.splits) > 1:
        return open_split(source, "val")
    dataset = source.open(source.splits[0])
    dataset.split = "val"
    return dataset


def open_split(source: Source, split: str, *, exclude: str | Path | None = None) -> Dataset:
    """One split of a source, by any of its names, without the samples that `exclude` lists."""
    known = {canonical(name): name for name in source.splits} | dict(source.aliases)
    if canonical(split) not in known:
        raise ValueError(f"{source.name} has no split {split!r}; it has: {', '.join(source.splits)}")
    dataset = source.open(known[canonical(split)])
    return dataset if exclude is None else leave_out(dataset, exclude, source=source)


def _open_kind(name: str, rest: str, opening: Opening, *, has_folder: bool) -> Source:
    """What the table has under that name; where a folder is called the same, that is said."""
    if not has_folder:
        return KINDS[name](name, rest, opening)
    hint = f"there is also a folder of that name: write ./{name} for it"
    try:
        source = KINDS[name](name, rest, opening)
    except ValueError as error:
        raise ValueError(f"{error}; {hint}") from error
    detail = f"the data set of this name was opened; {hint}"
    source.notes = (*source.notes, Note("folder of that name", name, detail, is_serious=False))
    return source


def _open_own(spec: str) -> Source:
    """What a function of the user's own returns."""
    try:
        make = load_own(spec, what="data")
    except ValueError as error:
        raise ValueError(f"{error}{_question(spec)}") from None
    with working_directory_on_path():
        made = make()
    if isinstance(made, Source):
        return made
    if isinstance(made, (list, tuple)) and made and all(isinstance(split, Dataset) for split in made):
        return OpenedSource(made)
    raise ValueError(f"the data {spec} must be a Source or a list of Datasets, not {type(made).__name__}")


def _question(spec: str) -> str:
    """Which data set may have been meant: one by name, or a folder or a manifest that is there."""
    near = difflib.get_close_matches(spec.partition(":")[0].lower(), KINDS, n=1)
    near += _near_paths(Path(spec))
    return f" (is {' or '.join(map(repr, near))} meant?)" if near else ""


def _near_paths(path: Path) -> list[str]:
    """Data here whose path differs from one that is not there in one name, the nearest first."""
    missing = next((part for part in (*reversed(path.parents), path) if _mode(part) is None), path)
    rest = path.relative_to(missing)
    try:
        others = [other for other in missing.parent.iterdir() if not other.name.startswith(".")]
    except (OSError, ValueError):
        return []
    names = {other.name.lower(): other for other in others if _is_data(other / rest)}
    nearness = _NEARNESS if len(missing.name) > _SHORT else _NEARNESS_OF_SHORT
    near = difflib.get_close_matches(missing.name.lower(), names, n=_MAX_NEAR, cutoff=nearness)
    return [str(names[name] / rest) for name in near]


def _is_data(path: Path) -> bool:
    """Whether there may be data at a path."""
    return path.is_dir() or (path.suffix.lower() in MANIFEST_EXTENSIONS and path.is_file())


def _open_path(path: Path, opening: Opening) -> Source:
    path = Path(os.path.expanduser(path))
    name = path.name or path.resolve().name
    mode = _mode(path)
    if mode is not None and stat.S_ISDIR(mode):
        return open_folder(path, name=name, val_share=opening.val_share, seed=opening.seed, labels=opening.labels)
    if path.suffix.lower() in MANIFEST_EXTENSIONS and mode is None and _near_paths(path):
        raise ValueError(f"no file {path}{_question(str(path))}")
    if path.suffix.lower() in MANIFEST_EXTENSIONS:
        needs_labels = opening.labels == "required"
        return open_manifest(
            path,
            name=path.stem,
            val_share=opening.val_share,
            seed=opening.seed,
            needs_labels=needs_labels,
            faults=opening.faults,
        )
    if path.suffix.lower() == ".tar":
        raise ValueError(f"{path} is an archive: unpack it, or write shards:{path} if it holds WebDataset samples")
    if mode is not None:
        raise ValueError(f"{path} is neither a folder nor a manifest ({', '.join(MANIFEST_EXTENSIONS)})")
    raise ValueError(
        f"no folder or file {str(path)!r}, and no data set of that name{_question(str(path))}; there are: "
        f"a folder of class folders, a manifest ({', '.join(MANIFEST_EXTENSIONS)}), hf://OWNER/NAME, shards:PATTERN, "
        f"{', '.join(kind for kind in KINDS if kind not in ('hf', 'shards'))}"
    )


def _open_address(spec: str, opening: Opening) -> Source:
    """A manifest or a folder of class folders at an address."""
    from vitrail.data.sources.remote_sources import open_remote_folder, open_remote_manifest

    address = check_address(spec)
    suffix = os.path.splitext(address)[1].lower()
    if suffix in MANIFEST_EXTENSIONS:
        return open_remote_manifest(
            address,
            val_share=opening.val_share,
            seed=opening.seed,
            needs_labels=opening.labels == "required",
            faults=opening.faults,
        )
    if suffix == ".tar":
        raise ValueError(f"{address} is an archive: write shards:{address} if it holds WebDataset samples")
    return open_remote_folder(address, val_share=opening.val_share, seed=opening.seed, labels=opening.labels)


def _mode(path: Path) -> int | None:
    """The kind of file at a path; None if there is none."""
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):  # the last: a name that no file can have
        return None
    except OSError as error:
        raise ValueError(f"cannot look at {path}: {error.strerror}") from None


def _open_named(name: str, rest: str, opening: Opening) -> Source:
    from vitrail.data.sources.named import open_named

    place, options = _split_options(rest)
    protocol = options.pop("protocol", "paper")
    if options:
        raise ValueError(f"{name} has no option {next(iter(options))!r}: it has protocol, and coarse as the last one")
    root = Path(place) if place else None
    try:
        return open_named(
            name,
            root,
            download=opening.download,
            val_share=opening.val_share,
            seed=opening.seed,
            protocol=protocol,
        )
    except OSError as error:
        raise ValueError(f"{name} could not be read: {error}") from None


def _split_options(text: str) -> tuple[str, dict[str, str]]:
    """The place in `PLACE,key=value,...`, which may be empty, and the options."""
    options: dict[str, str] = {}
    while found := re.search(r"(?:^|,)([a-z_]+)=([^,]*)$", text):
        text = text[: found.start()]
        options[found[1]] = found[2]
    return text, options


def _open_huggingface(name: str, rest: str, opening: Opening) -> Source:
    from vitrail.data.sources.huggingface import open_huggingface

    if not rest.startswith("//") or rest == "//":
        raise ValueError(f"a data set of the Hugging Face hub is written hf://OWNER/NAME, not {name}:{rest}")
    return open_huggingface(rest.removeprefix("//"), val_share=opening.val_share, seed=opening.seed)


def _open_shards(name: str, rest: str, opening: Opening) -> Source:
    from vitrail.data.sources.shards import open_shards

    if not rest:
        raise ValueError("shards need the pattern of their files: shards:/path/train-{000..127}.tar")
    return open_shards(rest, val_share=opening.val_share, seed=opening.seed, labels=opening.labels)


def _open_fashion(name: str, rest: str, opening: Opening) -> Source:
    from vitrail.data.sources.fashion import open_fashion

    if rest:
        raise ValueError(f"fashion takes no settings, not {rest!r}")
    return open_fashion()


def _open_shapes(name: str, rest: str, opening: Opening) -> Source:
    from vitrail.data.sources.shapes import open_shapes

    return open_shapes(rest)


# What may stand before the colon -> what opens it, given the name, the text after the colon and the settings.
KINDS: Mapping[str, Callable[[str, str, Opening], Source]] = MappingProxyType(
    {
        "fashion": _open_fashion,
        "shapes": _open_shapes,
        "hf": _open_huggingface,
        "shards": _open_shards,
        **dict.fromkeys(NAMED, _open_named),
    }
)
