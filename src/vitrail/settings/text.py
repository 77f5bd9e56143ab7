"""Recipes as text: read YAML, change keys by their dotted names, and write YAML with a comment beside each key."""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from vitrail.settings.migration import migrate
from vitrail.settings.recipe import Recipe
from vitrail.settings.section import Section

_COMMENT_COLUMN = 34
_SHOWN = 120  # characters of a value in a message
_LAST_GROUPS = ("optimizer", "schedule", "regularisation", "evaluation", "run")
_SCIENTIFIC = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")


class _Loader(yaml.SafeLoader):
    """Reads 5e-4 as a number, as people mean it, though YAML 1.1 takes it for text."""


class _Dumper(yaml.SafeDumper):
    """Puts text that looks like such a number into quotes."""


for _kind in (_Loader, _Dumper):
    _kind.add_implicit_resolver("tag:yaml.org,2002:float", _SCIENTIFIC, list("-+.0123456789"))


def dotted(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of nested keys beside its dotted name."""
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from dotted(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def read_recipe(path: Path) -> Recipe:
    """The recipe in a YAML file, of this format or of one before it."""
    from vitrail.storage import content_of, read_text

    content = parse(read_text(path, label=f"the recipe {path}", remedy="it must be a file of YAML"), label=str(path))
    if not isinstance(content, dict):
        raise ValueError(f"{path} is not a recipe: it must hold keys and values, as `vitrail recipes show` prints them")
    with content_of(path, remedy="`vitrail recipes show NAME` prints what a recipe holds"):
        return make_recipe(migrate(content), label=str(path))


def make_recipe(content: Mapping[str, Any], *, label: str) -> Recipe:
    """A recipe of nested mappings; a mistake is one line that names the key, and the nearest one if it is unknown."""
    kind = _class_of(content.get("task", "classify"), label=label)
    try:
        recipe = kind.model_validate(content)
    except ValidationError as error:
        raise ValueError(f"{label}: {_explain(error, kind)}") from None
    for number in range(len(recipe.stages)):
        stage_of(recipe, number)  # a wrong key in a later stage should not show after days of training
    return recipe


def _class_of(task: Any, *, label: str) -> type[Recipe]:
    from vitrail.tasks import find_recipe_class

    if not isinstance(task, str):
        raise ValueError(f"{label}: task cannot be {task!r}: it is a name")
    return find_recipe_class(task)


def change(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """The recipe with other values at dotted (or short) keys.

    With another `task` it keeps what that one has too. A key that only a task has which knows all of this recipe's
    settings makes it a recipe of that task: teacher=RUN makes distillation of classification.
    """
    label = ", ".join(f"{key}={_shorten(value, show=str)}" for key, value in changes.items())
    changes = {long_key(key): value for key, value in changes.items()}
    kind = _kind_after(recipe, _without_foreign(changes, type(recipe)), label=label)
    changes = _without_foreign(changes, kind)
    content = {key: value for key, value in recipe.model_dump().items() if key in kind.model_fields}
    if type(recipe) is not kind:
        content = _filled_in(kind.model_construct().model_dump(), content)
        content["task"] = kind.model_fields["task"].default
    for key, value in changes.items():
        *sections, last = key.split(".")
        if sections[:1] == ["stages"] and len(sections) > 1:
            _change_stage(content, key, value)
            continue
        if taken := _stages_that_set(recipe, key):
            listed = " or ".join(f"stages.{number}.{key}" for number in range(len(recipe.stages)))
            raise ValueError(f"{key} is set by stages.{taken[0]} of this recipe: change {listed} instead")
        place: Any = content
        for section in sections:
            place = place.get(section) if isinstance(place, dict) else None
        is_free = sections[:2] in (["model", "settings"], ["optimizer", "options"])
        if not isinstance(place, dict) or not (last in place or is_free):
            raise ValueError(_unknown(key, kind))
        if isinstance(place.get(last), dict) and not isinstance(value, Mapping):
            inner = ", ".join(f"{key}.{name}" for name in list(place[last])[:3]) or f"{key}.NAME"
            raise ValueError(f"{key} is a group of settings: set one of them, such as {inner}")
        place[last] = value
    return make_recipe(content, label=label)


def _without_foreign(changes: Mapping[str, Any], kind: type[Recipe]) -> dict[str, Any]:
    """The changes without those that make nothing of what only recipes of other tasks have: that it is already."""
    others = {name for other in recipe_classes() for name in other.model_fields} - set(kind.model_fields)
    return {key: value for key, value in changes.items() if value is not None or key.partition(".")[0] not in others}


def _filled_in(defaults: dict[str, Any], content: Mapping[str, Any]) -> dict[str, Any]:
    """The content, with just those settings in each group that the other task has there."""
    filled = {**defaults, **content}
    for key, value in defaults.items():
        if isinstance(value, dict) and isinstance(content.get(key), Mapping):
            filled[key] = {**value, **{name: old for name, old in content[key].items() if name in value}}
    return filled


def _kind_after(recipe: Recipe, changes: Mapping[str, Any], *, label: str) -> type[Recipe]:
    """The class of the recipe when the changes are made."""
    if "task" in changes:
        return _class_of(changes["task"], label=label)
    kind = type(recipe) if type(recipe) is not Recipe else _class_of(recipe.task, label=label)
    for key in changes:
        section = key.partition(".")[0]
        if section not in kind.model_fields:
            wider = [other for other in recipe_classes() if issubclass(other, kind) and section in other.model_fields]
            kind = wider[0] if len(wider) == 1 else kind
    return kind


def recipe_classes() -> list[type[Recipe]]:
    """The recipes of every task of the table."""
    from vitrail.tasks import TASKS, find_recipe_class

    return [find_recipe_class(name) for name in TASKS]


def short_keys() -> dict[str, str]:
    """What the command line may say in short, whatever the task."""
    return {short: key for kind in recipe_classes() for short, key in kind.short_keys.items()}


def long_key(key: str) -> str:
    """The dotted key that a short one stands for; any other is itself."""
    return short_keys().get(key, key)


def _change_stage(content: dict[str, Any], key: str, value: Any) -> None:
    _, number, *rest = key.split(".")
    stages = content["stages"]
    if not number.isdigit() or int(number) >= len(stages):
        raise ValueError(f"{key}: there is no stage {number}; this recipe has {len(stages)}, counted from 0")
    wanted = ".".join(rest)
    stage = stages[int(number)]
    same = [known for known in stage if long_key(known) == long_key(wanted)]
    stage[same[0] if same else wanted] = value


def _stages_that_set(recipe: Recipe, key: str) -> list[int]:
    return [number for number, stage in enumerate(recipe.stages) if any(long_key(known) == key for known in stage)]


def parse_assignments(words: Sequence[str]) -> dict[str, Any]:
    """`key=value` words of a command line; values are read as YAML, but where the setting is a text."""
    changes = {}
    for word in words:
        key, sign, text = word.partition("=")
        if not sign or not key:
            raise ValueError(f"{word!r} is no setting: write key=value, such as epochs=30")
        is_kept = key in ("epochs", "steps") and text.startswith("+")  # so many more, to a run that is there
        changes[key] = text if is_kept else _parse_text(key, text) if _is_text(key) else parse(text, label=key)
    return changes


def _is_text(key: str) -> bool:
    """Whether a setting is a text, such as a path, which may have any sign in it or look like a number."""
    key = long_key(re.sub(r"^stages\.\d+\.", "", key))
    return key == "out" or any(_type_of(kind, key) in (str, str | None) for kind in recipe_classes())


def _type_of(section: type[Section], key: str) -> Any:
    """The type of a setting by its dotted key; None where there is no such setting."""
    name, _, rest = key.partition(".")
    field = section.model_fields.get(name)
    if field is None or not rest:
        return None if field is None else field.annotation
    inner = field.annotation
    return _type_of(inner, rest) if isinstance(inner, type) and issubclass(inner, Section) else None


def _parse_text(key: str, text: str) -> str | None:
    """The text itself; nothing, or null for what may be left out, is none."""
    return None if text == "" or (text == "null" and key != "out") else text


def parse(text: str, *, label: str) -> Any:
    """Read YAML, without running code."""
    from vitrail.storage import parse_yaml

    return parse_yaml(text, label=label, loader=_Loader)


def stage_of(recipe: Recipe, number: int) -> Recipe:
    """One stage as a recipe of its own."""
    if not recipe.stages:
        return recipe
    if any(key.partition(".")[0] == "stages" for key in recipe.stages[number]):
        raise ValueError(f"stages.{number} has stages of its own: list them one after the other in stages")
    return change(recipe.model_copy(update={"stages": ()}), recipe.stages[number])


def write_yaml(recipe: Recipe, *, everything: bool = True) -> str:
    """The recipe as YAML with a comment beside each key; reading it back gives the same recipe.

    Without `everything`, settings are left out that have no effect beside the others, as long as they are the defaults.
    """
    return "\n".join(_lines(recipe, depth=0, everything=everything)) + "\n"


def _lines(section: Section, *, depth: int, everything: bool) -> Iterator[str]:
    indent = "  " * depth
    fields = type(section).model_fields
    unused = frozenset[str]() if everything else section.unused()
    for name in sorted(fields, key=lambda name: _place_of(section, name)):
        value = getattr(section, name)
        if name in unused and value == fields[name].get_default(call_default_factory=True):
            continue
        if isinstance(value, Section):
            yield ""
            yield f"{indent}{name}:  # {(type(value).__doc__ or '').rstrip('.')}"
            yield from _lines(value, depth=depth + 1, everything=everything)
        else:
            text = yaml.dump(_plain(value), Dumper=_Dumper, default_flow_style=True, width=10**6, sort_keys=False)
            entry = f"{indent}{name}: {text.removesuffix('...' + chr(10)).strip()}"
            yield f"{entry.ljust(_COMMENT_COLUMN)}  # {section.describe_field(name)}"


def _place_of(section: Section, name: str) -> int:
    """Single settings come first, then what is learnt from what, then how."""
    is_group = isinstance(getattr(section, name), Section)
    return 2 + _LAST_GROUPS.index(name) if name in _LAST_GROUPS else int(is_group)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _explain(error: ValidationError, kind: type[Recipe]) -> str:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"] if not _is_type_tag(part))
    if first["type"] == "extra_forbidden":
        return _unknown(key, kind)
    message = first["msg"][:1].lower() + first["msg"][1:]
    owner, _, name = key.rpartition(".")
    if isinstance(_type_of(kind, key) if key else kind, type) and isinstance(first["input"], (Mapping, Section)):
        return f"{key}: {message}" if key else message  # of several settings of a section, which name themselves
    section = _type_of(kind, owner) if owner else kind
    if first["type"] == "string_pattern_mismatch" and isinstance(section, type) and issubclass(section, Section):
        message = section.describe_field(name)
    return f"{key} cannot be {_shorten(first['input'])}: {message}"


def _shorten(value: Any, *, show: Callable[[Any], str] = repr) -> str:
    """A value as a text, as far as a line has room for it."""
    try:
        text = show(value)
    except (ValueError, RecursionError):  # of a number of too many digits, of lists in each other
        return f"this {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _is_type_tag(part: int | str) -> bool:
    """pydantic puts the member of a union that it tried into the place of an error."""
    return isinstance(part, str) and ("[" in part or part in ("int", "float", "constrained-int", "tuple"))


def _unknown(key: str, kind: type[Recipe]) -> str:
    own = kind.model_fields["task"].default
    others = [other for other in recipe_classes() if key.partition(".")[0] in other.model_fields]
    if others and key.partition(".")[0] not in kind.model_fields:
        names = " or ".join(f"task={other.model_fields['task'].default}" for other in others)
        return f"task {own} has no {key!r}: it is a setting of {names}"
    known = [*short_keys(), *_keys(kind, "")]
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    if not near:  # the right name in the wrong section
        near = [name for name in known if name.rpartition(".")[2] == key.rpartition(".")[2]][:1]
    return f"unknown key {key!r}" + (f", did you mean {near[0]!r}?" if near else "; see `vitrail recipes show small`")


def all_keys() -> list[str]:
    """Every key of a recipe of any task, dotted, and the short ones."""
    keys = (key for kind in recipe_classes() for key in _keys(kind, ""))
    return list(dict.fromkeys([*short_keys(), *keys]))


def _keys(section: type[Section], prefix: str) -> Iterator[str]:
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from _keys(field.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"
