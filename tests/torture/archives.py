"""A tar shard, a manifest or a list of files, however damaged, opens or is refused in one line, and soon."""

import csv
import io
import random
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import get_args

from isolated import run_isolated

from vitrail.data.contract import Faults, Source
from vitrail.data.datasets import open_source
from vitrail.data.exclusion import leave_out

AREA = "archives"
NUM_TESTED = 2
_NUM_VARIANTS = 30
_SECONDS = 60.0  # for all variants, on a busy machine
_MAX_BYTES = 1 << 30
_SIZES = (b"-0000001000\0", b"-1", b"\x80" + b"\xff" * 11, b"\xff" * 12, b"77777777777\0", b"+1_0", b"00000000000\0")
_CELLS = ("", "a/1.jpg", "cat;dog", "cat|dog", "=1", "\0", "0", "1", '"', "é", "x" * 200, "-1", "train", "val", "../..")
_SECRET = "s3cr3t"


def attempt(rng: random.Random, folder: Path) -> str | None:
    """Damage one kind of file in many ways, and open each."""
    make = rng.choice((_make_tar, _make_manifest, _make_foreign))

    def open_all(say: Callable[[str], None]) -> str | None:
        for number in range(_NUM_VARIANTS):
            say(f"variant {number} of {make.__name__}")
            broken = _open(make(rng, folder / str(number)))
            if broken is not None:
                return f"variant {number} of {make.__name__}: {broken}"
        return None

    return run_isolated(open_all, seconds=_SECONDS, max_bytes=_MAX_BYTES)


def _open(spec: str) -> str | None:
    for faults in get_args(Faults):
        try:
            source = open_source(spec, faults=faults)
        except ValueError as error:
            message = str(error)
            if "\n" in message or _SECRET in message or spec.removeprefix("shards:") not in message:
                return f"refused by {message!r}"
            continue
        broken = _read_all(source)
        if broken is not None:
            return broken
    return None


def _read_all(source: Source) -> str | None:
    for split in source.splits:
        dataset = source.open(split)
        for index in range(len(dataset)):
            dataset.locate(index)
            try:
                dataset.read(index)
            except OSError as error:
                if "\n" in str(error):
                    return f"reading failed with {str(error)!r}"
        if dataset.level().labels.shape[0] != len(dataset):
            return f"{len(dataset)} samples have labels of shape {dataset.level().labels.shape}"
    return None


def _make_tar(rng: random.Random, folder: Path) -> str:
    folder.mkdir()
    path = folder / "a.tar"
    tar_format = rng.choice((tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT))
    with tarfile.open(path, "w", format=tar_format) as archive:
        for number in range(rng.randint(1, 5)):
            name = f"{'long' * (0 if tar_format == tarfile.USTAR_FORMAT else rng.choice((0, 40)))}{number}"
            for ending, content in ((".jpg", bytes(rng.randint(0, 2000))), (".cls", b"%d" % (number % 2))):
                member = tarfile.TarInfo(name + ending)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    data = bytearray(path.read_bytes())
    for _ in range(rng.randint(1, 4)):
        block = 512 * rng.randrange(len(data) // 512)
        change = rng.randrange(4)
        if change == 0:
            data[rng.randrange(len(data))] = rng.randrange(256)
        elif change == 1:
            size = rng.choice(_SIZES)
            data[block + 124 : block + 124 + len(size)] = size
        elif change == 2:
            data[block + 156] = rng.choice(b"0xgLK57\0")
        elif rng.random() < 0.3:
            del data[rng.randrange(len(data)) :]
            break
        header = data[block : block + 512]
        if rng.random() < 0.9 and len(header) == 512:
            header[148:156] = b" " * 8
            data[block + 148 : block + 156] = b"%06o\0 " % sum(header)
    path.write_bytes(data)
    return f"shards:{path}"


def _make_manifest(rng: random.Random, folder: Path) -> str:
    (folder / "a").mkdir(parents=True)
    (folder / "a/1.jpg").write_bytes(b"one")
    header = rng.sample(("path", "label", "labels", "split", "cat", "dog", "genus"), rng.randint(2, 5))
    rows = [[rng.choice(_CELLS) for _ in range(len(header) - (rng.random() < 0.1))] for _ in range(rng.randint(0, 12))]
    text = io.StringIO()
    csv.writer(text, delimiter=rng.choice(",;\t")).writerows([header, *rows])
    data = bytearray(text.getvalue().encode())
    for _ in range(rng.choice((0, 0, 1, 5))):
        data[rng.randrange(len(data))] = rng.randrange(256)
    path = folder / "list.csv"
    path.write_bytes(data)
    listing = folder / "quarantine.csv"
    listing.write_bytes(bytes(data).replace(b"labels", b"path"))
    try:
        source = open_source(path)
        leave_out(source.open(source.splits[0]), listing)
    except ValueError:
        pass
    return str(path)


def _make_foreign(rng: random.Random, folder: Path) -> str:
    """A file of another kind under a manifest's name, whose contents must not be shown."""
    folder.mkdir()
    path = folder / rng.choice(("list.csv", "list.tsv", "list.parquet"))
    lines = [rng.choice((_SECRET, f"user:{_SECRET}:0", f"key = {_SECRET}", f"-{_SECRET}-")) for _ in range(5)]
    separator = rng.choice(("\n", "\n\n", "\r\n"))
    path.write_text(separator.join(lines), newline="")
    return str(path)
