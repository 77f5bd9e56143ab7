"""Look at every image of a data set and say what must be fixed before training; exit code 1 if anything must."""

import argparse
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitrail.data.doctor.findings import Finding, Findings

SUMMARY = "find what is wrong with data before training on it"

_STYLES = {"must be fixed": "bold red", "worth a look": "yellow", "good to know": "dim"}
_SECONDS_BETWEEN_LINES = 10  # of progress, where there is no terminal to draw a bar on
_UNLIMITED = 100_000  # columns: in a file, no line is broken


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `vitrail check` takes."""
    parser.add_argument(
        "data",
        metavar="DATA",
        help="a folder of class folders or of images without labels, a manifest, a name like cifar100; masks: "
        "pairs:FOLDER, boxes: coco:FOLDER",
    )
    parser.add_argument(
        "--labels",
        choices=("classes", "masks", "boxes", "none"),
        help="what is marked in images, where the name or the folder does not say it; none: folders mean nothing",
    )
    parser.add_argument("--out", type=Path, help="folder for the report (default: check-NAME)")
    parser.add_argument("--workers", type=_count, help="processes that read images (default: one per core)")
    parser.add_argument("--val-share", type=_share, default=0.1, help="for val where there is none (default: 0.1)")
    parser.add_argument("--download", action="store_true", help="fetch a named data set that is not there yet")
    parser.add_argument("--languages", metavar="en,de", help="check parallel text of these languages, not images")
    parser.add_argument("--json", action="store_true", help="print all findings as JSON instead of a table")


def run(arguments: argparse.Namespace) -> int:
    """Check all splits, write the report, and print what was found."""
    if arguments.languages is not None:
        return _check_text(arguments.data, arguments.languages, is_json=arguments.json)
    from vitrail.data.doctor import check
    from vitrail.data.doctor.check_files import as_json, write_files
    from vitrail.data.doctor.checking import open_to_check
    from vitrail.data.loader import check_workers

    if languages := _languages_in(Path(arguments.data)):
        raise ValueError(f"{arguments.data} holds text: check it with --languages {','.join(languages)}")
    source = open_to_check(
        arguments.data, labels=arguments.labels, val_share=arguments.val_share, download=arguments.download
    )
    folder = _prepare_folder(arguments.out, data=_find_place(arguments.data), name=source.name)
    workers = _count_cores() if arguments.workers is None else check_workers(arguments.workers)
    with _show_progress() as progress:
        findings = check(source, num_workers=workers, progress=progress)
    try:
        report = write_files(findings, source, folder=folder)
    except OSError as error:
        raise ValueError(f"cannot write the report to {folder}: {error.strerror}") from None
    print(as_json(findings) if arguments.json else f"{_as_text(findings)}; report in {report}")
    return 0 if findings.is_fit else 1


def _languages_in(folder: Path) -> list[str]:
    """The two languages of a folder with files such as train.en and train.de.gz; none where it is no such folder."""
    found = [path.name.removesuffix(".gz").split(".") for path in folder.glob("train.*") if path.is_file()]
    languages = sorted({parts[1] for parts in found if len(parts) == 2 and len(parts[1]) == 2})
    return languages if len(languages) == 2 else []


def _check_text(spec: str, languages: str, *, is_json: bool) -> int:
    """Check parallel text, and print what was found."""
    import json

    from vitrail.translation.parallel_text import open_text
    from vitrail.translation.text_check import check_text

    names = [name.strip() for name in languages.split(",")]
    if len(names) != 2 or not all(names):
        raise ValueError(f"--languages takes two of them, such as en,de, not {languages!r}")
    text = open_text(spec, source=names[0], target=names[1])
    findings = check_text(text)
    if is_json:
        print(json.dumps([finding.record() for finding in findings], indent=2, ensure_ascii=False))
    else:
        print("\n".join([f"{text.name}: {', '.join(text.splits)}", *map(str, findings)]))
    is_fit = all(finding.severity != "must be fixed" for finding in findings)
    if not is_json:
        print("nothing must be fixed" if is_fit else "to be fixed before training")
    return 0 if is_fit else 1


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"a number of processes, 0 or more, not {text!r}")
    return int(text)


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = math.nan
    if not 0.0 < share < 1.0:
        raise argparse.ArgumentTypeError(f"a share between 0 and 1, such as 0.1, not {text!r}")
    return share


def _count_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _prepare_folder(out: Path | None, *, data: Path, name: str) -> Path:
    """Make the folder for the report now: after a long examination it would be too late to find it cannot be made."""
    folder = out
    if folder is None:
        folder = Path(f"check-{re.sub(r'[^A-Za-z0-9._-]+', '-', name).strip('-.') or 'data'}")
        if _is_within(folder, data):
            folder = Path(os.path.relpath(data.resolve().parent)) / folder
    elif _is_within(folder, data):
        raise ValueError(f"{folder} lies inside the data, where it would be taken for a class: choose another --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot make the folder {folder} for the report: {error.strerror}") from None
    return folder


def _find_place(spec: str) -> Path:
    """The folder or file that a text such as coco:FOLDER names."""
    behind = spec.partition(":")[2]
    return Path(behind if behind and not os.path.lexists(spec) else spec).expanduser()


def _is_within(folder: Path, data: Path) -> bool:
    return data.is_dir() and folder.resolve().is_relative_to(data.resolve())


@contextmanager
def _show_progress() -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal, else a line now and then; both on stderr."""
    if not sys.stderr.isatty():
        yield _LineOfProgress().report
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("checking"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("checking", total=None, speed="")
        start = time.monotonic()

        def report(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, speed=_describe_speed(done, start=start))

        yield report


class _LineOfProgress:
    """Prints how far a check is, but not often."""

    def __init__(self) -> None:
        self.start = self.last = time.monotonic()

    def report(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self.last >= _SECONDS_BETWEEN_LINES:
            self.last = now
            left = (now - self.start) * (total - done) / done
            speed = _describe_speed(done, start=self.start)
            print(f"checked {done:,} of {total:,} images, {speed}, {left:.0f} s left", file=sys.stderr, flush=True)


def _describe_speed(done: int, *, start: float) -> str:
    return f"{done / max(time.monotonic() - start, 1e-3):,.0f}/s"


def _as_text(findings: "Findings") -> str:
    """The summary, a table, and the verdict."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _UNLIMITED
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("problem", "severity", "count"):
        table.add_column(heading, no_wrap=True)
    table.add_column("for example", overflow="fold")
    for finding in findings.findings:
        severity = finding.severity.value
        cells = (finding.problem, Text(severity, style=_STYLES[severity]), finding.amount)
        table.add_row(*cells, Text(_give_example(finding, findings)))
    with console.capture() as capture:
        if findings.findings:
            console.print(table)
    lines = [line.rstrip() for line in capture.get().splitlines()]
    return "\n".join([*_summarise(findings), "", *lines, *([""] * bool(lines)), findings.verdict])


def _summarise(findings: "Findings") -> list[str]:
    from vitrail.pages.words import visible

    num_images = sum(split.num_images for split in findings.splits)
    images = _count_things(num_images, "image", "images")
    classes = _count_things(len(findings.classes), "class", "classes") if findings.classes else "without labels"
    lines = [f"{visible(findings.name)}: {images}, {classes}"]
    for split in findings.splits:
        images = _count_things(split.num_images, "image", "images")
        if findings.classes:
            images += f" of {_count_things(sum(count > 0 for count in split.class_counts), 'class', 'classes')}"
        lines.append(f"  {visible(split.split)}: {images}, median {split.median_size}")
    return lines


def _count_things(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


def _give_example(finding: "Finding", findings: "Findings") -> str:
    case = finding.cases[0]
    place = case.places[0]
    shown = findings.shorten(place.path)
    if len(case.places) > 1:
        # The copy that is elsewhere, or labelled otherwise, tells most.
        other = max(case.places[1:], key=lambda copy: (copy.label != place.label, copy.split != place.split))
        return f"{shown} and {findings.shorten(other.path)}"
    if place.index is not None:
        return shown
    return f"{shown}: {' '.join(case.detail.split())}"
