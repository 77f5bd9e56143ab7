"""Connections beneath the requests: answers that do not wait."""

import asyncio
import socket

from vitrail.serving.running import bind


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
