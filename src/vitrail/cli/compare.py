"""The disagreement matrix of thesis table 3.4, for `vitrail evaluate --compare`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.inference.passes import Passes, find_recipe, folded, is_named, open_data, seeing

if TYPE_CHECKING:
    from torch import Tensor

    from vitrail.evaluation.compare import ClassIndex
    from vitrail.inference.trained import Loaded, Trained

_UNLIMITED = 10_000  # columns, where nobody's terminal sets a limit
_LABELS = "groundtruth"


def run(sources: Sequence[str], settings: Mapping[str, Any], *, as_json: bool) -> int:
    """Ask each model about all of the data, then print how often they disagree."""
    sources = list(dict.fromkeys(sources))
    if len(sources) < 2:
        raise ValueError("--compare takes at least two runs or models: vitrail evaluate --compare A B data=SPEC")

    import torch

    from vitrail.evaluation.compare import ClassIndex, disagreement
    from vitrail.inference.trained import Loaded, load_whatever

    trunk = settings.get("trunk")
    loaded = {source: load_whatever(source, trunk=None if trunk is None else str(trunk)) for source in sources}
    if any(isinstance(one, Loaded) for one in loaded.values()):
        return _compare_others(loaded, settings, as_json=as_json)
    models = {source: seeing(one, settings) for source, one in loaded.items() if not isinstance(one, Loaded)}
    for source, trained in models.items():
        trained.require_classifier(source, of_images=True)
    first = next((source for source in sources if not is_named(source)), sources[0])  # trained on the data, perhaps
    data, name = open_data(first, settings, models[first])
    level = data.level(name)
    if level.is_multiple:
        raise ValueError(f"images of {data.name} have several labels: --compare takes data with one label each")
    index, passes = ClassIndex(level.classes), Passes(data, name, settings)
    numbers = {source: _number_classes(trained, passes, index, source) for source, trained in models.items()}
    titles = _short_names(list(models))
    rows: list[dict[str, Any]] = [{"name": _LABELS}]
    answers = [torch.tensor(level.labels, dtype=torch.int64)]
    for source, trained in models.items():
        for head, found in _answers(trained, passes, numbers[source], title=titles[source]).items():
            rows.append({"name": f"{titles[source]} {head}".strip(), "model": source, "head": head or None})
            answers.append(found)
    whole = torch.stack(answers)
    count = int((whole >= 0).all(dim=0).sum())
    report = {
        "data": data.name,
        "split": data.split,
        "level": name,
        "precision": str(passes.dtype).removeprefix("torch."),
        "count": count,
        "num_left_out": len(data) - count,
        "rows": rows,
        "disagreement": disagreement(whole).tolist(),
    }
    print(json.dumps(report, indent=2) if as_json else _as_text(report))
    return 0


def _compare_others(found: "Mapping[str, Trained | Loaded]", settings: Mapping[str, Any], *, as_json: bool) -> int:
    """Models that take no images, as their task compares them."""
    from vitrail.tasks import find_task
    from vitrail.tasks.contract import EvaluationRequest

    tasks = {one.task for one in found.values()}
    if len(tasks) > 1:
        raise ValueError(f"models of one task are compared, not of {' and '.join(sorted(tasks))}")
    requests = [EvaluationRequest(source, one, settings, {}, find_recipe(source)) for source, one in found.items()]
    evaluation = find_task(tasks.pop()).compare(requests)
    print(json.dumps(dict(evaluation.record), indent=2) if as_json else evaluation.text)
    return 0


def _number_classes(trained: "Trained", passes: Passes, index: "ClassIndex", source: str) -> "Tensor":
    """For each class of the model the number that its name has for all models."""
    from vitrail.inference.class_names import match_classes, rename_classes

    classes = passes.data.level(passes.level).classes
    try:
        match_classes(trained, classes, name=passes.data.name)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None
    known = trained.classes or classes
    return index.numbers_of(rename_classes(known, classes, synonyms=trained.synonyms))


def _answers(trained: "Trained", passes: Passes, numbers: "Tensor", *, title: str) -> "dict[str, Tensor]":
    """The class of every image by each head, -1 where the image could not be read; a single head has no name."""
    import torch

    from vitrail.evaluation.heads import HEADS, head_answers

    model, is_double = folded(trained)
    found = {head: torch.full((len(passes.data),), -1) for head in (HEADS if is_double else ("",))}
    for logits, batch in passes.answers(model, title=title, note_unread=lambda _problem: None):
        for head, answer in (head_answers(logits) if is_double else {"": logits}).items():
            found[head][batch.indices] = numbers[answer.argmax(dim=1).cpu()]
    return found


def _short_names(sources: list[str]) -> dict[str, str]:
    """The last part of each path, or the whole where that is not enough to tell them apart."""
    last = [Path(source).name or source for source in sources]
    return dict(zip(sources, last if len(set(last)) == len(last) else sources, strict=True))


def _as_text(report: Mapping[str, Any]) -> str:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = _UNLIMITED
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("")
    for number in range(1, len(report["rows"]) + 1):
        table.add_column(str(number), justify="right", no_wrap=True)
    for number, (row, shares) in enumerate(zip(report["rows"], report["disagreement"], strict=True), start=1):
        table.add_row(f"{number} {row['name']}", *(f"{share:.3f}" for share in shares))
    with console.capture() as capture:
        console.print(table)
    left_out = report["num_left_out"]
    note = f", {left_out:,} left out (unreadable or without a label)" if left_out else ""
    return "\n".join(
        [
            f"share of the {report['count']:,} images of {report['split']} of {report['data']} that two classifiers "
            f"put into different classes{note}",
            "",
            *(line.rstrip() for line in capture.get().splitlines()),
        ]
    )
