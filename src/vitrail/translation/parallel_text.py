"""Parallel text: a sentence a line in two files a split, or both in a TSV, compressed or not."""

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.draws import Draws
from vitrail.settings.data import NO_VAL

_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
_TSV = ".tsv"
HELD_OUT = "val, held out"  # the split of pairs that are set aside from train
_NAMES_OF_VAL = ("val", "valid", "validation", "dev")
_DAMAGE = (OSError, EOFError, zlib.error, lzma.LZMAError)


@dataclass(frozen=True)
class TextFile:
    """One file of sentences, or one column of a table."""

    path: Path
    column: int | None = None  # of a TSV

    @property
    def name(self) -> str:
        return self.path.name if self.column is None else f"{self.path.name} (column {self.column + 1})"


@dataclass(frozen=True, eq=False)
class Pairs:
    """Sentences of two languages, line by line translations of each other."""

    split: str
    files: tuple[TextFile, TextFile]
    source: Sequence[str]
    target: Sequence[str]
    lines: np.ndarray  # int64: the line of each pair in its files, from 1

    def __len__(self) -> int:
        return len(self.source)

    def locate(self, index: int) -> str:
        """Where a pair is, as a person would name it."""
        return f"{self.files[0].path}:{self.lines[index]}"

    def chosen(self, indices: np.ndarray, *, split: str | None = None) -> "Pairs":
        """Some of the pairs, in this order."""
        source, target = ([side[index] for index in indices] for side in (self.source, self.target))
        return Pairs(split or self.split, self.files, source, target, self.lines[indices])

    def without_empty(self) -> "Pairs":
        """The pairs of which neither sentence is empty."""
        full = np.array([bool(a.strip()) and bool(b.strip()) for a, b in zip(self.source, self.target, strict=True)])
        return self if full.all() else self.chosen(np.flatnonzero(full))


class ParallelText:
    """The splits of a folder, a prefix or a TSV, which are read when they are asked for."""

    def __init__(self, name: str, files: Mapping[str, tuple[TextFile, TextFile]]) -> None:
        self.name, self.files = name, dict(files)

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits: train, val, then others."""
        return tuple(sorted(self.files, key=lambda split: (split != "train", split != "val", split)))

    def find(self, split: str) -> str:
        """The name of a split by what a person calls it: dev is val, and test the one whose name begins so."""
        wanted = "val" if split in _NAMES_OF_VAL else split
        if wanted in self.files:
            return wanted
        near = [name for name in self.files if name.startswith(wanted)]
        if len(near) == 1:
            return near[0]
        raise ValueError(f"{self.name} has no split {split!r}; it has: {', '.join(self.splits)}")

    def read(self, split: str) -> Pairs:
        """The pairs of a split, those with an empty side too; an error where its files do not fit each other."""
        name = self.find(split)
        files = self.files[name]
        source, target = (read_lines(file) for file in files)
        if len(source) != len(target):
            raise ValueError(
                f"{files[0].path} has {len(source):,} lines and {files[1].path} has {len(target):,}: line by line they "
                "must be translations of each other"
            )
        if not source:
            raise ValueError(f"{files[0].path} is empty: there is nothing to learn from or to translate")
        return Pairs(name, files, source, target, np.arange(1, len(source) + 1))


def open_text(spec: str, *, source: str, target: str) -> ParallelText:
    """The parallel text of a folder with files such as train.en.gz and train.de.gz, of their prefix, or of a TSV."""
    path = Path(spec).expanduser()
    if path.is_dir():
        found = _find_in(path, source, target)
        if not found:
            raise ValueError(f"{spec} has no parallel text: {_describe_missing(path, source, target)}")
        return ParallelText(str(path), found)
    if path.is_file():
        if _bare_suffix(path) != _TSV:
            raise ValueError(f"{spec} is one file: give a folder, the beginning of two files' names, or a .tsv of both")
        return ParallelText(str(path), {"train": (TextFile(path, 0), TextFile(path, 1))})
    both = [_find_file(path, language) for language in (source, target)]
    if both[0] is None or both[1] is None:
        missing = source if both[0] is None else target
        raise ValueError(f"there is no folder or TSV {spec!r}, and no file {path.name}.{missing} either")
    return ParallelText(str(path), {_canonical(path.name): (TextFile(both[0]), TextFile(both[1]))})


def open_train_and_val(
    spec: str, val: str | None, *, source: str, target: str, val_share: float
) -> tuple[Pairs, Pairs | None]:
    """What a run is trained and measured on; without a val, a share of train is held out, the same in every run."""
    text = open_text(spec, source=source, target=target)
    train = text.read("train" if "train" in text.files or len(text.files) > 1 else text.splits[0]).without_empty()
    if val == NO_VAL:
        return train, None
    if val is not None:
        return train, read_measured(val, source=source, target=target)
    if "val" in text.files:
        return train, text.read("val").without_empty()
    if len(train) < 2:
        raise ValueError(f"{spec} has {len(train)} pairs and no val: give data.val=, or more of them")
    order = Draws("val", len(train)).array().permutation(len(train))
    held = max(1, round(val_share * len(train)))
    return train.chosen(np.sort(order[held:])), train.chosen(np.sort(order[:held]), split=HELD_OUT)


def read_measured(spec: str, *, source: str, target: str, split: str | None = None) -> Pairs:
    """The pairs that a model is measured on: a split, by default val, or the only one there is."""
    text = open_text(spec, source=source, target=target)
    name = split or ("val" if "val" in text.files or len(text.files) > 1 else text.splits[0])
    return text.read(name).without_empty()


def read_lines(file: TextFile) -> list[str]:
    """The sentences of a file, or of a column of a table, in their order."""
    lines = list(decode(read_bytes(file.path), name=str(file.path)))
    if file.column is None:
        return lines
    cells = [line.split("\t") for line in lines]
    for number, row in enumerate(cells, start=1):
        if len(row) <= file.column:
            raise ValueError(f"{file.path}, line {number}: a row needs two columns with a tab between them")
    return [row[file.column] for row in cells]


def decode(lines: Iterable[bytes], *, name: str) -> Iterator[str]:
    """Lines of UTF-8 as text; what is not is told by the number of its line."""
    for number, line in enumerate(lines, start=1):
        try:
            yield line.decode()
        except UnicodeDecodeError:
            raise ValueError(f"{name}, line {number}: it is not UTF-8; `vitrail check` lists all such lines") from None


def read_bytes(path: Path) -> list[bytes]:
    """The lines of a file as they are stored, without their ends."""
    opener = _OPENERS.get(path.suffix, open)
    try:
        with opener(path, "rb") as file:
            content: bytes = file.read()
    except _DAMAGE as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "it is damaged"
        raise ValueError(f"{path} cannot be read: {reason}") from None
    return split_lines(content)


def split_lines(content: bytes) -> list[bytes]:
    """Lines without their ends; other separators of Unicode end none."""
    lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    return [line.removesuffix(b"\r") for line in lines]


def _find_in(folder: Path, source: str, target: str) -> dict[str, tuple[TextFile, TextFile]]:
    """The splits in a folder."""
    found: dict[str, tuple[TextFile, TextFile]] = {}
    for path in sorted(folder.iterdir()):
        bare = path.name.removesuffix(path.suffix) if path.suffix in _OPENERS else path.name
        if bare.endswith(f".{source}"):
            stem = bare.removesuffix(f".{source}")
            other = _find_file(folder / stem, target)
            if other is None:
                raise ValueError(f"{path} has no translation beside it: there is no {stem}.{target}")
            found[_canonical(stem)] = (TextFile(path), TextFile(other))
        elif bare.endswith(_TSV):
            found[_canonical(bare.removesuffix(_TSV))] = (TextFile(path, 0), TextFile(path, 1))
    return found


def _find_file(prefix: Path, language: str) -> Path | None:
    """The file of a language, compressed or not."""
    names = (f"{prefix.name}.{language}{suffix}" for suffix in ("", *_OPENERS))
    return next((path for name in names if (path := prefix.with_name(name)).is_file()), None)


def _describe_missing(folder: Path, source: str, target: str) -> str:
    bare = (path.name.removesuffix(path.suffix) if path.suffix in _OPENERS else path.name for path in folder.iterdir())
    languages = sorted({name.rpartition(".")[2] for name in bare if name.startswith(("train.", "val.", "test."))})
    known = f"; it has {', '.join(languages)}" if languages else ""
    return f"no train.{source} and train.{target} (.gz), and no train.tsv{known}: set text.source and text.target"


def _bare_suffix(path: Path) -> str:
    return path.with_suffix("").suffix if path.suffix in _OPENERS else path.suffix


def _canonical(stem: str) -> str:
    return "val" if stem in _NAMES_OF_VAL else stem
