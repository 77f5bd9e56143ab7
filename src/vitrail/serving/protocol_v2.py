"""Tensors of the Open Inference Protocol, version 2: in JSON, or behind it as bytes (the binary tensor extension)."""

import json
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitrail.serving.refusals import RefusedError
from vitrail.serving.request_bodies import decode_base64, read_json_body

_MAX_VALUES = 2_000_000  # of a request in JSON, with the lists around them; each takes some 10 to 100 bytes
_MANY = "send fewer, or binary tensors"
_LENGTH = re.compile(r"[0-9]{1,12}")
HEADER_LENGTH = "Inference-Header-Content-Length"
BYTES, UINT8 = "BYTES", "UINT8"


@dataclass(frozen=True)
class GivenTensor:
    """A tensor of a request: numbers, or texts of bytes."""

    name: str
    shape: tuple[int, ...]
    numbers: np.ndarray | None = None
    texts: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class TensorsAsked:
    """A request of the protocol."""

    tensors: dict[str, GivenTensor]
    wanted: tuple[str, ...]  # names of outputs; none: the first that the model has
    binary: Mapping[str, bool]  # of each output, whether it is asked for as bytes
    is_binary: bool  # of outputs that are not named
    identity: str | None


def read_tensors_asked(body: bytes, *, header_length: str | None, max_images: int) -> TensorsAsked:
    """The content of a request, whole or refused."""
    length = len(body)
    if header_length is not None:
        if not _LENGTH.fullmatch(header_length) or not 0 < int(header_length) <= len(body):
            raise RefusedError(400, f"{HEADER_LENGTH} is no length within the body")
        length = int(header_length)
    content, rest = read_json_body(body[:length], most=_MAX_VALUES, remedy=_MANY), body[length:]
    inputs = _objects(content, "inputs")
    if not inputs:
        raise RefusedError(400, "the request has no inputs")
    if len(inputs) > 8:
        raise RefusedError(400, "the request has more than 8 inputs")
    tensors: dict[str, GivenTensor] = {}
    for entry in inputs:
        tensor, used = _read_tensor(entry, rest, max_images=max_images)
        rest = rest[used:]
        tensors[tensor.name] = tensor
    if rest:
        raise RefusedError(400, f"{len(rest)} bytes of the body belong to no input")
    outputs = _objects(content, "outputs")
    binary = {str(one.get("name")): _flag(one, "binary_data") for one in outputs}
    identity = content.get("id")
    return TensorsAsked(
        tensors,
        tuple(binary),
        binary,
        _flag(content, "binary_data_output"),
        identity if isinstance(identity, str) and len(identity) <= 200 else None,
    )


def write_tensors_answer(
    outputs: Mapping[str, np.ndarray | Sequence[bytes]], *, model: str, asked: TensorsAsked
) -> tuple[bytes, int | None]:
    """The body of an answer, and the length of its JSON where bytes follow it."""
    described, blobs = [], []
    for name, values in outputs.items():
        is_binary = asked.binary.get(name, asked.is_binary)
        if isinstance(values, np.ndarray):
            entry: dict[str, Any] = {"name": name, "datatype": "FP32", "shape": list(values.shape)}
            blob = np.ascontiguousarray(values, dtype="<f4").tobytes() if is_binary else b""
            listed: list[Any] = [] if is_binary else values.reshape(-1).tolist()
        else:
            entry = {"name": name, "datatype": BYTES, "shape": [len(values)]}
            blob = _pack(values) if is_binary else b""
            listed = [text.decode("utf-8", "replace") for text in values]
        if is_binary:
            entry["parameters"] = {"binary_data_size": len(blob)}
            blobs.append(blob)
        else:
            entry["data"] = listed
        described.append(entry)
    content: dict[str, Any] = {"model_name": model, "model_version": "1", "outputs": described}
    if asked.identity is not None:
        content["id"] = asked.identity
    head = json.dumps(content).encode()
    return (b"".join([head, *blobs]), len(head)) if blobs else (head, None)


def _read_tensor(entry: Mapping[str, Any], rest: bytes, *, max_images: int) -> tuple[GivenTensor, int]:
    """A tensor, and how many bytes behind the JSON it took."""
    name, kind, shape = entry.get("name"), entry.get("datatype"), entry.get("shape")
    if not isinstance(name, str) or len(name) > 100:
        raise RefusedError(400, "an input has no name")
    if kind not in (BYTES, UINT8):
        raise RefusedError(
            400, f"the input {name!r} has the datatype {str(kind)[:40]!r}; {BYTES} and {UINT8} are taken"
        )
    if (
        not isinstance(shape, list)
        or not 1 <= len(shape) <= 4
        or not all(type(one) is int and one > 0 for one in shape)
    ):
        raise RefusedError(400, f"the shape of the input {name!r} is no list of up to four sizes")
    if shape[0] > max_images:
        raise RefusedError(413, f"more than {max_images} images in a request")
    if kind == BYTES and shape[1:] not in ([], [1]):
        raise RefusedError(400, f"the shape of the input {name!r} is [images] or [images, 1], not {shape}")
    count = 1
    for size in shape:
        count *= size
    parameters = entry.get("parameters")
    size = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
    if size is None:
        return _read_listed(name, str(kind), tuple(shape), entry.get("data"), count=count), 0
    if type(size) is not int or not 0 <= size <= len(rest):
        raise RefusedError(400, f"binary_data_size of the input {name!r} is more than the body holds")
    blob = rest[:size]
    if kind == BYTES:
        texts = _unpack(blob, name)
        if len(texts) != count:
            raise RefusedError(400, f"the input {name!r} has {len(texts)} texts and the shape {shape}")
        return GivenTensor(name, tuple(shape), texts=texts), size
    if size != count:
        raise RefusedError(400, f"the input {name!r} has {size} bytes and the shape {shape}")
    return GivenTensor(name, tuple(shape), numbers=np.frombuffer(blob, dtype=np.uint8).reshape(shape)), size


def _read_listed(name: str, kind: str, shape: tuple[int, ...], data: object, *, count: int) -> GivenTensor:
    flat = _flatten(data)
    if len(flat) != count:
        raise RefusedError(400, f"the input {name!r} has {len(flat)} values and the shape {list(shape)}")
    if kind == BYTES:
        return GivenTensor(name, shape, texts=tuple(decode_base64(one, what=f"a text of {name!r}") for one in flat))
    if not set(map(type, flat)) <= {int, float}:
        raise RefusedError(400, f"the input {name!r} holds what is no number")
    wrong = RefusedError(400, f"the input {name!r} holds values that are no bytes")
    try:
        numbers = np.asarray(flat, dtype=np.float64)
    except OverflowError:  # of a whole number beyond all floats
        raise wrong from None
    if not bool(((numbers >= 0) & (numbers <= 255) & (numbers == np.floor(numbers))).all()):
        raise wrong
    return GivenTensor(name, shape, numbers=numbers.astype(np.uint8).reshape(shape))


def _flatten(data: object) -> list[Any]:
    found, waiting = [], [data]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting.extend(reversed(one))
        else:
            found.append(one)
    return found


def _unpack(blob: bytes, name: str) -> tuple[bytes, ...]:
    """Texts, each behind its length."""
    texts, place = [], 0
    while place < len(blob):
        if place + 4 > len(blob):
            raise RefusedError(400, f"the texts of the input {name!r} are cut off")
        (length,) = struct.unpack_from("<I", blob, place)
        place += 4
        if place + length > len(blob):
            raise RefusedError(400, f"the texts of the input {name!r} are cut off")
        texts.append(blob[place : place + length])
        place += length
    return tuple(texts)


def _pack(texts: Sequence[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def _objects(content: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    found = content.get(key, [])
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise RefusedError(400, f"{key} must be a list of objects")
    return found


def _flag(content: Mapping[str, Any], key: str) -> bool:
    parameters = content.get("parameters")
    return isinstance(parameters, dict) and parameters.get(key) is True
