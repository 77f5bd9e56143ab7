"""The door of the server: request ids, keys, hosts, time-outs, log and numbers, before and after every route."""

import asyncio
import ipaddress
import json
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from vitrail.serving.keys import Scope
from vitrail.serving.refusals import RefusedError
from vitrail.serving.service import Service
from vitrail.serving.telemetry import LOGGER

AsgiScope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[AsgiScope, Receive, Send], Awaitable[None]]

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_OPEN = {"/", "/docs", "/openapi.json", "/v2", "/v2/health/live", "/v2/health/ready", "/favicon.ico"}
_OPEN_FOLDER = "/static/"  # the page itself; it holds nothing of what is served
_ASKING = {"predict", "segment", "detect", "embed", "explain", "search", "infer"}  # that change nothing
_SECURITY = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=()",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
        "media-src 'self' blob:; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
    ),
}


def scope_of(method: str, path: str) -> Scope:
    """What a key must allow for a request; whatever is not known to be harmless is writing."""
    if method in ("GET", "HEAD", "OPTIONS"):
        return "open" if path in _OPEN or path.startswith(_OPEN_FOLDER) or method == "OPTIONS" else "read"
    return "read" if method == "POST" and path.rpartition("/")[2] in _ASKING else "write"


def is_loopback(host: str) -> bool:
    """Whether a name or number is of this machine and reached from nowhere else."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """ASGI middleware around all routes."""

    def __init__(self, app: AsgiApp, service: Service, *, origins: tuple[str, ...] = ()) -> None:
        self.app, self.service, self.origins = app, service, origins

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start = time.monotonic()
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        identity = given.decode() if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = identity
        status, has_begun = 500, False

        async def send_noted(message: Message) -> None:
            nonlocal status, has_begun
            if message["type"] == "http.response.start":
                status, has_begun = message["status"], True
                extra = {**_SECURITY, "X-Request-ID": identity}
                message["headers"] = [
                    *message["headers"],
                    *((name.lower().encode(), value.encode()) for name, value in extra.items()),
                ]
            await send(message)

        failure: RefusedError | None = None
        owner = None
        try:
            owner = self._admit(scope["method"], scope["path"], headers)
            await asyncio.wait_for(self.app(scope, receive, send_noted), self.service.limits.timeout)
        except RefusedError as error:
            failure = error
        except (TimeoutError, asyncio.TimeoutError):
            failure = RefusedError(504, f"no answer within {self.service.limits.timeout:g} seconds")
        except Exception:
            failure = RefusedError(500, "something went wrong in the server; its log says more under the request id")
            LOGGER.exception("failed", extra={"fields": {"request_id": identity}})
        if failure is not None and not has_begun:
            others = self._allow_origin(headers)
            await send_failure(failure, send_noted, identity=identity, path=scope["path"], others=others)
        self._note(scope, status, time.monotonic() - start, identity=identity, owner=owner, failure=failure)

    def _admit(self, method: str, path: str, headers: dict[bytes, bytes]) -> str | None:
        """Who asks, if they may."""
        needed = scope_of(method, path)
        if self.service.keys is None:
            self._check_neighbour(headers)
            return None
        if needed == "open":
            return None
        return self.service.keys.check(_shown_key(headers), needed).owner

    def _allow_origin(self, headers: dict[bytes, bytes]) -> dict[str, str]:
        """What lets a page of a named place read why it is refused; of answers, the app itself says so."""
        origin = headers.get(b"origin", b"").decode("latin-1")
        is_allowed = bool(origin) and (origin in self.origins or "*" in self.origins)
        return {"Access-Control-Allow-Origin": origin, "Vary": "Origin"} if is_allowed else {}

    def _check_neighbour(self, headers: dict[bytes, bytes]) -> None:
        """Without keys: refuse what a web page of somebody else makes a browser on this machine send."""
        host = headers.get(b"host", b"").decode("latin-1")
        if not is_loopback(_host_of(host)):
            raise RefusedError(403, "without keys this server answers to localhost alone")
        origin = headers.get(b"origin", b"").decode("latin-1")
        if origin and origin not in self.origins and urlsplit(origin).netloc != host:
            raise RefusedError(403, "requests from pages of other places are refused (--cors allows one)")

    def _note(
        self,
        scope: AsgiScope,
        status: int,
        seconds: float,
        *,
        identity: str,
        owner: str | None,
        failure: RefusedError | None,
    ) -> None:
        route = getattr(scope.get("route"), "path", "other")
        state = scope["state"]
        name = state.get("served", "")
        telemetry = self.service.telemetry
        telemetry.requests.labels(route, name, str(status)).inc()
        telemetry.seconds.labels(route, name).observe(seconds)
        fields = {
            "event": "request",
            "request_id": identity,
            "method": scope["method"],
            "route": route,
            "status": status,
            "seconds": round(seconds, 6),
            "served": name,
            "images": state.get("num_images", 0),
            "bytes": state.get("num_bytes", 0),
            "client": (scope.get("client") or ("",))[0],
            "key": owner,
            "error": state.get("error") or (None if failure is None else str(failure)),
        }
        level = logging.DEBUG if route.startswith("/v2/health") and status == 200 else logging.INFO
        told = {key: value for key, value in fields.items() if value is not None}
        LOGGER.log(level, "request", extra={"fields": told})


async def send_failure(
    failure: RefusedError, send: Send, *, identity: str, path: str, others: Mapping[str, str] | None = None
) -> None:
    """Answer with a refusal and other headers, in the form of the part of the server that was asked."""
    content: Any = {"error": {"status": failure.status, "message": str(failure), "request_id": identity}}
    if path.startswith("/v2"):
        content = {"error": str(failure)}
    body = json.dumps(content).encode()
    headers = {
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        **failure.headers,
        **(others or {}),
    }
    named = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": failure.status, "headers": named})
    await send({"type": "http.response.body", "body": body})


def _shown_key(headers: dict[bytes, bytes]) -> str | None:
    kind, _, key = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    if kind.lower() == "bearer" and key.strip():
        return key.strip()
    return headers[b"x-api-key"].decode("latin-1") if b"x-api-key" in headers else None


def _host_of(header: str) -> str:
    """The host in a Host header, without its port."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""
