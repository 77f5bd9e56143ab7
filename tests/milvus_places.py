"""Places of galleries for tests: folders, files of milvus-lite, and a server on loopback that can be cut off."""

import contextlib
import itertools
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_numbers = itertools.count()


def new_place(kind: str, folder: Path, *, database: str | None = None) -> str:
    """A place for a new gallery: a folder, or a name in a database."""
    name = f"g{next(_numbers)}"
    if kind == "folder":
        return str(folder / name)
    assert database is not None
    return f"{database}{name}"


class Server:
    """A server of milvus-lite on loopback, which speaks Milvus's protocol; it may be stopped and started again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = 0
        self._running: tuple[Any, Any] | None = None
        self.start()

    def start(self) -> None:
        from milvus_lite.adapter.grpc.server import start_server_in_thread

        server, database, self.port = start_server_in_thread(str(self._folder), port=self.port)
        self._running = (server, database)

    def stop(self) -> None:
        if self._running is not None:
            server, database = self._running
            server.stop(grace=0).wait()
            database.close()
            self._running = None

    @property
    def address(self) -> str:
        return f"milvus://127.0.0.1:{self.port}/"


class Wire:
    """A connection to a server that can be cut: after so many bytes towards it, or at once."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self.left: int | None = None  # bytes that may still pass; None: all
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"milvus://127.0.0.1:{self.port}/"

    def cut(self) -> None:
        self.left = 0
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        self._open.clear()

    def mend(self) -> None:
        self.left = None

    def close(self) -> None:
        self.cut()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.left == 0:
                client.close()
                continue
            server = socket.create_connection(("127.0.0.1", self._target))
            self._open += [client, server]
            for source, sink, is_counted in ((client, server, True), (server, client, False)):
                threading.Thread(target=self._carry, args=(source, sink, is_counted), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, is_counted: bool) -> None:
        with contextlib.suppress(OSError):
            while content := source.recv(65_536):
                if is_counted and self.left is not None:
                    if len(content) >= self.left:
                        self.cut()
                        return
                    self.left -= len(content)
                sink.sendall(content)


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Server]:
    """A server until the block ends."""
    server = Server(folder)
    try:
        yield server
    finally:
        server.stop()
