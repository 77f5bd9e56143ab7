"""Every training procedure of the papers by name: one file a paper, and the table of them all.

Nothing here imports torch. A recipe is data: functions return a frozen `Recipe`, and do nothing else.
"""

import difflib
import fnmatch
from pathlib import Path

from vitrail.recipes.table import RECIPES
from vitrail.settings.own import is_own, load_own
from vitrail.settings.recipe import Recipe
from vitrail.settings.text import dotted, read_recipe

_RUNS = Path("runs")  # where recipes that begin with another's run look for it
RECIPE_EXTENSIONS = (".yaml", ".yml")


def list_recipes(pattern: str = "*") -> list[str]:
    """Names that match a shell pattern such as "deit3_*", in the table's order."""
    return [name for name in RECIPES if fnmatch.fnmatchcase(name, pattern.lower())]


def get_recipe(name: str) -> Recipe:
    """The recipe of that name; an unknown one is an error that offers the nearest names."""
    if name not in RECIPES:
        raise ValueError(explain_unknown(name))
    entry = RECIPES[name]
    return entry.function(*entry.arguments)


def find_recipe(name_or_file: str) -> Recipe:
    """The recipe of that name, of a YAML file, or of `module:function`; a name goes before a file called the same."""
    if name_or_file not in RECIPES and (
        name_or_file.lower().endswith(RECIPE_EXTENSIONS) or Path(name_or_file).is_file()
    ):
        return read_recipe(Path(name_or_file))
    if is_own(name_or_file):
        recipe = load_own(name_or_file, what="recipe")()
        if not isinstance(recipe, Recipe):
            raise ValueError(f"the recipe {name_or_file} must return a Recipe, not a {type(recipe).__name__}")
        return recipe
    return get_recipe(name_or_file)


def check_runs(recipe: Recipe) -> None:
    """Refuse a recipe that begins with the run of another recipe where there is none; the line says how it is made."""
    shorter = {key: short for short, key in recipe.short_keys.items()}
    for key, value in dotted(recipe.model_dump()):
        path = Path(value) if isinstance(value, str) else None
        if path is not None and path.parent == _RUNS and path.name in RECIPES and not path.exists():
            verb = "train" if "Command: vitrail train" in RECIPES[path.name].about else "pretrain"
            key = shorter.get(key, key)
            raise ValueError(
                f"{key}={value}: there is no such run; make it first with `vitrail {verb} {path.name} data=DATA "
                f"out={value}`, or name a run of yours with {key}=RUN"
            )


def explain_unknown(name: str) -> str:
    """What to say of a name that is none."""
    if starting := list_recipes(f"{name}*"):
        near = starting[:3]
    else:
        near = difflib.get_close_matches(name.lower(), RECIPES, n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else "`vitrail recipes` lists them all; a file ends in .yaml"
    return f"unknown recipe {name!r}: {hint}"
