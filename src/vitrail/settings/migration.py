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
    given = {key: dict(value) if isinstance(value, Mapping) else value for key, value in content.items()}
    moved = _rename({key: value for key, value in given.items() if value is not None or key not in _TASKS_WITH})
    task = _task_of(moved)
    stages = moved.get("stages")
    if isinstance(stages, (list, tuple)):
        moved["stages"] = [_migrate_stage(stage) if isinstance(stage, Mapping) else stage for stage in stages]
    for section, tasks in _TASKS_WITH.items():
        if task not in tasks and isinstance(moved.get(section), Mapping):
            del moved[section]
    if task == "embed" and _is_usual(moved["embedding"]):
        del moved["embedding"]["views"]
    return {"format": FORMAT, "task": task, **moved}


def _is_usual(embedding: Mapping[str, Any]) -> bool:
    """Whether two views are what the losses have anyway."""
    compares = embedding.get("instance", 1.0) or embedding.get("triplet", 0.0)
    return embedding.get("views") == 2 and bool(compares)


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
    """What a recipe of format 1 learns: each had the settings of all tasks, and one of them was switched on."""
    has_teacher = _has(content, "teacher", "model")
    tasks = [
        *(["embed"] if _has(content, "embedding", "projector") else []),
        *(["distill"] if has_teacher else []),
        *(["clusterfit"] if _has(content, "clusters", "number") or _has(content, "clusters", "of") else []),
    ]
    if len(tasks) > 1:
        raise ValueError(f"a recipe learns one thing, and this one asks for {' and '.join(tasks)}: leave one out")
    if not tasks and _is_chosen(content.get("teacher")):  # the teacher itself is to be given on the command line
        return "distill"
    return tasks[0] if tasks else "classify"


def _has(content: Mapping[str, Any], section: str, name: str) -> bool:
    place = content.get(section)
    return isinstance(place, Mapping) and place.get(name) is not None


def _is_chosen(teacher: Any) -> bool:
    """Whether a section says something about a teacher that is not the default."""
    from vitrail.tasks.distill.settings import TeacherSettings

    fields = TeacherSettings.model_fields
    return isinstance(teacher, Mapping) and any(
        name in fields and value != fields[name].default for name, value in teacher.items()
    )


# Keys whose value said in format 1 whether a stage had a teacher, clusters or an embedding.
_SWITCHES = {"teacher": "distill", "teacher.model": "distill", "clusters.number": "clusterfit"}
_SWITCHES |= {"clusters.of": "clusterfit", "embedding.projector": "embed"}


def _migrate_stage(stage: Mapping[str, Any]) -> dict[str, Any]:
    """The changes of a stage, which are dotted keys; what is switched off there makes it a classifier's."""
    changes = {_RENAMED.get(key, key): value for key, value in stage.items()}
    for key, task in _SWITCHES.items():
        if key not in changes:
            continue
        if changes[key] is None:
            del changes[key]
            changes.setdefault("task", "classify")
        else:
            changes["task"] = task
    return changes
