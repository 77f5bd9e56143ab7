"""Recipes of earlier formats, brought to the keys of today."""

from collections.abc import Mapping
from typing import Any

from vitrail.settings.recipe import FORMAT

# Keys of format 1 that have another name, whatever the task.
_RENAMED = {
    "data.clusters": "clusters.number",
    "data.clusters_of": "clusters.of",
    "augmentation.views": "embedding.views",
}
_DEFAULTS = {"augmentation.views": 1}
# Sections of format 1, where every recipe had all of them, and the tasks that have them now.
_TASKS_WITH = {
    "blend": ("classify", "distill", "clusterfit"),
    "teacher": ("distill",),
    "embedding": ("embed",),
    "clusters": ("clusterfit",),
}


def migrate(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a recipe's file in today's keys; one of today's is given back as it is."""
    if "format" in content or "task" in content:
        return dict(content)
    moved = _rename({key: dict(value) if isinstance(value, Mapping) else value for key, value in content.items()})
    task = _task_of(moved)
    stages = moved.get("stages")
    if isinstance(stages, (list, tuple)):
        moved["stages"] = [_migrate_stage(stage) if isinstance(stage, Mapping) else stage for stage in stages]
    for section, tasks in _TASKS_WITH.items():
        if task not in tasks and isinstance(moved.get(section), Mapping):
            del moved[section]
    return {"format": FORMAT, "task": task, **moved}


def _rename(content: dict[str, Any]) -> dict[str, Any]:
    for old, new in _RENAMED.items():
        (old_section, old_name), (section, name) = old.split("."), new.split(".")
        place = content.get(old_section)
        if not isinstance(place, dict) or old_name not in place:
            continue
        value = place.pop(old_name)
        if value is not None and value != _DEFAULTS.get(old):
            content.setdefault(section, {})[name] = value
    return content


def _task_of(content: Mapping[str, Any]) -> str:
    def has(section: str, name: str) -> bool:
        place = content.get(section)
        return isinstance(place, Mapping) and place.get(name) is not None

    if has("embedding", "projector"):
        return "embed"
    if has("teacher", "model"):
        return "distill"
    return "clusterfit" if has("clusters", "number") or has("clusters", "of") else "classify"


def _migrate_stage(stage: Mapping[str, Any]) -> dict[str, Any]:
    """The changes of a stage, which are dotted keys."""
    changes = {_RENAMED.get(key, key): value for key, value in stage.items()}
    for key in ("teacher", "teacher.model"):
        if key in changes and changes[key] is None:  # the stage went without a teacher
            del changes[key]
            changes["task"] = "classify"
    return changes
