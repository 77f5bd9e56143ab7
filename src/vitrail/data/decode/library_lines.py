"""What decoders written in C print about a file, kept for a log instead of the screen."""

import os
import re
import tempfile
import threading
from collections import deque
from typing import BinaryIO

_STANDARD_ERROR = 2
_MAX_LINES = 20  # that are kept of those that nobody has taken
_MAX_BYTES = 1 << 20  # that are printed before the lines are sorted, though threads are inside
# What libjpeg warns of, and libtiff's `module: message.`; whatever else was printed meanwhile is passed on.
_LIBRARY_LINE = re.compile(
    rb"(?:Corrupt JPEG data|Premature end of JPEG|Invalid SOS parameters|Inconsistent progression|Unsupported marker|"
    rb"Warning: unknown JFIF)[^\n]*\n|^[A-Za-z_][\w.]*: [^\n]*\.\n",
    re.MULTILINE,
)


class _Kept(threading.local):
    """Lines of one thread that nobody has taken yet."""

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=_MAX_LINES)


class _LibraryLines:
    """While any thread is inside, what is printed to file descriptor 2 goes to a file.

    There is no other way to the messages of libraries in C. When the last thread leaves, or there is much of it, these
    lines are kept, and all else is printed where it belongs: of what other threads print meanwhile nothing is lost.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_inside = 0
        self._file: BinaryIO | None = None  # of this process
        self._standard_error: int | None = None  # the real one, while any thread is inside
        self._kept = _Kept()
        self._follows_forks = not hasattr(os, "register_at_fork")

    def __enter__(self) -> None:
        with self._lock:
            self._num_inside += 1
            if self._num_inside > 1:
                return
            try:
                self._standard_error = os.dup(_STANDARD_ERROR)
            except OSError:  # the process has none
                return
            if self._file is None:
                self._file = tempfile.TemporaryFile(buffering=0)
            if not self._follows_forks:
                os.register_at_fork(after_in_child=self._begin_anew)
                self._follows_forks = True
            os.dup2(self._file.fileno(), _STANDARD_ERROR)

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._num_inside -= 1
            if self._standard_error is None or self._file is None:
                return
            if self._num_inside == 0:
                self._restore()
                self._empty(self._file)
            elif self._file.tell() > _MAX_BYTES:
                os.dup2(self._standard_error, _STANDARD_ERROR)
                self._empty(self._file)
                os.dup2(self._file.fileno(), _STANDARD_ERROR)

    def take(self) -> list[str]:
        """The lines that this thread was the one to find."""
        lines = list(self._kept.lines)
        self._kept.lines.clear()
        return lines

    def _restore(self) -> None:
        assert self._standard_error is not None
        os.dup2(self._standard_error, _STANDARD_ERROR)
        os.close(self._standard_error)
        self._standard_error = None

    def _empty(self, file: BinaryIO) -> None:
        """Sort what the file holds; nothing is printed to it now."""
        if not file.tell():
            return
        file.seek(0)
        printed = file.read()
        file.seek(0)
        file.truncate()
        for line in _LIBRARY_LINE.findall(printed):
            self._kept.lines.append(line.decode("utf-8", "backslashreplace").strip())
        if others := _LIBRARY_LINE.sub(b"", printed):
            os.write(_STANDARD_ERROR, others)

    def _begin_anew(self) -> None:
        """Give a forked process what is its own: it has no other threads, and must not share a file."""
        if self._standard_error is not None:
            self._restore()
        if self._file is not None:
            self._file.close()
        self._lock, self._num_inside, self._file = threading.Lock(), 0, None


LIBRARY_LINES = _LibraryLines()


def take_library_lines() -> list[str]:
    """What decoders printed about the images that this thread has decoded since it last asked."""
    return LIBRARY_LINES.take()
