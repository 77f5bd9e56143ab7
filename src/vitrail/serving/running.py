"""The server as a process: its socket, its signals, and how it ends."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Sequence
from typing import Any

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from vitrail.serving.app import make_app
from vitrail.serving.guard import is_loopback
from vitrail.serving.hangups import Hangups
from vitrail.serving.service import Service
from vitrail.serving.telemetry import LOGGER

_BACKLOG = 1024


def check_place(host: str, *, has_keys: bool) -> None:
    """Refuse to be reached from other machines by everybody."""
    if not has_keys and not is_loopback(host):
        raise ValueError(f"--host {host} is reached from other machines: add --keys FILE, or serve on 127.0.0.1")


def bind(host: str, port: int) -> socket.socket:
    """A socket at that place, which nobody can connect to yet."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol asyncio turns off Nagle's algorithm, which keeps the body back until the client has the head.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ValueError(f"can't serve at {host}:{port}: {error.strerror}: choose another --host or --port") from None
    return listener


class ServerProcess(uvicorn.Server):
    """A uvicorn that tells the service when it begins to stop, and loads anew when told to."""

    def __init__(self, service: Service, *, origins: Sequence[str] = (), hangups: Hangups | None = None) -> None:
        limits = service.limits
        super().__init__(
            uvicorn.Config(
                make_app(service, origins=origins),
                http=_make_protocol(service),
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=_BACKLOG,
                limit_concurrency=limits.max_connections,
                timeout_keep_alive=round(limits.keep_alive),
                timeout_graceful_shutdown=round(limits.drain_timeout),
            )
        )
        self.service, self._hangups = service, hangups
        self._reloads: set[asyncio.Task[bool]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer."""
        if hasattr(signal, "SIGHUP"):
            with contextlib.suppress(ValueError, RuntimeError):  # not in the main thread, where tests run it
                asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._reload)
        await super().startup(sockets)
        if self._hangups is not None and self._hangups.has_come:
            self._reload()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End what was begun, then stop."""
        self.service.is_draining = True
        LOGGER.info("stopping when all requests are answered", extra={"fields": {"event": "drain"}})
        await super().shutdown(sockets)

    def _reload(self) -> None:
        task = asyncio.ensure_future(self.service.reload())
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)


def serve_forever(
    service: Service, listener: socket.socket, *, origins: Sequence[str] = (), hangups: Hangups | None = None
) -> None:
    """Serve until SIGTERM or Ctrl-C, which end it when all requests are answered."""
    server = ServerProcess(service, origins=origins, hangups=hangups)
    former = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        server.run(sockets=[listener])
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _make_protocol(service: Service) -> type[asyncio.Protocol]:
    """uvicorn's protocol, which also ends connections whose request does not arrive, or whose answer is not taken."""
    base: Any = AutoHTTPProtocol
    limits = service.limits

    class PatientProtocol(base):
        _timer: asyncio.TimerHandle | None = None
        _patience: asyncio.TimerHandle | None = None  # while the client has not taken all that was written
        _untaken = 0  # bytes

        def connection_made(self, transport: asyncio.Transport) -> None:
            transport.set_write_buffer_limits(high=0)  # whatever is not taken at once pauses writing
            super().connection_made(transport)
            self._timer = self.loop.call_later(limits.body_timeout, self._give_up)

        def data_received(self, data: bytes) -> None:
            if self._timer is None and self._is_idle():
                self._timer = self.loop.call_later(limits.body_timeout, self._give_up)
            super().data_received(data)
            if not self._is_idle():
                self._stop_timer()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._untaken = self.transport.get_write_buffer_size()
            service.held += self._untaken
            # Closing would wait for the client without an end.
            self._patience = self.loop.call_later(limits.unread_timeout, self.transport.abort)

        def resume_writing(self) -> None:
            self._note_taken()
            super().resume_writing()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            self._note_taken()
            super().connection_lost(exc)

        def _note_taken(self) -> None:
            service.held -= self._untaken
            self._untaken = 0
            if self._patience is not None:
                self._patience.cancel()
                self._patience = None

        def _is_idle(self) -> bool:
            return self.cycle is None or self.cycle.response_complete

        def _stop_timer(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _give_up(self) -> None:
            self._timer = None
            if self._is_idle() and not self.transport.is_closing():
                self.transport.close()

    return PatientProtocol
