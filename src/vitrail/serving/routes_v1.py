"""The routes of models and galleries, /v1."""

import asyncio
import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from vitrail.serving.bodies import receiving, receiving_images
from vitrail.serving.limits import ServingLimits
from vitrail.serving.refusals import RefusedError
from vitrail.serving.request_bodies import (
    GivenBody,
    read_json_body,
    read_number,
    read_optional_number,
    read_word,
)
from vitrail.serving.served_gallery import ServedGallery
from vitrail.serving.served_model import EMBED, EXPLAIN, DrawnAnswer, ServedModel
from vitrail.serving.service import Crew, Service

_MOST_TOP = 1000
_FEW = 100  # values
_FILES = {"type": "array", "items": {"type": "string", "format": "binary"}, "description": "files of images"}
_TEXTS = {"type": "array", "items": {"type": "string", "format": "byte"}, "description": "images in base64"}
_SEARCHING = {
    "top": "images and classes to tell, 10",
    "rank": "cosine, conditional or oracle",
    "coarse": "coarse class",
}


def make_v1(service: Service) -> APIRouter:
    """The routes of a service."""
    router = APIRouter(prefix="/v1")
    _add_models(router, service)
    _add_galleries(router, service)
    return router


def _add_models(router: APIRouter, service: Service) -> None:
    @router.get("/models", summary="List all models, and what each can do")
    async def list_models() -> JSONResponse:
        fleet = service.crew.fleet
        described = [_brief(model) for model in fleet.models.values()]
        return JSONResponse({"models": described, "galleries": list(fleet.galleries)})

    @router.get("/models/{name}", summary="Tell all about a model: its classes, its size, its maps")
    async def describe_model(name: str, request: Request) -> JSONResponse:
        request.state.served = name if name in service.crew.fleet.models else ""
        described = service.crew.model(name).describe()
        fitting = [one.name for one in service.crew.fleet.galleries.values() if one.viewer.name == name]
        return JSONResponse({**described, "galleries": fitting})

    @router.post(
        "/models/{name}/predict",
        summary="Name the most probable classes of images",
        openapi_extra=_takes({"top": "classes to tell, 5"}),
    )
    async def predict(name: str, request: Request) -> JSONResponse:
        crew, model = _find(service, name, request, "predict")
        async with receiving_images(request, service) as given:
            top = read_number(given.words, "top", default=5, least=1, most=_MOST_TOP)
            logits = await service.look(crew, model, "predict", given.images)

            def render() -> JSONResponse:
                answers = model.read_logits(logits, top=top)
                return JSONResponse({"model": name, "predictions": [_without_path(one.record()) for one in answers]})

            return await _write(service, render, num_values=len(given.images) * top)

    @router.post("/models/{name}/embed", summary="Embed images", openapi_extra=_takes({}))
    async def embed(name: str, request: Request) -> JSONResponse:
        crew, model = _find(service, name, request, EMBED)
        async with receiving_images(request, service) as given:
            vectors = await service.look(crew, model, EMBED, given.images)
            return await _write(
                service,
                lambda: JSONResponse({"model": name, "embeddings": [vector.tolist() for vector in vectors]}),
                num_values=sum(map(len, vectors)),
            )

    @router.post(
        "/models/{name}/segment",
        summary="Say what every pixel is; with picture=overlay or mask, as PNG",
        openapi_extra=_takes({"picture": "overlay or mask: the answer is a PNG instead of JSON, of one image"}),
    )
    async def segment(name: str, request: Request) -> Response:
        return await _answer(service, name, request, "segment")

    @router.post(
        "/models/{name}/detect",
        summary="Find objects with boxes and masks; with picture=overlay, as PNG",
        openapi_extra=_takes({"picture": "overlay: the answer is a PNG instead of JSON, of one image"}),
    )
    async def detect(name: str, request: Request) -> Response:
        return await _answer(service, name, request, "detect")

    @router.post(
        "/models/{name}/explain",
        summary="Draw where a model looks in an image, as PNG",
        openapi_extra=_takes(
            {
                "kind": "attention, rollout, gradient or likeness",
                "layer": "of attention; the one that tells most unless given",
                "head": "of attention; the mean of all unless given",
                "class": "of a gradient, by name or number; the most probable unless given",
                "picture": "overlay (over the image) or map (alone)",
                "format": "png or json",
            }
        ),
    )
    async def explain(name: str, request: Request) -> Response:
        crew, model = _find(service, name, request, EXPLAIN)
        async with receiving_images(request, service) as given:
            words, image = given.words, _only(given)
            drawn = await service.explain(
                crew,
                model,
                image,
                kind=read_word(words, "kind"),
                layer=read_optional_number(words, "layer"),
                head=read_optional_number(words, "head"),
                class_index=_find_class(model, read_word({"class": _as_text(words.get("class"))}, "class")),
                is_alone=_choose(words, "picture", ("overlay", "map")) == "map",
            )
            is_json = _choose(words, "format", ("png", "json")) == "json"
        if not is_json:
            return Response(drawn.picture, media_type="image/png")
        told = {"kind": drawn.kind, "layer": drawn.layer, "head": drawn.head, "class": drawn.class_name}
        return JSONResponse({"model": name, **told, "png": _text(drawn.picture)})

    @router.post(
        "/models/{name}/search",
        summary="Find the images of a gallery that are most like an image",
        openapi_extra=_takes({"gallery": "its name, where the model has several", **_SEARCHING}),
    )
    async def search(name: str, request: Request) -> JSONResponse:
        crew, model = _find(service, name, request, EMBED)
        return await _search(service, crew, request, lambda words: crew.gallery_of(model, read_word(words, "gallery")))


def _add_galleries(router: APIRouter, service: Service) -> None:
    @router.get("/galleries", summary="List all galleries")
    async def list_galleries() -> JSONResponse:
        crew = service.crew
        described = await asyncio.gather(*(crew.ask(one, one.describe) for one in crew.fleet.galleries.values()))
        return JSONResponse({"galleries": [_summarise(one) for one in described]})

    @router.get("/galleries/{name}", summary="Tell the classes of a gallery and how many images each has")
    async def describe_gallery(name: str, request: Request) -> JSONResponse:
        crew = service.crew
        gallery = crew.gallery(name)
        request.state.served = name
        return await crew.ask(gallery, lambda: JSONResponse(gallery.describe()))

    @router.post(
        "/galleries/{name}/search",
        summary="Say what an image shows by a gallery, and which images are most like it",
        openapi_extra=_takes(_SEARCHING),
    )
    async def search_gallery(name: str, request: Request) -> JSONResponse:
        crew = service.crew
        gallery = crew.gallery(name)
        request.state.served = name
        return await _search(service, crew, request, lambda words: gallery)

    @router.post(
        "/galleries/{name}/images",
        summary="Add images to a class, new or known (a key that may write)",
        openapi_extra=_takes({"label": "the class", "coarse": "its coarse class"}),
        status_code=201,
    )
    async def add(name: str, request: Request) -> JSONResponse:
        crew = service.crew
        gallery = crew.gallery(name)
        request.state.served = name
        async with receiving_images(request, service) as given:
            label, coarse = read_word(given.words, "label"), read_word(given.words, "coarse")
            if label is None or not label.strip():
                raise RefusedError(400, "say which class the images are of: label=NAME")
            images, vectors = await service.prepare(crew, gallery, given.images)
        del given  # it is large, and the gallery may keep all who change it waiting
        added = await crew.change(gallery, lambda: gallery.add(label, images, vectors, coarse=coarse))
        return JSONResponse({"gallery": name, **added}, status_code=201)

    @router.delete(
        "/galleries/{name}/images",
        summary="Remove a class with all its images, label=NAME, or one image, id=ID (a key that may write)",
        openapi_extra={
            "parameters": [{"name": key, "in": "query", "schema": {"type": "string"}} for key in ("label", "id")]
        },
    )
    async def remove(name: str, request: Request) -> JSONResponse:
        crew = service.crew
        gallery = crew.gallery(name)
        request.state.served = name
        words: dict[str, Any] = dict(request.query_params)
        async with receiving(request, service) as body:
            words |= await service.workers.run(read_json_body, body) if body else {}
        label, identity = read_word(words, "label"), read_word(words, "id")
        if (label is None) == (identity is None):
            raise RefusedError(400, "say what is to be removed: label=NAME, or id=ID of one image")
        if label is not None:
            removed = await crew.change(gallery, lambda: gallery.remove(label))
        else:
            removed = await crew.change(gallery, lambda: gallery.remove_image(str(identity)))
        return JSONResponse({"gallery": name, **removed})


def _find(service: Service, name: str, request: Request, ability: str) -> tuple[Crew, ServedModel]:
    crew = service.crew
    model = crew.model(name, ability)
    request.state.served = name
    return crew, model


async def _answer(service: Service, name: str, request: Request, ability: str) -> Response:
    """What a model says about places in images."""
    crew, model = _find(service, name, request, ability)
    async with receiving_images(request, service) as given:
        asked = read_word(given.words, "picture")
        if asked is not None:
            _only(given)
        answers = await service.answer(crew, model, ability, given.images)
        if asked is None:
            return await service.renderers.run(
                lambda: JSONResponse({"model": name, "predictions": [_with_pictures(one) for one in answers]})
            )
    if asked not in answers[0].pictures:
        raise RefusedError(400, f"picture is one of {', '.join(answers[0].pictures)}, not {asked!r}")
    return Response(answers[0].pictures[asked], media_type="image/png")


async def _search(
    service: Service, crew: Crew, request: Request, choose: Callable[[Mapping[str, Any]], ServedGallery]
) -> JSONResponse:
    """What the gallery that the words of a request choose says about its images."""
    async with receiving_images(request, service) as given:
        gallery = choose(given.words)
        top = read_number(given.words, "top", default=10, least=1, most=_MOST_TOP)
        rank, coarse = read_word(given.words, "rank"), read_word(given.words, "coarse")
        _check_hits(len(given.images) * top, service.limits)
        vectors = await service.look(crew, gallery.viewer, EMBED, given.images)
    del given  # it is large, and the gallery may keep all who ask waiting

    def search() -> JSONResponse:
        found = gallery.search(vectors, top=top, rank=rank, coarse=coarse)
        return JSONResponse({"gallery": gallery.name, "results": found})

    return await crew.ask(gallery, search)


async def _write(service: Service, render: Callable[[], JSONResponse], *, num_values: int) -> JSONResponse:
    """An answer of so many values, written by a thread unless that would take longer than to write it here."""
    return render() if num_values <= _FEW else await service.renderers.run(render)


def _check_hits(count: int, limits: ServingLimits) -> None:
    if count > limits.max_hits:
        raise RefusedError(
            413, f"an answer has at most {limits.max_hits:,} hits, not {count:,}: send fewer images, or a smaller top"
        )


def _with_pictures(one: DrawnAnswer) -> dict[str, Any]:
    pictures = {name: _text(picture) for name, picture in one.pictures.items()}
    return {**_without_path(one.answer.record()), "png": pictures}


def _without_path(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key != "path"}


def _brief(model: ServedModel) -> dict[str, Any]:
    described = model.describe()
    return {**described, "classes": len(described["classes"])}


def _summarise(described: dict[str, Any]) -> dict[str, Any]:
    return {**described, "classes": len(described["classes"])}


def _only(given: GivenBody) -> bytes:
    if len(given.images) != 1:
        raise RefusedError(400, f"this takes one image, not {len(given.images)}")
    return given.images[0]


def _find_class(model: ServedModel, asked: str | None) -> int | None:
    """The number of a class that is given by name or number."""
    if asked is None:
        return None
    names = model.trained.class_names
    if asked in names:
        return names.index(asked)
    if asked.isdecimal() and int(asked) < len(names):
        return int(asked)
    raise RefusedError(400, f"the model {model.name!r} knows no class {asked[:80]!r}")


def _as_text(value: Any) -> Any:
    return str(value) if type(value) is int else value


def _choose(words: Any, key: str, choices: Sequence[str]) -> str:
    value = read_word(words, key) or choices[0]
    if value not in choices:
        raise RefusedError(400, f"{key} is one of {', '.join(choices)}, not {value[:40]!r}")
    return value


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _takes(words: dict[str, str]) -> dict[str, Any]:
    """What OpenAPI says of a body with images and of these words beside them."""
    others = {key: {"type": "string", "description": told} for key, told in words.items()}
    form = {"type": "object", "properties": {"image": _FILES, **others}, "required": ["image"]}
    texts = {"type": "object", "properties": {"images": _TEXTS, **others}, "required": ["images"]}
    binary = {"schema": {"type": "string", "format": "binary"}}
    content = {"multipart/form-data": {"schema": form}, "application/json": {"schema": texts}, "image/*": binary}
    return {"requestBody": {"required": True, "content": content}}
