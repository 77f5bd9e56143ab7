"""Reading encoded images from disk: regular files alone, and of a bounded size."""

import os
import stat

MAX_FILE_BYTES = 1 << 29  # of an encoded image: more than any that may be decoded needs
_CHUNK = 1 << 24
# A pipe that nobody writes to would be waited for without end; for regular files this changes nothing.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_OTHERS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
    stat.S_IFSOCK: "a socket",
}


def read_regular_file(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a file, or of the file that a link leads to; an `OSError` where it is none, or too large."""
    try:
        descriptor = os.open(path, _FLAGS)
    except ValueError as error:  # a name with a NUL
        raise OSError(str(error)) from None
    try:
        status = os.fstat(descriptor)
        kind = stat.S_IFMT(status.st_mode)
        if kind != stat.S_IFREG:
            raise OSError(f"is {_OTHERS.get(kind, 'something else')}, not a file with an image")
        check_file_size(status.st_size)
        data = os.read(descriptor, status.st_size + 1)
        while part := os.read(descriptor, _CHUNK):  # a network may give less than was asked for
            data += part
            check_file_size(len(data))
        return data
    finally:
        os.close(descriptor)


def check_file_size(num_bytes: int) -> None:
    """Refuse an encoded image that is larger than any that may be decoded."""
    if num_bytes > MAX_FILE_BYTES:
        limit = MAX_FILE_BYTES // 1_000_000
        raise OSError(f"is a file of {num_bytes // 1_000_000:,} MB, more than the limit of {limit:,} MB for an image")
