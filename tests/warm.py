"""Processes that start at once: forked from one that has imported the package and done nothing else.

What a process of its own costs in a test is its imports, some seconds each; what a test wants of it is that it can be
killed, that it shares nothing, or that several train together.
"""

import io
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import torch

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "vitrail.training.start",
        "vitrail.cli.train",
        "vitrail.recipes",
        "vitrail.tasks.classify.task",
        "vitrail.tasks.distill.task",
        "vitrail.tasks.embed.task",
        "vitrail.tasks.features.task",
        "vitrail.tasks.translate.task",
    ]
)


class WarmProcess:
    """`vitrail WORDS` in a process of its own, with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, words: Sequence[str], *, environment: Mapping[str, str] | None = None) -> None:
        descriptor, name = tempfile.mkstemp(suffix=".log")
        os.close(descriptor)
        self._said = Path(name)
        self._process = _CONTEXT.Process(target=_run, args=(list(words), {**os.environ, **(environment or {})}, name))
        self._process.start()

    @property
    def pid(self) -> int:
        """The number of the process."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Its exit code, once it has ended."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Its exit code, or None while it goes on."""
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """Wait for its end; what it has said."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            self.kill()
            self._process.join()
            raise subprocess.TimeoutExpired("vitrail", timeout or 0.0, output=self._said.read_bytes())
        said = self._said.read_text(encoding="utf-8")
        self._said.unlink()
        return said, None


class WarmProgram:
    """The text of a Python program in a process of its own; what it prints and reads are `stdout` and `stdin`."""

    def __init__(self, program: str, *words: str) -> None:
        own, others = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_run_program, args=(program, words, dict(os.environ), others))
        self._process.start()
        others.close()
        self.stdout = os.fdopen(os.dup(own.fileno()), "r", encoding="utf-8")
        self.stdin = os.fdopen(os.dup(own.fileno()), "w", encoding="utf-8")
        own.close()

    def tell(self, line: str) -> None:
        """Give it a line to read."""
        self.stdin.write(f"{line}\n")
        self.stdin.flush()

    def kill(self) -> str:
        """Kill it; what it had said that nobody has read yet."""
        self._process.kill()
        self._process.join()
        said = self.stdout.read()
        self._close()
        return said

    def wait(self) -> int | None:
        """Wait for its end; its exit code."""
        self._process.join(300.0)
        if self._process.exitcode is None:
            self.kill()
        else:
            self._close()
        return self._process.exitcode

    def _close(self) -> None:
        self.stdout.close()
        self.stdin.close()


def start_ranks(words: Sequence[str], *, num_ranks: int) -> list[WarmProcess]:
    """`vitrail WORDS` in several processes that train together, as a launcher would start them."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(num_ranks)}
    places = ({**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(num_ranks))
    return [WarmProcess(words, environment=place) for place in places]


def _run(words: list[str], environment: dict[str, str], said: str) -> None:
    from vitrail.cli import main

    os.environ.clear()
    os.environ.update(environment)
    descriptor = os.open(said, os.O_WRONLY | os.O_APPEND)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(os.fdopen(standard, "wb", 0), encoding="utf-8", write_through=True) for standard in (1, 2)
    )
    torch.set_num_threads(1)
    sys.exit(main(words))


def _run_program(program: str, words: Sequence[str], environment: dict[str, str], connection: Connection) -> None:
    os.environ.clear()
    os.environ.update(environment)
    for standard in (0, 1):
        os.dup2(connection.fileno(), standard)
    connection.close()
    sys.stdin, sys.stdout = open(0, encoding="utf-8"), open(1, "w", encoding="utf-8")  # noqa: SIM115
    sys.argv = ["-c", *words]
    torch.set_num_threads(1)
    exec(compile(program, "program", "exec"), {"__name__": "__main__"})
    sys.stdout.flush()
