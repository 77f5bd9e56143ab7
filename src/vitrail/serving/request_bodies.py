"""What a request carries: images as files of a form, in JSON or as they are, and a few words beside them."""

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vitrail.serving.limits import ServingLimits
from vitrail.serving.refusals import RefusedError
from vitrail.storage.reading import parse_json

_MAX_FIELDS = 32  # of a form, beside its files
_MAX_WORD = 1000  # characters of a field
_MAX_VALUES = 10_000  # of a JSON body, beside long texts; small ones unfold to many times their bytes
_WHOLE = re.compile(r"-?[0-9]{1,9}")
_HOW = 'send files of a form (-F image=@cat.jpg), {"images": ["BASE64"]} as application/json, or an image as it is'


@dataclass(frozen=True)
class GivenBody:
    """The images of a request, and what else it says."""

    images: tuple[bytes, ...]
    words: Mapping[str, Any] = field(default_factory=dict)  # from the address and the body


def read_given(body: bytes, *, content_type: str, query: Mapping[str, str], limits: ServingLimits) -> GivenBody:
    """The content of a body, whole or refused; it may take a while and belongs into a worker thread."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        images, words = _read_form(body, content_type, limits)
    elif kind == "application/json":
        images, words = _read_json(body, limits)
    elif kind.startswith("image/") or kind == "application/octet-stream":
        images, words = [body], {}
    else:
        raise RefusedError(415, f"content of the type {kind[:80]!r} can't be read: {_HOW}")
    if not images:
        raise RefusedError(400, f"no image given: {_HOW}")
    return GivenBody(tuple(images), {**query, **words})


def read_json_body(body: bytes, *, most: int = _MAX_VALUES, remedy: str = "send fewer") -> dict[str, Any]:
    """A body that is a JSON object of at most so many values; it may take a while and belongs into a worker thread."""
    if sum(body.count(mark) for mark in b",[{") > most:  # each stands before a value
        raise RefusedError(413, f"the JSON holds more than {most:,} values or lists: {remedy}")
    try:
        content = parse_json(body)
    except (ValueError, UnicodeError) as error:
        raise RefusedError(400, f"the body can't be read: {error}") from None
    if not isinstance(content, dict):
        raise RefusedError(400, "the body must be a JSON object with keys and values")
    return content


def decode_base64(text: object, *, what: str) -> bytes:
    """The bytes of a text; an address such as data:image/png;base64,... is one too."""
    if not isinstance(text, str):
        raise RefusedError(400, f"{what} is no text in base64")
    if text.startswith("data:"):
        text = text.partition(",")[2]
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise RefusedError(400, f"{what} is not in base64") from None


def check_count(count: int, limits: ServingLimits) -> None:
    """Refuse more images than a request may have."""
    if count > limits.max_images:
        raise RefusedError(413, f"more than {limits.max_images} images in a request")


def read_number(words: Mapping[str, Any], key: str, *, default: int, least: int, most: int) -> int:
    """A whole number among the words of a request."""
    value = words.get(key, default)
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        value = int(value)
    if type(value) is not int or not least <= value <= most:
        raise RefusedError(400, f"{key} is a whole number from {least} to {most}, not {str(value)[:40]!r}")
    return value


def read_optional_number(words: Mapping[str, Any], key: str) -> int | None:
    """A whole number that may be left out."""
    return None if words.get(key) in (None, "") else read_number(words, key, default=0, least=-(10**6), most=10**6)


def read_word(words: Mapping[str, Any], key: str) -> str | None:
    """A text among the words of a request; None where it is left out or empty."""
    value = words.get(key)
    if value is None or value == "":
        return None
    if not isinstance(value, str) or len(value) > _MAX_WORD or not value.isprintable():
        raise RefusedError(400, f"{key} is a printable text of at most {_MAX_WORD} characters")
    return value


def _read_json(body: bytes, limits: ServingLimits) -> tuple[list[bytes], dict[str, Any]]:
    content = read_json_body(body)
    given = content.pop("images", None)
    if given is None:
        given = [content.pop("image")] if "image" in content else []
    if not isinstance(given, list):
        raise RefusedError(400, '"images" must be a list of texts in base64')
    check_count(len(given), limits)
    return [decode_base64(text, what=f"image {place}") for place, text in enumerate(given)], content


def _read_form(body: bytes, content_type: str, limits: ServingLimits) -> tuple[list[bytes], dict[str, Any]]:
    from python_multipart import create_form_parser
    from python_multipart.exceptions import FormParserError

    images: list[bytes] = []
    words: dict[str, Any] = {}

    def take_field(given: Any) -> None:
        if len(words) >= _MAX_FIELDS:
            raise RefusedError(400, f"more than {_MAX_FIELDS} fields in the form")
        name, value = given.field_name or b"", given.value or b""
        words[name[:_MAX_WORD].decode("utf-8", "replace")] = value[: _MAX_WORD + 1].decode("utf-8", "replace")

    def take_file(given: Any) -> None:
        check_count(len(images) + 1, limits)
        given.file_object.seek(0)
        images.append(given.file_object.read())
        given.close()

    parse: Callable[..., Any] = create_form_parser
    try:
        parser = parse(
            {"Content-Type": content_type.encode("latin-1")},
            take_field,
            take_file,
            config={"MAX_MEMORY_FILE_SIZE": len(body) + 1, "MAX_BODY_SIZE": len(body) + 1},
        )
        parser.write(body)
        parser.finalize()
    except (FormParserError, UnicodeError, ValueError) as error:
        raise RefusedError(400, f"the form can't be read: {error}") from None
    return images, words
