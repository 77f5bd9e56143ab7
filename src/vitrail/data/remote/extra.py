"""Packages that only data far away needs."""

import importlib
from typing import Any


def import_extra(name: str, extra: str, *, package: str | None = None) -> Any:
    """The module of that name; where it is not installed, one line that says what to install."""
    try:
        return importlib.import_module(name)
    except ImportError:
        wanted = f"'vitrail[{extra}]'" if package is None else package
        raise ValueError(f"data at addresses needs a package that is not installed: pip install {wanted}") from None
