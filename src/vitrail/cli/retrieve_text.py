"""What `vitrail retrieve` prints and writes: figures of one run, or the matrix of train and test levels of several."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitrail.storage import CsvWriter

_MEASURES = {
    "top1": "kNN top-1",
    "map_cosine": "mAP cosine",
    "map_conditional": "mAP conditional",
    "map_oracle": "mAP oracle",
}


def write_tables(content: Mapping[str, Any]) -> None:
    """Print a table of one run; of several the matrix of each measure."""
    from rich.console import Console

    console = Console(highlight=False)
    runs = content["runs"]
    first = runs[0]
    asked = f"{first['num_queries']:,} images of {content['split']} of {content['data']}"
    print(f"{asked}; each ranks {first['num_images']:,} of train")
    for run in runs:
        print(f"{run['run']}: {run['model']}, {_trained_on(run)}, {run['dim']:,} numbers an image")
        if conditions := _conditions(run):
            print(f"  {conditions}")
        if run["num_left_out"]:
            print(f"  {run['num_left_out']:,} left out that could not be read")
    if len(runs) == 1:
        console.print(_one_run(content, first), end="")
    else:
        for measure in _measures(content):
            print(f"\n{_MEASURES[measure]}")
            console.print(_matrix(content, measure), end="")
    if "separability" in first:
        found = first["separability"]
        print(f"\ntop-1 on train of random halves of each {found['level']} class, {found['num_splits']} times")
        console.print(_separability(runs), end="")


def write_csv(content: Mapping[str, Any], path: Path) -> None:
    """The matrices as one file: a row a measure and test level, a column a run."""
    runs = content["runs"]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = CsvWriter(file, lineterminator="\r\n")
        writer.write([["measure", "test_level", "test_classes", *(run["run"] for run in runs)]])
        writer.write([["trained_on", "", "", *(run["trained_on"] or "" for run in runs)]])
        for measure in _measures(content):
            for level, count in content["levels"].items():
                cells = (run["levels"][level].get(measure) for run in runs)
                writer.write([[measure, level, count, *("" if cell is None else f"{cell:.4f}" for cell in cells)]])


def _measures(content: Mapping[str, Any]) -> list[str]:
    rows = [row for run in content["runs"] for row in run["levels"].values()]
    return [name for name in _MEASURES if any(name in row for row in rows)]


def _trained_on(run: Mapping[str, Any]) -> str:
    from vitrail.evaluation.granularity import NO_LABELS

    if run["trained_on"] == NO_LABELS:
        return "trained without labels"
    if run["trained_on"] is None:
        return "trained on other labels"
    count = run["num_train_classes"]  # unknown of a model without a classifier
    return f"trained on {run['trained_on']}" + (f" ({count:,})" if count else "")


def _table() -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    return Table(box=SIMPLE_HEAD)


def _one_run(content: Mapping[str, Any], run: Mapping[str, Any]) -> Any:
    table = _table()
    table.add_column("level")
    precisions = _measures(content)[1:]
    first, *others = (_MEASURES[name] for name in precisions)
    for name in ("classes", _MEASURES["top1"], "k", first, *(name.removeprefix("mAP ") for name in others)):
        table.add_column(name, justify="right")
    for level, row in run["levels"].items():
        count, figures = f"{content['levels'][level]:,}", (_number(row.get(name)) for name in precisions)
        table.add_row(level, count, _number(row["top1"]), str(row["neighbours"]), *figures)
    return table


def _conditions(run: Mapping[str, Any]) -> str:
    """Which labels a run's rankings are conditioned by, and who predicts them."""
    found = [(level, row["coarse"], row["predicted_by"]) for level, row in run["levels"].items() if row["coarse"]]
    return "; ".join(f"{level} is conditioned by {coarse}, predicted by its {by}" for level, coarse, by in found)


def _matrix(content: Mapping[str, Any], measure: str) -> Any:
    table = _table()
    table.add_column("test \\ train")
    table.add_column("classes", justify="right")
    for run in content["runs"]:
        table.add_column(f"{run['run']}\n{run['trained_on'] or 'other'}", justify="right", overflow="fold")
    for level, count in content["levels"].items():
        cells = []
        for run in content["runs"]:
            cell = _number(run["levels"][level].get(measure))
            cells.append(f"[bold]{cell}[/bold]" if run["trained_on"] == level else cell)
        table.add_row(level, f"{count:,}", *cells)
    return table


def _separability(runs: list[Mapping[str, Any]]) -> Any:
    table = _table()
    for name in ("run", "no cond.", "coarse cond."):
        table.add_column(name, justify="left" if name == "run" else "right")
    for run in runs:
        row = run["separability"]
        conditional = "-"
        if row["conditional"] is not None:
            conditional = f"{row['conditional']:.1f} ± {row['conditional_deviation']:.1f}"
        table.add_row(run["run"], f"{row['top1']:.1f} ± {row['deviation']:.1f}", conditional)
    return table


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
