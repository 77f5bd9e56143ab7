"""Recipes as text: read YAML, change keys by their dotted names, and write YAML with a comment beside each key."""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from vitrail.settings.recipe import SHORT_KEYS, Recipe
from vitrail.settings.section import Section

_COMMENT_COLUMN = 34
_SCIENTIFIC = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
# On a command line these are taken as they are: a path may have any sign in it, or look like a number.
_PATHS = ("data.spec", "data.val", "data.quarantine", "model.init", "teacher.model", "teacher.classes")
_TEXT_KEYS = frozenset((*_PATHS, "teacher.cache_folder", "out"))


class _Loader(yaml.SafeLoader):
    """Reads 5e-4 as a number, as people mean it, though YAML 1.1 takes it for text."""


class _Dumper(yaml.SafeDumper):
    """Puts text that looks like such a number into quotes."""


for _kind in (_Loader, _Dumper):
    _kind.add_implicit_resolver("tag:yaml.org,2002:float", _SCIENTIFIC, list("-+.0123456789"))


def read_recipe(path: Path) -> Recipe:
    """The recipe in a YAML file."""
    try:
        content = parse(path.read_text(encoding="utf-8"), label=str(path))
    except OSError as error:
        raise ValueError(f"cannot read the recipe {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a text file: a recipe is YAML") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} is not a recipe: it must hold keys and values, as `vitrail recipes show` prints them")
    return make_recipe(content, label=str(path))


def make_recipe(content: Mapping[str, Any], *, label: str) -> Recipe:
    """A recipe of nested mappings; a mistake is one line that names the key, and the nearest one if it is unknown."""
    try:
        recipe = Recipe.model_validate(content)
    except ValidationError as error:
        raise ValueError(f"{label}: {_explain(error)}") from None
    for number in range(len(recipe.stages)):
        stage_of(recipe, number)  # a wrong key in a later stage should not show after days of training
    return recipe


def change(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """The recipe with other values at dotted (or short) keys."""
    content = recipe.model_dump()
    for key, value in changes.items():
        *sections, last = SHORT_KEYS.get(key, key).split(".")
        if sections[:1] == ["stages"] and len(sections) > 1:
            _change_stage(content, key, value)
            continue
        if taken := _stages_that_set(recipe, key):
            raise ValueError(f"{key} is set by the stages of this recipe: change stages.{taken[0]}.{key} instead")
        place: Any = content
        for section in sections:
            place = place.get(section) if isinstance(place, dict) else None
        is_free = sections[:2] in (["model", "settings"], ["optimizer", "options"])
        if not isinstance(place, dict) or not (last in place or is_free):
            raise ValueError(_unknown(key))
        if isinstance(place.get(last), dict) and not isinstance(value, Mapping):
            inner = ", ".join(f"{key}.{name}" for name in list(place[last])[:3]) or f"{key}.NAME"
            raise ValueError(f"{key} is a group of settings: set one of them, such as {inner}")
        place[last] = value
    return make_recipe(content, label=", ".join(f"{key}={value}" for key, value in changes.items()))


def _change_stage(content: dict[str, Any], key: str, value: Any) -> None:
    _, number, *rest = key.split(".")
    stages = content["stages"]
    if not number.isdigit() or int(number) >= len(stages):
        raise ValueError(f"{key}: there is no stage {number}; this recipe has {len(stages)}, counted from 0")
    wanted = ".".join(rest)
    stage = stages[int(number)]
    same = [known for known in stage if SHORT_KEYS.get(known, known) == SHORT_KEYS.get(wanted, wanted)]
    stage[same[0] if same else wanted] = value


def _stages_that_set(recipe: Recipe, key: str) -> list[int]:
    full = SHORT_KEYS.get(key, key)
    return [
        number
        for number, stage in enumerate(recipe.stages)
        if any(SHORT_KEYS.get(known, known) == full for known in stage)
    ]


def parse_assignments(words: Sequence[str]) -> dict[str, Any]:
    """`key=value` words of a command line; values are read as YAML, but for paths and the like, which are text."""
    changes = {}
    for word in words:
        key, sign, text = word.partition("=")
        if not sign or not key:
            raise ValueError(f"{word!r} is no setting: write key=value, such as epochs=30")
        changes[key] = _parse_text(key, text) if _is_text(key) else parse(text, label=key)
    return changes


def _is_text(key: str) -> bool:
    key = re.sub(r"^stages\.\d+\.", "", key)
    return SHORT_KEYS.get(key, key) in _TEXT_KEYS


def _parse_text(key: str, text: str) -> str | None:
    """The text itself; nothing, or null for what may be left out, is none."""
    return None if text == "" or (text == "null" and key != "out") else text


def parse(text: str, *, label: str) -> Any:
    """YAML, without code."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or "it cannot be read"
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        raise ValueError(f"{label} is not valid YAML{where}: {problem}") from None


def stage_of(recipe: Recipe, number: int) -> Recipe:
    """One stage as a recipe of its own."""
    if not recipe.stages:
        return recipe
    if any(key.partition(".")[0] == "stages" for key in recipe.stages[number]):
        raise ValueError(f"stages.{number} has stages of its own: list them one after the other in stages")
    return change(recipe.model_copy(update={"stages": ()}), recipe.stages[number])


def write_yaml(recipe: Recipe) -> str:
    """The recipe as YAML with a comment beside each key; reading it back gives the same recipe."""
    return "\n".join(_lines(recipe, depth=0)) + "\n"


def _lines(section: Section, *, depth: int) -> Iterator[str]:
    indent = "  " * depth
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, Section):
            yield ""
            yield f"{indent}{name}:  # {(type(value).__doc__ or '').rstrip('.')}"
            yield from _lines(value, depth=depth + 1)
        else:
            text = yaml.dump(_plain(value), Dumper=_Dumper, default_flow_style=True, width=10**6, sort_keys=False)
            entry = f"{indent}{name}: {text.removesuffix('...' + chr(10)).strip()}"
            yield f"{entry.ljust(_COMMENT_COLUMN)}  # {field.description}"


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _explain(error: ValidationError) -> str:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"] if not _is_type_tag(part))
    if first["type"] == "extra_forbidden":
        return _unknown(key)
    message = first["msg"][:1].lower() + first["msg"][1:]
    return f"{key} cannot be {first['input']!r}: {message}"


def _is_type_tag(part: int | str) -> bool:
    """pydantic puts the member of a union that it tried into the place of an error."""
    return isinstance(part, str) and ("[" in part or part in ("int", "float", "constrained-int", "tuple"))


def _unknown(key: str) -> str:
    near = difflib.get_close_matches(key, all_keys(), n=1, cutoff=0.5)
    if not near:  # the right name in the wrong section
        near = [known for known in all_keys() if known.rpartition(".")[2] == key.rpartition(".")[2]][:1]
    return f"unknown key {key!r}" + (f", did you mean {near[0]!r}?" if near else "; see `vitrail recipes show small`")


def all_keys() -> list[str]:
    """Every key of a recipe, dotted, and the short ones."""
    return [*SHORT_KEYS, *_keys(Recipe, "")]


def _keys(section: type[Section], prefix: str) -> Iterator[str]:
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from _keys(field.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"
