"""Bodies as they arrive: bounded in size, in time, and in what all of them hold together."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from starlette.requests import ClientDisconnect, Request

from vitrail.serving.refusals import RefusedError
from vitrail.serving.request_bodies import GivenBody, read_given
from vitrail.serving.service import Service

_DRAINED = 3.0  # seconds in which the rest of a body that is too large is read and dropped, so that its sender listens


@contextlib.asynccontextmanager
async def receiving(request: Request, service: Service) -> AsyncIterator[bytes]:
    """The whole body of a request, which counts as held until the block ends."""
    limits = service.limits
    with service.holding() as hold:
        declared = request.headers.get("content-length", "0")
        is_too_large = not declared.isdecimal() or int(declared) > limits.max_body
        parts: list[bytes] = []
        size = 0

        async def read() -> None:
            nonlocal size, is_too_large
            async for part in request.stream():
                size += len(part)
                is_too_large = is_too_large or size > limits.max_body
                if is_too_large:
                    parts.clear()
                    continue
                hold(len(part))
                parts.append(part)

        try:
            await asyncio.wait_for(read(), _DRAINED if is_too_large else limits.body_timeout)
        except (TimeoutError, asyncio.TimeoutError):
            if not is_too_large:
                raise RefusedError(408, f"the request did not arrive within {limits.body_timeout:g} seconds") from None
        except ClientDisconnect:
            raise RefusedError(400, "the connection ended before the request did") from None
        if is_too_large:
            raise RefusedError(413, f"the request has more than {limits.max_body:,} bytes")
        request.state.num_bytes = size
        yield b"".join(parts)


@contextlib.asynccontextmanager
async def receiving_images(request: Request, service: Service) -> AsyncIterator[GivenBody]:
    """The images of a request, and what it says beside them."""
    async with receiving(request, service) as body:
        query = {key: value for key, value in request.query_params.items() if len(key) < 64}
        kind = request.headers.get("content-type", "")

        def read() -> GivenBody:
            return read_given(body, content_type=kind, query=query, limits=service.limits)

        given = await service.workers.run(read)
        request.state.num_images = len(given.images)
        yield given
