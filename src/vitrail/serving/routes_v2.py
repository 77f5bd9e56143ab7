"""The routes of the Open Inference Protocol, /v2, by which clients of Triton and KServe ask."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

import vitrail
from vitrail.serving.bodies import receiving
from vitrail.serving.protocol_v2 import (
    BYTES,
    HEADER_LENGTH,
    UINT8,
    TensorsAsked,
    read_tensors_asked,
    write_tensors_answer,
)
from vitrail.serving.refusals import RefusedError
from vitrail.serving.served_model import EMBED, ServedModel, as_probabilities
from vitrail.serving.service import Crew, Pixels, Service

_VERSION = "1"
_IMAGE, _PIXELS = "image", "pixels"
_ANSWER, _PROBABILITIES, _LABEL, _EMBEDDING = "answer", "probabilities", "label", "embedding"
_TENSOR = {
    "type": "object",
    "properties": {
        "name": {"enum": [_IMAGE, _PIXELS]},
        "datatype": {"enum": [BYTES, UINT8]},
        "shape": {"type": "array", "items": {"type": "integer"}},
        "parameters": {"type": "object", "description": "binary_data_size, where the data follows behind the JSON"},
        "data": {"type": "array", "items": {}, "description": "numbers, or files of images in base64"},
    },
    "required": ["name", "datatype", "shape"],
}
_OUTPUT = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
_ASKED = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "inputs": {"type": "array", "items": _TENSOR},
        "outputs": {"type": "array", "items": _OUTPUT, "description": "the first that the model has unless given"},
    },
    "required": ["inputs"],
}
_BINARY = {"type": "string", "format": "binary", "description": f"JSON of {HEADER_LENGTH} bytes, then the tensors"}
_BODY = {"application/json": {"schema": _ASKED}, "application/octet-stream": {"schema": _BINARY}}


def make_v2(service: Service) -> APIRouter:
    """The routes of a service."""
    router = APIRouter(prefix="/v2")

    @router.get("", summary="Tell the server's name, version and extensions")
    async def describe_server() -> JSONResponse:
        return JSONResponse({"name": "vitrail", "version": vitrail.__version__, "extensions": ["binary_tensor_data"]})

    @router.get("/health/live", summary="Say that the process lives")
    async def live() -> JSONResponse:
        return JSONResponse({"live": True})

    def tell_readiness(**others: str) -> JSONResponse:
        return JSONResponse(
            {**others, "ready": not service.is_draining}, status_code=503 if service.is_draining else 200
        )

    @router.get("/health/ready", summary="Say whether requests are answered")
    async def ready() -> JSONResponse:
        return tell_readiness()

    async def describe_model(name: str, request: Request) -> JSONResponse:
        model = service.crew.model(name)
        request.state.served = name
        return JSONResponse(
            {
                "name": name,
                "versions": [_VERSION],
                "platform": "vitrail_torch",
                "inputs": [
                    {"name": _IMAGE, "datatype": BYTES, "shape": [-1]},
                    {"name": _PIXELS, "datatype": UINT8, "shape": [-1, -1, -1, 3]},
                ],
                "outputs": _describe_outputs(model),
            }
        )

    async def model_ready(name: str, request: Request) -> JSONResponse:
        service.crew.model(name)
        request.state.served = name
        return tell_readiness(name=name)

    async def infer(name: str, request: Request) -> Response:
        crew = service.crew
        model = crew.model(name)
        request.state.served = name
        async with receiving(request, service) as body:
            length = request.headers.get(HEADER_LENGTH)

            def read() -> TensorsAsked:
                return read_tensors_asked(body, header_length=length, max_images=service.limits.max_images)

            asked = await service.workers.run(read)
            images = _find_images(asked)
            request.state.num_images = len(images)
            outputs = await _compute(service, crew, model, images, asked.wanted)
            answer, json_length = await service.workers.run(
                lambda: write_tensors_answer(outputs, model=name, asked=asked)
            )
        if json_length is None:
            return Response(answer, media_type="application/json")
        headers = {HEADER_LENGTH: str(json_length)}
        return Response(answer, media_type="application/octet-stream", headers=headers)

    for place in ("/models/{name}", f"/models/{{name}}/versions/{_VERSION}"):
        is_hidden = "versions" in place
        router.get(place, summary="Tell a model's inputs and outputs", include_in_schema=not is_hidden)(describe_model)
        router.get(f"{place}/ready", summary="Say whether a model answers", include_in_schema=not is_hidden)(
            model_ready
        )
        router.post(
            f"{place}/infer",
            summary="Ask a model: image (BYTES, files as they are) or pixels (UINT8 [images, height, width, 3])",
            openapi_extra={"requestBody": {"required": True, "content": _BODY}},
            include_in_schema=not is_hidden,
        )(infer)
    return router


def _describe_outputs(model: ServedModel) -> list[dict[str, Any]]:
    described: list[dict[str, Any]] = []
    if model.task.answering in model.abilities:
        if model.answers_by_logits:
            described.append({"name": _PROBABILITIES, "datatype": "FP32", "shape": [-1, model.trained.num_classes]})
            described.append({"name": _LABEL, "datatype": BYTES, "shape": [-1]})
        else:
            described.append({"name": _ANSWER, "datatype": BYTES, "shape": [-1]})
    if EMBED in model.abilities:
        described.append({"name": _EMBEDDING, "datatype": "FP32", "shape": [-1, -1]})
    return described


def _find_images(asked: TensorsAsked) -> list[Pixels]:
    given = [name for name in asked.tensors if name in (_IMAGE, _PIXELS)]
    if len(given) != 1 or len(asked.tensors) != 1:
        raise RefusedError(
            400, f"give one input, {_IMAGE} (BYTES) or {_PIXELS} ({UINT8}), not: {', '.join(asked.tensors)}"
        )
    tensor = asked.tensors[given[0]]
    if given == [_IMAGE]:
        if tensor.numbers is not None:
            raise RefusedError(400, f"the input {_IMAGE} is of {BYTES}: files of images as they are")
        return list(tensor.texts)
    numbers = tensor.numbers
    if numbers is None or numbers.ndim != 4 or numbers.shape[3] != 3:
        raise RefusedError(400, f"the input {_PIXELS} is {UINT8} [images, height, width, 3]")
    return [np.ascontiguousarray(one) for one in numbers]


async def _compute(
    service: Service, crew: Crew, model: ServedModel, images: Sequence[Pixels], wanted: Sequence[str]
) -> dict[str, np.ndarray | Sequence[bytes]]:
    known = [one["name"] for one in _describe_outputs(model)]
    names = list(wanted) or known[:1]
    for name in names:
        if name not in known:
            raise RefusedError(400, f"the model {model.name!r} has no output {name[:64]!r}; it has: {', '.join(known)}")
    outputs: dict[str, np.ndarray | Sequence[bytes]] = {}
    if {_PROBABILITIES, _LABEL} & set(names):
        logits = await service.look(crew, model, str(model.task.answering), images)
        outputs[_PROBABILITIES] = as_probabilities(model.trained, logits)
        names_of_classes = model.trained.class_names
        best = torch.stack(logits).argmax(dim=1).tolist()
        outputs[_LABEL] = [names_of_classes[at].encode() for at in best]
    if _ANSWER in names:
        encoded = [one for one in images if isinstance(one, bytes)]
        if len(encoded) != len(images):
            raise RefusedError(400, f"the model {model.name!r} takes the input {_IMAGE}")
        answers = await service.answer(crew, model, str(model.task.answering), encoded)
        records = [{key: value for key, value in one.answer.record().items() if key != "path"} for one in answers]
        outputs[_ANSWER] = [json.dumps(record).encode() for record in records]
    if _EMBEDDING in names:
        outputs[_EMBEDDING] = torch.stack(await service.look(crew, model, EMBED, images)).numpy()
    return {name: outputs[name] for name in names}
