"""List the catalogue: every model with what its paper publishes about it."""

import argparse
import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from vitrail.models.catalog import CatalogEntry
    from vitrail.models.figures import Figures, Result

SUMMARY = "list the models and their published figures"

_COLUMNS = (
    *("model", "blocks", "width", "params", "drop path", "Layer Scale"),
    *("image", "FLOPs", "im/s", "MB", "top-1", "ReaL", "V2", "weights", "training"),
)
# What a narrow terminal goes without, first to last.
_EXPENDABLE = ("training", "MB", "im/s", "width", "blocks", "Layer Scale", "drop path", "V2", "ReaL", "weights")
_LEFT_ALIGNED = ("model", "weights", "training")
_GAP = "  "
_WIDE = 120  # columns from which on there is room for the names of weights
_LEGEND = """\
Blocks: depth x branches side by side. Params in millions, FLOPs in billions of
multiply-adds, as printed. Accuracies in %, the best published at each image size;
* with ImageNet-21k. Weights: published, by the name alone (yes) or with
what follows it, such as cait_s24@384 (`vitrail download --list` has all).
All rows, settings and sources: --json."""
_SPEED_LEGEND = "Images a second and peak memory of inference, as printed; the letter is how they were measured:"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `vitrail models` takes."""
    parser.add_argument(
        "settings", nargs="*", metavar="PATTERN", help="only names like these, e.g. 'cait*' (default: all)"
    )
    parser.add_argument("--json", action="store_true", help="print every setting and every published row as JSON")
    parser.add_argument("--plot", metavar="FILE", help="draw top-1 against cost into a page (.html) or picture (.svg)")
    parser.add_argument("--against", metavar="COST", help="with --plot: one cost, e.g. flops (default: all)")


def run(arguments: argparse.Namespace) -> int:
    """Print, or draw, the entries whose names match a pattern."""
    from vitrail.models.catalog import get_entry, list_models

    chosen = set()
    for pattern in arguments.settings or ["*"]:
        names = list_models(pattern)
        if not names:
            raise ValueError(_explain_no_match(pattern))
        chosen |= set(names)
    if arguments.plot is not None:
        return _plot(chosen, arguments)
    if arguments.against is not None:
        raise ValueError("--against says what to draw accuracy against: add --plot FILE")
    entries = [get_entry(name) for name in list_models() if name in chosen]
    print(_as_json(entries) if arguments.json else _as_text(entries))
    return 0


def _plot(names: "Iterable[str]", arguments: argparse.Namespace) -> int:
    from vitrail.model_charts import plot_models

    if arguments.json:
        raise ValueError("--plot draws and --json prints: ask for one of them")
    plotted = plot_models(arguments.plot, models=names, against=arguments.against)
    for cost, (num_shown, num_results) in plotted.items():
        others = f"; the papers print no {cost} of the others" if num_shown < num_results else ""
        print(f"{cost}: {num_shown} of {num_results} published results{others}")
    print(arguments.plot)
    return 0


def _explain_no_match(pattern: str) -> str:
    from vitrail.models.catalog import list_models

    if list_models(f"{pattern}*"):
        return f"no model is named {pattern!r}; did you mean '{pattern}*'?"
    nearest = difflib.get_close_matches(pattern.replace("*", ""), list_models(), n=3, cutoff=0.4)
    hint = f"nearest names: {', '.join(nearest)}" if nearest else "`vitrail models` lists them all"
    return f"no model matches {pattern!r}; {hint}"


def _as_json(entries: "list[CatalogEntry]") -> str:
    import json

    from vitrail.models.figures import SCORES, SETUPS
    from vitrail.models.published import list_published
    from vitrail.storage import parse_json

    def number(text: str | None) -> float | None:
        return None if text is None else parse_json(text)  # a printed count such as "86.6" or "1e3" is a JSON number

    records = []
    for entry in entries:
        record = vars(entry) | {"settings": dict(entry.settings)}
        record["weights"] = [weights.describe() for weights in list_published(entry.name)]
        record["scores"] = [score._asdict() for score in SCORES.get(entry.name, ())]
        if figures := entry.figures:
            record["figures"] = vars(figures) | {
                "parameters": number(figures.parameters),
                "flops": {size: number(text) for size, text in figures.flops.items()},
                "resized_parameters": {size: number(text) for size, text in figures.resized_parameters.items()},
                "results": [result._asdict() for result in figures.results],
                "speeds": [
                    row._asdict()
                    | {"throughput": number(row.throughput), "memory": number(row.memory), "setup": SETUPS[row.setup]}
                    for row in figures.speeds
                ],
                "variants": [
                    row._asdict() | {"parameters": number(row.parameters), "flops": number(row.flops)}
                    for row in figures.variants
                ],
            }
        records.append(record)
    return json.dumps(records, indent=2)


def _as_text(entries: "list[CatalogEntry]") -> str:
    from rich.console import Console
    from rich.text import Text

    console = Console(soft_wrap=True)  # a line too long for the terminal is never cut
    with console.capture() as capture:
        for line, style in _lay_out(entries, width=console.width if console.is_terminal else None):
            console.print(Text(line, style=style))
    setups = [f"  {letter}  {setup}" for letter, setup in _setups(entries).items()]
    return "\n".join([f"{capture.get()}\n{_LEGEND}", *([_SPEED_LEGEND, *setups] if setups else [])])


def _setups(entries: "list[CatalogEntry]") -> dict[str, str]:
    """How the measurements in the table were made, by their letters."""
    from vitrail.models.figures import SETUPS

    published = [entry.figures for entry in entries if entry.figures is not None]
    shown = [figures.speed_at(size) for figures in published for size in _sizes(figures)]
    letters = {speed.setup for speed in shown if speed is not None}
    return {letter: setup for letter, setup in SETUPS.items() if letter in letters}


def _sizes(figures: "Figures") -> list[int]:
    sources = (figures.flops, (row.image_size for row in figures.results), (row.image_size for row in figures.speeds))
    return sorted({size for source in sources for size in source})


def _lay_out(entries: "list[CatalogEntry]", *, width: int | None) -> "Iterator[tuple[str, str]]":
    """The table's lines and their styles, at most `width` wide. (rich's own tables take 0.3 s for the catalogue.)"""
    heading = [{column: column.rpartition(" ")[line] for column in _COLUMNS} for line in (0, 2)]
    rows = [_describe(entry) for entry in entries]
    if width is not None and width < _WIDE:
        for row in (row for group in rows for row in group if row["weights"]):
            row["weights"] = "yes"
    widths = {column: max(len(row[column]) for group in (heading, *rows) for row in group) for column in _COLUMNS}
    for column in _EXPENDABLE:
        if width is None or sum(widths.values()) + len(_GAP) * (len(widths) - 1) <= width:
            break
        del widths[column]

    def join(row: dict[str, str]) -> str:
        cells = (
            row[name].ljust(size) if name in _LEFT_ALIGNED else row[name].rjust(size) for name, size in widths.items()
        )
        return _GAP.join(cells).rstrip()

    yield from ((line, "bold") for line in map(join, heading) if line)
    yield "-" * (sum(widths.values()) + len(_GAP) * (len(widths) - 1)), ""
    previous = entries[0]
    for entry, group in zip(entries, rows, strict=True):
        if _series(entry) != _series(previous):
            yield "", ""
        for row in group:
            yield join(row), "" if row is group[0] else "dim"
        previous = entry


def _series(entry: "CatalogEntry") -> str:
    return entry.name.partition("_")[0]


def _describe(entry: "CatalogEntry") -> list[dict[str, str]]:
    """A row per image size in the papers with the best accuracy there, and one more for the best with ImageNet-21k."""
    from vitrail.models.figures.trade_offs import best_results

    branches = entry.settings.get("num_branches", 1)
    row = dict.fromkeys(_COLUMNS, "") | {
        "model": entry.name,
        "blocks": f"{entry.settings['depth']}{f'x{branches}' if branches > 1 else ''}",
        "width": str(entry.settings["dim"]),
    }
    figures = entry.figures
    if figures is None:
        return _with_weights(entry.name, [row])
    row |= {
        "params": (figures.parameters or "").replace("1e3", "1000"),
        "drop path": _short(figures.drop_path),
        "Layer Scale": _short(figures.layer_scale),
    }
    rows = []
    for size in _sizes(figures):
        sized = row | {"image": str(size), "FLOPs": figures.flops.get(size, ""), **_speeds(figures, size)}
        best = [result for result in best_results(figures) if result.image_size == size]
        rows += [sized | _accuracies(result) for result in best] or [sized]
    return _with_weights(entry.name, rows or [row])


def _with_weights(name: str, rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """The rows with the names of published weights, each where its image size and its training data are."""
    from vitrail.models.published import list_published

    for weights in list_published(name):
        wanted = str(weights.image_size), weights.uses_21k
        row = next((row for row in rows if (row["image"], "*" in row["top-1"]) == wanted), rows[-1])
        row["weights"] = f"{row['weights']} {weights.text.removeprefix(name) or 'yes'}".strip()
    return rows


def _speeds(figures: "Figures", size: int) -> dict[str, str]:
    speed = figures.speed_at(size)
    if speed is None:
        return {}
    columns = {"im/s": speed.throughput, "MB": speed.memory}
    return {column: f"{value}{speed.setup}" for column, value in columns.items() if value is not None}


def _accuracies(result: "Result") -> dict[str, str]:
    from vitrail.models.figures.trade_offs import uses_21k

    return {
        "top-1": f"{result.top1}{'*' if uses_21k(result) else ' '}",
        "ReaL": "" if result.real is None else str(result.real),
        "V2": "" if result.v2 is None else str(result.v2),
        "training": result.training.removeprefix("ImageNet-1k, "),
    }


def _short(number: float | None) -> str:
    """The way the papers write a setting: 0.05, 1e-4."""
    if number is None:
        return ""
    return f"{number:.0e}".replace("e-0", "e-") if 0 < number < 0.01 else str(number)
