"""What `vitrail gallery` prints."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitrail.gallery.gallery import Gallery
    from vitrail.gallery.gallery_answers import GalleryAnswer, Hit

_FIGURES = {
    "num_images": "images",
    "answer_top1": "answers",
    "answer_top5": "top-5",
    "top1": "kNN top-1",
    "top5": "top-5",
    "map_cosine": "mAP cosine",
    "map_conditional": "conditional",
    "map_oracle": "oracle",
}


def describe(gallery: "Gallery") -> dict[str, Any]:
    """What a gallery is, as a record."""
    manifest = gallery.manifest
    return {
        "gallery": gallery.store.place,
        "model": manifest.model.name,
        "source": manifest.model.source,
        "num_images": len(gallery),
        "dim": manifest.dim,
        "levels": {level: len(gallery.counts(level)) for level in manifest.levels},
        "coarse": manifest.coarse,
        "neighbours": manifest.neighbours,
        "rule": None if manifest.rule is None else manifest.rule.model_dump(),
        "index": manifest.wanted_index,
        "threshold": None if manifest.threshold is None else manifest.threshold.model_dump(),
    }


def describe_lines(report: Mapping[str, Any]) -> Iterable[str]:
    """What a gallery is, in lines for a person."""
    levels = ", ".join(f"{count:,} of {level}" for level, count in report["levels"].items())
    yield (
        f"{report['gallery']}: {report['num_images']:,} images, classes: {levels}; {report['model']}, "
        f"{report['dim']} numbers an image, index {report['index']}"
    )
    yield _rule_line(report)
    threshold = report["threshold"]
    if threshold is not None:
        to, kind = ("the most similar class", "class_") if threshold["class_cosine"] is not None else ("any image", "")
        yield (
            f"below a cosine of {threshold[f'{kind}cosine']:.3f} to {to} it is unknown, as "
            f"{threshold[f'{kind}false_reject']:.1%} of {threshold['num_held_out']:,} held-out images are "
            f"({threshold['held_out']})"
        )


def _rule_line(report: Mapping[str, Any]) -> str:
    """What answers, and how it was chosen."""
    rule = report["rule"] or {"name": "neighbours", "known": None}
    answering = {
        "neighbours": f"{report['neighbours']} neighbours answer",
        "means": "the nearest mean of a class answers",
        "mix": f"means of classes and {report['neighbours']} neighbours answer",
    }[rule["name"]]
    if rule["known"] is None:
        return answering
    figures = ", ".join(f"{name} {rule['known'][name]:.1%} and {rule['added'][name]:.1%}" for name in rule["known"])
    return (
        f"{answering}; right for {rule['num_held_out']:,} held-out images, as they are and had their class been added "
        f"from five pictures: {figures}"
    )


def hit_record(hit: "Hit") -> dict[str, Any]:
    """A found image as a record."""
    return {"path": hit.path, "labels": dict(hit.labels), "cosine": hit.cosine, "score": hit.score}


def hit_line(hit: "Hit") -> str:
    """A found image in one line."""
    fine, *others = hit.labels.values()
    coarse = f" ({others[0]})" if others and others[0] else ""
    return f"  {hit.cosine:6.3f}  {fine or 'unnamed'}{coarse}  {hit.path}"


def answer_line(path: str, answer: "GalleryAnswer") -> str:
    """What an image shows, in one line."""
    names = "  ".join(f"{name} {p:.1%}" for name, p in answer.probabilities)
    if answer.is_unknown:
        return f"{path}  unknown ({_cosines(answer)}; else {names})"
    return f"{path}  {names}  ({_cosines(answer)})"


def _cosines(answer: "GalleryAnswer") -> str:
    of_class = "" if answer.class_cosine is None else f", of a class {answer.class_cosine:.3f}"
    return f"nearest cosine {answer.cosine:.3f}{of_class}"


def group_lines(report: Mapping[str, Any]) -> Iterable[str]:
    """Suggested groups, one a line."""
    for group in report["groups"]:
        known = ", ".join(f"{name} {count:,}" for name, count in list(group["labels"].items())[:4])
        yield f"group {group['group']}: {group['count']:,} images, cosine {group['cosine']:.3f}: {known}"
    yield f"their pictures are in {report['page']}"


def evaluation_lines(reports: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """A table for each gallery."""
    for report in reports:
        trained_on = f", trained on {report['trained_on']}" if report["trained_on"] else ""
        of = f"{report['split']} of {report['data']}"
        yield f"{report['gallery']}{trained_on}: {report['num_images']:,} images of {of}"
        width = max(map(len, report["levels"]), default=5)
        names = [name for name in _FIGURES if any(name in row for row in report["levels"].values())]
        yield "  ".join((" " * width, *(f"{_FIGURES[name]:>11}" for name in names)))
        for level, row in report["levels"].items():
            yield "  ".join((f"{level:<{width}}", *(_cell(row.get(name)) for name in names))).rstrip()
        if report["num_unnamed"]:
            count = f"{report['num_unnamed']:,} of {report['num_in_gallery']:,} images"
            yield f"{count} of the gallery have no name, and answer so"
        if report.get("false_reject") is not None:
            yield f"{report['false_reject']:.1f} % of the images of known classes are answered unknown"
        if report.get("new_rejected") is not None:
            num_new = f"{report['num_new']:,}"
            yield f"{report['new_rejected']:.1f} % of {num_new} images of other classes are answered unknown"


def _cell(value: float | None) -> str:
    """A count, a figure, or nothing."""
    return f"{'':>11}" if value is None else f"{value:>11,}" if isinstance(value, int) else f"{value:>11,.2f}"


def show(report: Any, *, is_json: bool, lines: Callable[[Any], Iterable[str]]) -> None:
    """Print what was found, for a program or for a person."""
    if is_json:
        print(json.dumps(report, indent=2))
        return
    for line in lines(report):
        print(line)
