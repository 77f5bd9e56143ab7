"""What lies beside a model and says what it was trained for: task.json."""

import logging
from pathlib import Path
from typing import Any

from vitrail.storage import read_json_object
from vitrail.weights.hub import HubAddress, fetch

_LOGGER = logging.getLogger(__name__)
TASK_FILE = "task.json"
CLASSES_FILE = "classes.json"  # what models had in its place before
SYNONYMS = "synonyms"  # a key of it in an export: indices of classes by other names


def read_description(folder: Path) -> dict[str, Any] | None:
    """The content of the task.json in a folder, or of the classes.json of before; None if there is neither."""
    path = next((folder / name for name in (TASK_FILE, CLASSES_FILE) if (folder / name).is_file()), None)
    return None if path is None else read_description_file(path)


def read_description_file(path: Path) -> dict[str, Any]:
    """The content of a task.json."""
    return read_json_object(path, remedy="restore it, or delete it to do without the names of the classes")


def fetch_description(address: str) -> dict[str, Any] | None:
    """The task.json of a model on the hub; None where it has none, or none can be had without a network."""
    for name in (TASK_FILE, CLASSES_FILE):
        try:
            return read_description_file(fetch(HubAddress.parse(address), files=(name,)))
        except ValueError as error:
            _LOGGER.info("the classes have no names: %s", error)
    return None
