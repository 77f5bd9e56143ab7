"""Work in a forked process of bounded time and memory, so that a crash or a loop in it is an answer and not the end."""

import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path

import torch

_SLICE = 0.02  # seconds between looks at the process


def run_isolated(work: Callable[[Callable[[str], None]], str | None], *, seconds: float, max_bytes: int) -> str | None:
    """What `work` returns, or a sentence about how its process ended.

    `work` is handed a function to say what it is about to do, which the sentence repeats. The process may take as much
    memory as it had at first and `max_bytes` more.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _work(work, writing, max_bytes=max_bytes)
    os.close(writing)
    os.set_blocking(reading, False)
    until, said, status = time.monotonic() + seconds, b"", None
    try:
        while status is None:
            said += _read(reading)
            done, found = os.waitpid(child, os.WNOHANG)
            if done:
                status = found
            elif time.monotonic() > until:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return f"{_last(said)} did not end within {seconds:.0f} s"
            else:
                time.sleep(_SLICE)
        said += _read(reading)
    finally:
        os.close(reading)
    if status:
        return f"{_last(said)} ended the process with status {status}"
    return _last(said).removeprefix("=") or None


def _work(work: Callable[[Callable[[str], None]], str | None], writing: int, *, max_bytes: int) -> None:
    """Do the work in the child, which never returns from here."""
    try:
        torch.set_num_threads(1)  # threads do not survive a fork
        limit = _count_bytes() + max_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        try:
            found = work(lambda text: _say(writing, text))
        except BaseException as error:
            found = f"{type(error).__name__}: {error}"
        _say(writing, f"={found or ''}")
        os._exit(0)
    finally:
        os._exit(1)


def _count_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def _say(writing: int, text: str) -> None:
    os.write(writing, " ".join(text.split()).encode("utf-8", "replace") + b"\n")


def _read(reading: int) -> bytes:
    parts = []
    try:
        while part := os.read(reading, 1 << 16):
            parts.append(part)
    except BlockingIOError:
        pass
    return b"".join(parts)


def _last(said: bytes) -> str:
    lines = said.decode().splitlines()
    return lines[-1] if lines else "the process"
