"""Checked readers of JSON that a user or a run has left: a mistake is one line that names the file and what to do."""

import json
from pathlib import Path
from typing import Any


def read_json(path: Path, *, remedy: str, label: str | None = None) -> Any:
    """The content of a JSON file.

    `remedy` says what to do where it is wrong, `label` what to call it where its path says little.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        reason = error.strerror or str(error)
    except UnicodeDecodeError:
        reason = "it is not in UTF-8"
    except RecursionError:
        reason = "its lists are nested too deeply"
    except ValueError as error:
        reason = f"it is not JSON: {error}"
    raise ValueError(f"{label or path} can't be read ({reason}): {remedy}")


def read_json_object(path: Path, *, remedy: str, label: str | None = None) -> dict[str, Any]:
    """The content of a JSON file that must be an object, `{"key": value, ...}`."""
    content = read_json(path, remedy=remedy, label=label)
    if not isinstance(content, dict):
        kind = "null" if content is None else f"a {type(content).__name__}"
        raise ValueError(f"{label or path} must hold an object with keys and values, not {kind}: {remedy}")
    return content
