"""The ASGI application of a service: all routes, the page, and the guard around them."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from importlib.resources import files

from fastapi import FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

import vitrail
from vitrail.pages.frame import read_style
from vitrail.serving.api_page import render_api
from vitrail.serving.guard import Guard, send_failure
from vitrail.serving.refusals import RefusedError
from vitrail.serving.routes_v1 import make_v1
from vitrail.serving.routes_v2 import make_v2
from vitrail.serving.service import Service

_PAGE_FILES = {
    **dict.fromkeys(("page.js", "drawing.js", "camera.js"), "text/javascript"),
    "page.css": "text/css",
}
_STYLE = "pages.css"  # that of all pages


def make_app(service: Service, *, origins: Sequence[str] = ()) -> Guard:
    """The application; pages of other `origins` may ask where they are named."""

    @contextlib.asynccontextmanager
    async def living(app: FastAPI) -> AsyncIterator[None]:
        yield
        await service.close()

    app = FastAPI(title="vitrail", version=vitrail.__version__, docs_url=None, redoc_url=None, lifespan=living)
    app.include_router(make_v1(service))
    app.include_router(make_v2(service))
    _add_pages(app, service)
    app.add_exception_handler(HTTPException, _refuse_unknown)
    app.add_exception_handler(RefusedError, _refuse)
    app.add_exception_handler(Exception, _leave_to_guard)
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["Authorization", "X-API-Key", "Content-Type", "X-Request-ID"],
        )
    return Guard(app, service, origins=tuple(origins))


def _add_pages(app: FastAPI, service: Service) -> None:
    folder = files("vitrail.serving").joinpath("page")
    contents = {name: folder.joinpath(name).read_bytes() for name in (*_PAGE_FILES, "index.html")}
    contents[_STYLE] = read_style().encode()

    @app.get("/", include_in_schema=False)
    async def page() -> HTMLResponse:
        return HTMLResponse(contents["index.html"])

    @app.get("/static/{name}", include_in_schema=False)
    async def static(name: str) -> Response:
        if name not in _PAGE_FILES and name != _STYLE:
            raise RefusedError(404, "there is no such file")
        return Response(contents[name], media_type=_PAGE_FILES.get(name, "text/css"))

    @app.get("/favicon.ico", include_in_schema=False)
    async def icon() -> Response:
        return Response(status_code=204)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(render_api(app.openapi()))

    @app.get("/metrics", summary="Numbers for Prometheus")
    async def metrics() -> Response:
        return Response(await service.measure(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedError)
    request.state.error = str(error)
    return _Failure(error, identity=request.state.request_id, path=request.url.path)


async def _leave_to_guard(request: Request, error: Exception) -> Response:
    """What nobody foresaw: the guard answers it as it answers all refusals, and logs it."""
    raise error


async def _refuse_unknown(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    told = {404: "there is nothing at this address: see /docs", 405: "this address takes another method: see /docs"}
    return await _refuse(request, RefusedError(error.status_code, told.get(error.status_code, str(error.detail))))


class _Failure(JSONResponse):
    """A refusal as a response."""

    def __init__(self, failure: RefusedError, *, identity: str, path: str) -> None:
        super().__init__(None, status_code=failure.status)
        self._failure, self._identity, self._path = failure, identity, path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_failure(self._failure, send, identity=self._identity, path=self._path)
