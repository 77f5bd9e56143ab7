"""Where the members of a tar file lie: its headers are read once, and then every member can be read directly."""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

_BLOCK = 512
_MAX_EXTENSION = 1 << 20  # bytes of a header that tells more of the next
_MAX_DIGITS = 20  # of a number in it
_EXTENSIONS = (b"x", b"g", b"L", b"K")  # of the header that follows: pax, pax for all, GNU's long name and long link
_REGULAR_FILES = (b"0", b"\0", b"7")
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZ": "bzip2", b"\xfd7": "xz", b"\x28\xb5": "zstd"}


class Member(NamedTuple):
    """A file in a tar file."""

    name: str
    offset: int  # of its contents
    size: int


def read_members(path: Path) -> Iterator[Member]:
    """The files in a tar file (of the formats ustar, GNU and pax), in their order; everything else is passed over."""
    length = path.stat().st_size
    with path.open("rb", buffering=4 * _BLOCK) as file:
        yield from scan_members(file, place=str(path), length=length)


def scan_members(file: BinaryIO, *, place: str, length: int) -> Iterator[Member]:
    """The files in an opened tar file of that length, as `read_members` gives them."""
    try:
        yield from _scan(file, place, length)
    except _DamagedError as error:
        file.seek(0)
        start = file.read(2)
        if error.position == 0 and start in _COMPRESSED:
            raise ValueError(
                f"{place} is compressed with {_COMPRESSED[start]}: unpack it to a plain tar file"
            ) from None
        raise ValueError(
            f"{place} is damaged, or is no tar file: there is no header at byte {error.position}; copy it anew"
        ) from None


class _DamagedError(Exception):
    """There is no header where one should be."""

    def __init__(self, position: int) -> None:
        super().__init__(position)
        self.position = position


def _scan(file: BinaryIO, place: str, length: int) -> Iterator[Member]:
    position = 0
    name: str | None = None  # from the extended header before the member
    size: int | None = None
    while True:
        file.seek(position)
        header = file.read(_BLOCK)
        if len(header) < _BLOCK:
            if position == 0:
                raise _DamagedError(position)
            raise ValueError(
                f"{place} is cut short: it ends at byte {length} without tar's closing block; copy it anew"
            )
        if not any(header):
            return
        _check(header, position)
        kind = header[156:157]
        is_extension = kind in _EXTENSIONS
        own_size = _number(header[124:136], position) if is_extension or size is None else size
        position += _BLOCK
        if position + own_size > length:
            raise ValueError(f"{place} is cut short: a member at byte {position} goes beyond its end; copy it anew")
        if is_extension and own_size > _MAX_EXTENSION:
            raise _DamagedError(position - _BLOCK)
        if kind == b"L":
            name = _text(file.read(own_size))
        elif kind == b"x":
            records = _records(file.read(own_size), position)
            name = records.get("path", name)
            if "size" in records:
                size = _decimal(records["size"], position)
        elif not is_extension:
            if kind in _REGULAR_FILES:
                yield Member(name or _own_name(header), position, own_size)
            name = size = None
        position += -(-own_size // _BLOCK) * _BLOCK


def _check(header: bytes, position: int) -> None:
    """Compare the header with its checksum, which counts its own eight bytes as spaces."""
    expected = _number(header[148:156], position)
    if sum(header) - sum(header[148:156]) + 8 * 32 != expected:
        raise _DamagedError(position)


def _number(field: bytes, position: int) -> int:
    """A number of 0 or more: a size below 0 would lead back to a header that has been read."""
    if field[0] == 0x80:  # binary, for sizes of 8 GiB and more
        return int.from_bytes(field[1:], "big")
    digits = field.strip(b" \0")
    if digits.strip(b"01234567"):
        raise _DamagedError(position)
    return int(digits or b"0", 8)


def _decimal(text: str, position: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise _DamagedError(position)
    return int(text)


def _own_name(header: bytes) -> str:
    name = _text(header[:100])
    prefix = _text(header[345:500]) if header[257:263] == b"ustar\0" else ""
    return f"{prefix}/{name}" if prefix else name


def _records(extension: bytes, position: int) -> dict[str, str]:
    """The entries of a pax header: "length key=value" and a line break each."""
    records = {}
    extension = extension.rstrip(b"\0")
    start = 0
    while start < len(extension):
        digits, _, _ = extension[start : start + _MAX_DIGITS + 1].partition(b" ")
        length = int(digits) if digits.isdigit() else 0
        if not len(digits) < length <= len(extension) - start:
            raise _DamagedError(position)
        key, _, value = extension[start + len(digits) + 1 : start + length - 1].partition(b"=")
        records[_text(key)] = _text(value)
        start += length
    return records


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "surrogateescape")
