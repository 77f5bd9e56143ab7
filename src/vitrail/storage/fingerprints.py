"""Fingerprints: texts that tell one file or one choice of settings from another."""

import hashlib
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any


def hash_text(text: str, *, size: int = 16) -> str:
    """A fingerprint of a text, of `size` bytes."""
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=size).hexdigest()


def hash_file(path: Path) -> str:
    """A fingerprint of a file's content."""
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def describe_settings(value: Any) -> str:
    """Settings as a text that stays the same when their class gets another field, or its fields another order.

    Of a dataclass it names the fields that differ from their defaults, also inside of others and of lists.
    """
    if is_dataclass(value) and not isinstance(value, type):
        chosen = sorted(field.name for field in fields(value) if not _is_default(field, getattr(value, field.name)))
        inner = ", ".join(f"{name}={describe_settings(getattr(value, name))}" for name in chosen)
        return f"{type(value).__name__}({inner})"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(describe_settings, value))}]"
    if isinstance(value, dict):
        pairs = sorted((repr(key), describe_settings(entry)) for key, entry in value.items())
        return "{" + ", ".join(f"{key}: {entry}" for key, entry in pairs) + "}"
    return repr(value)


def _is_default(field: "Field[Any]", value: Any) -> bool:
    if field.default_factory is not MISSING:
        return bool(value == field.default_factory())
    return field.default is not MISSING and bool(value == field.default)
