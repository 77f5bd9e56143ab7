"""Connections beneath the requests: clients that do not take their answers, and answers that do not wait."""

import asyncio
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from served import Running, save_tiny, serving

from vitrail.serving.limits import ServingLimits
from vitrail.serving.running import bind

PIPELINED = 1000  # requests, whose answers are more than the buffers of the system hold
_PATIENCE = 120.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("served") / "pets")


def ask_much(running: Running, connection: socket.socket) -> None:
    """Ask for a file many times, with little room for the answers."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", running.port))
    connection.sendall(b"GET /static/page.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * PIPELINED)


def wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + _PATIENCE
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_clients_that_never_read_are_let_go(model: Path) -> None:
    with serving(str(model), limits=ServingLimits(unread_timeout=0.5)) as running, socket.socket() as deaf:
        ask_much(running, deaf)
        wait_until(lambda: b'route="/static/{name}"' in running.service.telemetry.render())
        state = running.server.server_state
        wait_until(lambda: not state.connections and not state.tasks)
        assert running.service.held == 0
        assert state.total_requests < PIPELINED


def test_what_a_client_has_not_taken_is_held(model: Path) -> None:
    with serving(str(model), limits=ServingLimits(timeout=_PATIENCE)) as running, socket.socket() as slow:
        ask_much(running, slow)
        wait_until(lambda: running.service.held > 0)
        slow.settimeout(_PATIENCE)
        num_answers, rest = 0, b""
        while num_answers < PIPELINED:
            rest += slow.recv(1 << 20)
            num_answers += rest.count(b"HTTP/1.1 200 OK")
            rest = rest[-14:]
        wait_until(lambda: running.service.held == 0)


def test_an_answer_s_body_does_not_wait_until_its_head_has_arrived() -> None:
    seen: list[int] = []

    class Noting(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            seen.append(transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            assert isinstance(transport, asyncio.Transport)
            transport.close()

    async def connect() -> None:
        with bind("127.0.0.1", 0) as listener:
            server = await asyncio.get_running_loop().create_server(Noting, sock=listener)
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            assert await reader.read() == b""
            writer.close()
            server.close()

    asyncio.run(connect())
    assert [bool(one) for one in seen] == [True]
