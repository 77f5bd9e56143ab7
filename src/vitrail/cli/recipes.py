"""List the recipes, show one as YAML with a comment beside each key, copy one to change it, or list the optimizers."""

import argparse
import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from vitrail.models.figures import Published
    from vitrail.recipes.table import Entry
    from vitrail.settings.recipe import Recipe

SUMMARY = "list, show and copy the training recipes"

_USAGE = (
    "vitrail recipes [PATTERN] | show NAME|FILE [key=value ...] | cp NAME|FILE NEW.yaml [key=value ...] | tasks | "
    "optimizers [PATTERN]"
)
_COLUMNS = ("recipe", "model", "epochs", "image", "published", "about")
_EXPENDABLE = ("about", "model")  # what a narrow terminal goes without, first to last
_LEFT_ALIGNED = ("recipe", "model", "about")
_GAP = "  "
_LEGEND = """\
Published: top-1 in % unless another measure stands beside it. Several numbers: one a stage. k: thousands of steps.
Next: `vitrail recipes show NAME`, or `vitrail train NAME data=FOLDER out=RUN`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `vitrail recipes` takes."""
    parser.usage = _USAGE
    parser.add_argument(
        "words",
        nargs="*",
        metavar="WORD",
        help="a pattern like 'deit3*' (default: all); or show and a recipe; or cp, a recipe and a new file; settings "
        "behind these, such as model=deit_base, are put in their place; or optimizers, which lists what optimizer.name "
        "may be",
    )
    parser.add_argument("--all", action="store_true", help="show settings too that have no effect in this recipe")


def run(arguments: argparse.Namespace) -> int:
    """Do what the first word says; anything but show and cp is a pattern."""
    match arguments.words:
        case ["show", name, *settings] if "=" not in name:
            print(_describe(name, settings, everything=arguments.all), end="")
        case ["cp", name, target, *settings] if "=" not in name + target:
            print(_copy(name, Path(target), settings))
        case ["show" | "cp", *_]:
            raise ValueError(f"write {_USAGE}")
        case ["tasks"]:
            print(_list_tasks())
        case ["optimizers"]:
            print(_list_optimizers("*"))
        case ["optimizers", pattern]:
            print(_list_optimizers(pattern))
        case []:
            print(_list("*"))
        case [pattern]:
            print(_list(pattern))
        case [first, *_]:
            raise ValueError(f"one pattern at a time, or show, or cp, before {first!r}: {_USAGE}")
    return 0


def _describe(name: str, settings: "Sequence[str]", *, everything: bool = False) -> str:
    """A recipe as YAML, after what is known about it; with `everything` also settings that have no effect in it."""
    from vitrail.recipes import RECIPES, find_recipe
    from vitrail.settings.overriding import override
    from vitrail.settings.text import parse_assignments, write_yaml

    changes = parse_assignments(settings)
    changes.pop("out", None)  # so that the words after `vitrail train` can be taken as they are
    text = write_yaml(override(find_recipe(name), changes), everything=everything)
    if name not in RECIPES:
        return text
    about = "".join(f"# {line}".rstrip() + "\n" for line in RECIPES[name].about.splitlines())
    return f"{about}\n{text}"


def _copy(name: str, target: Path, settings: "Sequence[str]") -> str:
    from vitrail.recipes import RECIPE_EXTENSIONS

    text = _describe(name, settings)
    if target.suffix.lower() not in RECIPE_EXTENSIONS:
        raise ValueError(f"the file of a recipe ends in .yaml: vitrail recipes cp {name} {target}.yaml")
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ValueError(f"{target} exists already: choose another name, or remove it first") from None
    except OSError as error:
        raise ValueError(f"cannot write {target}: {error.strerror}") from None
    return f"{target} is a copy of {name}. Change it, then: vitrail train {target} data=FOLDER out=runs/{target.stem}"


def _list(pattern: str) -> str:
    from rich.console import Console
    from rich.text import Text

    from vitrail.recipes import RECIPES, explain_unknown, get_recipe, list_recipes

    names = list_recipes(pattern)
    if not names and list_recipes(f"{pattern}*"):
        raise ValueError(f"no recipe is named {pattern!r}; did you mean '{pattern}*'?")
    if not names:
        raise ValueError(explain_unknown(pattern.replace("*", "")))
    console = Console(soft_wrap=True)  # a line too long for the terminal is never cut
    rows = [_row(get_recipe(name), RECIPES[name]) for name in names]
    with console.capture() as capture:
        for line, style in _lay_out(rows, width=console.width if console.is_terminal else None):
            console.print(Text(line, style=style))
    return f"{capture.get()}\n{_LEGEND}"


def _list_tasks() -> str:
    from vitrail.tasks import TASKS, find_recipe_class

    about = {name: (find_recipe_class(name).__doc__ or "").partition("\n")[0].rstrip(".") for name in TASKS}
    width = max(map(len, about))
    return "\n".join(f"{name.ljust(width)}{_GAP}{text}" for name, text in about.items())


def _list_optimizers(pattern: str) -> str:
    from vitrail.training.loop.optimizer import list_optimizers

    found = {name: about for name, about in list_optimizers().items() if fnmatch.fnmatchcase(name, pattern.lower())}
    if not found:
        raise ValueError(f"no optimizer is named {pattern!r}: `vitrail recipes optimizers` lists them all")
    width = max(map(len, found))
    return "\n".join(f"{name.ljust(width)}{_GAP}{about}" for name, about in found.items())


def _row(recipe: "Recipe", entry: "Entry") -> dict[str, str]:
    from vitrail.settings.text import stage_of

    stages = [stage_of(recipe, number) for number in range(recipe.num_stages)]
    return {
        "recipe": recipe.name,
        "model": recipe.model.name,
        "epochs": ",".join(map(_length, stages)),
        "image": ",".join(str(getattr(stage, "image_size", "")) for stage in stages),
        "published": "" if entry.figure is None else _figure(entry.figure),
        "paper": entry.function.__module__,  # not shown: it parts the table
        "about": entry.summary,
    }


def _length(stage: "Recipe") -> str:
    """The epochs of a stage, or its steps where those are what counts."""
    if stage.steps is None:
        return f"{stage.epochs:g}"
    return f"{stage.steps / 1000:g}k steps" if stage.steps >= 1000 else f"{stage.steps} steps"


def _figure(figure: "Published") -> str:
    """A figure with its measure, but for top-1, which most of them are."""
    measure = figure.unit.removeprefix("% ")
    return figure.digits if measure == "top-1" else f"{figure.digits} {measure}"


def _lay_out(rows: "Sequence[dict[str, str]]", *, width: int | None) -> "Iterator[tuple[str, str]]":
    """The table's lines and their styles, at most `width` wide where that can be done."""
    heading = {column: column for column in _COLUMNS}
    widths = {column: max(len(row[column]) for row in (heading, *rows)) for column in _COLUMNS}
    for column in _EXPENDABLE:
        if width is None or sum(widths.values()) + len(_GAP) * (len(widths) - 1) <= width:
            break
        del widths[column]

    def join(row: dict[str, str]) -> str:
        cells = (
            row[name].ljust(size) if name in _LEFT_ALIGNED else row[name].rjust(size) for name, size in widths.items()
        )
        return _GAP.join(cells).rstrip()

    yield join(heading), "bold"
    yield "-" * (sum(widths.values()) + len(_GAP) * (len(widths) - 1)), ""
    previous = rows[0]
    for row in rows:
        if row["paper"] != previous["paper"]:
            yield "", ""
        yield join(row), ""
        previous = row
