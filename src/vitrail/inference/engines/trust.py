"""Whose files may run code: those that this user has exported, and those of which the user says so (--trust)."""

import logging
import os
from pathlib import Path

from vitrail.inference.export_record import ExportRecord
from vitrail.settings.own import are_files_trusted
from vitrail.storage import locked, read_json_object, write_json

_LOGGER = logging.getLogger(__name__)
_RECORD = "exports.json"  # below the user's own cache: {SHA-256 of an artefact: the folder that it was written to}


def own_record() -> Path:
    """The file that lists what this user has exported: below `$VITRAIL_CACHE`, else below `~/.cache/vitrail`."""
    given = os.environ.get("VITRAIL_CACHE")
    return (Path(given).expanduser() if given else Path.home() / ".cache" / "vitrail") / _RECORD


def note_own(folder: Path, record: ExportRecord) -> None:
    """Remember that this user has written these files."""
    path = own_record()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.with_suffix(".lock")):  # two exports may end at the same time
            write_json(path, _read(path) | dict.fromkeys(record.files.values(), str(folder)))
    except OSError as error:
        _LOGGER.warning("%s can't be written (%s): opening %s will need --trust", path, error.strerror, folder)


def require_trust(folder: Path, record: ExportRecord) -> None:
    """Refuse files that could run code and that neither this user has written nor --trust covers."""
    known = _read(own_record())
    if are_files_trusted() or all(digest in known for digest in record.files.values()):
        return
    raise ValueError(
        f"{folder} is an export to {record.engine}, whose files can run code, and not this user's own: nothing "
        "of it was opened; if you trust whoever made it, add --trust, or export the model again"
    )


def _read(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    try:
        content = read_json_object(path, remedy="the next export begins it anew")
    except ValueError as error:
        _LOGGER.warning("%s", error)
        return {}
    return {str(key): str(value) for key, value in content.items()}
