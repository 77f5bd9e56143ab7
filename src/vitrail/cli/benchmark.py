"""Time models on this machine with every engine that is installed, and say which is the fastest."""

import argparse
import json
import math
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.cli.export import read_engines, tell
from vitrail.inference.passes import MODEL_HELP, read_image_size, split_words

if TYPE_CHECKING:
    from vitrail.inference.benchmarking import Comparison

SUMMARY = "time models with every engine, and choose the fastest"

_KEYS = ("out", "image_size", "crop_ratio", "trunk")
_SECONDS, _LARGEST = 4.0, 256


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `vitrail benchmark` takes."""
    parser.add_argument(
        "settings", nargs="+", metavar="RUN|MODEL|EXPORT", help=f"{MODEL_HELP}; keys: {', '.join(_KEYS)}"
    )
    parser.add_argument("--batch", metavar="1,16", help="images at a time (default: 1,16)")
    parser.add_argument("--engines", metavar="NAMES", help="engines to time (default: all that are installed)")
    parser.add_argument("--precision", help="fp32, fp16, bf16 or auto (default: auto, fp32 and what else is fast here)")
    parser.add_argument(
        "--seconds", type=float, help="time for each contender and batch (default: 4; at least 5 calls)"
    )
    parser.add_argument(
        "--no-memory", action="store_true", help="leave the peak of memory out, which takes a process each"
    )
    parser.add_argument(
        "--papers", action="store_true", help="as the papers measure: the largest batch that fits, the mean of 30 runs"
    )
    parser.add_argument(
        "--largest", type=int, help="largest batch that --papers tries (default: 256, as in their tables)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Time, print, and write down who is the fastest."""
    sources, settings = split_words(arguments.settings, keys=_KEYS)
    if not sources:
        raise ValueError("which model? Write `vitrail benchmark RUN`")
    read_image_size(settings.get("image_size"))
    out = _check_out(settings)
    if arguments.papers:
        return _measure_as_papers(sources, settings, arguments, out)
    if arguments.largest is not None:
        raise ValueError("--largest is for --papers: leave it out, or say --batch")
    batches = read_batches(arguments.batch or "1,16")
    seconds = _SECONDS if arguments.seconds is None else arguments.seconds
    if not 0.0 < seconds < math.inf:
        raise ValueError(f"--seconds is a number above 0, not {seconds:g}")
    options = {"batches": batches, "seconds": seconds, "has_memory": not arguments.no_memory}
    report: dict[str, Any] = {}
    for source in sources:
        comparison = _compare(source, settings, arguments, options)
        report[source] = comparison.describe()
        _keep(out, report)
        if not arguments.json:
            _show(source, comparison)
    if arguments.json:
        print(json.dumps(report, indent=2))
    return 0


def _check_out(settings: dict[str, Any]) -> Path | None:
    """The file for the numbers; whatever speaks against it is said before the work begins."""
    if "out" not in settings:
        return None
    if settings["out"] in (None, ""):
        raise ValueError("out= names no file: write out=FILE.json")
    path = Path(str(settings["out"])).expanduser()
    if path.is_dir():
        raise ValueError(f"out={path} is a folder: write out={path / 'speeds.json'}")
    if not path.parent.is_dir():
        raise ValueError(f"out={path}: there is no folder {path.parent}: make it first")
    return path


def _keep(out: Path | None, report: dict[str, Any]) -> None:
    from vitrail.storage import write_json

    if out is None:
        return
    try:
        write_json(out, report)
    except OSError as error:
        raise ValueError(f"out={out} can't be written ({error.strerror or error}): choose another file") from None


def read_batches(text: str) -> list[int]:
    """Numbers of images between commas."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ValueError(f"--batch takes whole numbers with commas between them, such as 1,16, not {text[:60]!r}")
    return [int(part) for part in parts]


def _compare(
    source: str, settings: dict[str, Any], arguments: argparse.Namespace, options: dict[str, Any]
) -> "Comparison":
    from vitrail.inference.choosing import Candidate, choose_engines, compare_candidates, write_candidates
    from vitrail.inference.detector_speed import ENGINE, time_detector
    from vitrail.inference.export_record import is_exported
    from vitrail.inference.exported import check_openable
    from vitrail.inference.exporting import AUTO, ExportSettings
    from vitrail.inference.passes import load_seeing

    place = Path(source).expanduser()
    if is_exported(place):
        record = check_openable(place)
        _check_export(source, settings, arguments, engine=record.engine, precision=record.precision)
        return compare_candidates({record.engine: Candidate(place, record)}, images=None, told=tell, **options)
    trained = load_seeing(source, settings)
    if trained.task == "detect":
        if arguments.engines not in (None, ENGINE) or arguments.precision not in (None, "fp32"):
            raise ValueError(f"{source} is a detector, which {ENGINE} alone takes, in fp32: leave the others out")
        return time_detector(partial(load_seeing, source, settings), told=tell, **options)
    chosen = ExportSettings(engine=AUTO, precision=arguments.precision or AUTO)
    engines = choose_engines(read_engines(arguments.engines), precision=chosen.precision)
    with tempfile.TemporaryDirectory(prefix="vitrail-benchmark-") as folder:
        candidates = write_candidates(trained, chosen, engines=engines, source=source, folder=Path(folder))
        return compare_candidates(candidates, images=None, told=tell, **options)


def _check_export(
    source: str, settings: dict[str, Any], arguments: argparse.Namespace, *, engine: str, precision: str
) -> None:
    """Refuse what an export, which is timed as it is, can't heed."""
    from vitrail.inference.engines import find_engine

    asked = read_engines(arguments.engines)
    for name in asked:
        find_engine(name)
    if asked and engine not in asked:
        raise ValueError(f"{source} is an export to {engine}: leave --engines out, or benchmark the run")
    if arguments.precision not in (None, precision):
        raise ValueError(f"{source} is an export in {precision}: leave --precision out, or benchmark the run")
    for key in _KEYS[1:]:
        if key in settings:
            raise ValueError(f"{source} is an export, which is timed as it is: leave {key}= out")


def _show(source: str, comparison: "Comparison") -> None:
    from vitrail.inference.benchmarking import COLUMNS, table_rows

    print(source)
    _print_table([COLUMNS, *table_rows(comparison)])
    print(f"fastest here: {comparison.engine} with {comparison.way}")


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as what they hold; all but the first end on one line."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))]
        print("  ".join(cells).rstrip())


def _measure_as_papers(
    sources: list[str], settings: dict[str, Any], arguments: argparse.Namespace, out: Path | None
) -> int:
    from vitrail.inference.export_record import is_exported
    from vitrail.inference.paper_speeds import COLUMNS, measure_as_papers, rows_of
    from vitrail.inference.passes import load_seeing

    for name in ("batch", "engines", "precision", "seconds", "no_memory"):
        if getattr(arguments, name) not in (None, False):
            told = "--papers measures torch with the largest batch that fits, and 30 runs"
            raise ValueError(f"{told}: leave --{name.replace('_', '-')} out")
    for source in sources:
        if is_exported(Path(source).expanduser()):
            raise ValueError(
                f"{source} is an export, and --papers measures models as torch computes them: name the run"
            )
    largest = _LARGEST if arguments.largest is None else arguments.largest
    if largest < 1:
        raise ValueError(f"--largest is a number of at least 1, not {largest}")
    report = {}
    for source in sources:
        found = measure_as_papers(load_seeing(source, settings), largest=largest, told=tell)
        report[source] = found.describe()
        _keep(out, report)
        if not arguments.json:
            _print_table([COLUMNS, *rows_of(source, found)])
    if arguments.json:
        print(json.dumps(report, indent=2))
    return 0
