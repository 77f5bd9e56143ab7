"""Say what images show: the most probable classes of each, or its objects, one line an image."""

import argparse
import contextlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from vitrail.cli.saved_answers import Begun, SavedAnswers
from vitrail.inference.passes import MODEL_HELP
from vitrail.storage import CsvWriter

if TYPE_CHECKING:
    from vitrail.data.quarantine import Problem
    from vitrail.inference.trained import Trained
    from vitrail.tasks.results import Answer

SUMMARY = "name the classes or objects of images"

_INCOMPLETE, _NOTHING = 1, 2  # exit codes: some images, or all, could not be read
_TRUNK = "trunk="
_ERROR = "error"  # the column and key of what could not be read


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `vitrail predict` takes."""
    parser.add_argument("model", metavar="RUN|MODEL", help=MODEL_HELP)
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="IMAGE",
        help="images, folders of them, or - for paths on stdin, one a line; trunk=PLACE says where a pack's trunk is, "
        "init=FILE gives weights to a model by name",
    )
    parser.add_argument(
        "--top", type=_at_least(1), default=5, help="classes or objects told of each image (default: 5)"
    )
    parser.add_argument(
        "--threshold",
        type=_probability,
        help="leave out objects of a lower probability, such as 0.3 (default: all that the detector says are told, and "
        "those of at least 0.5 drawn)",
    )
    parser.add_argument("--batch-size", type=_at_least(1), default=32, help="images at a time (default: 32)")
    parser.add_argument("--workers", type=_at_least(0), help="processes that read images (default: by the device)")
    parser.add_argument("--device", default="auto", help="cpu, cuda, mps (default: the best there is)")
    parser.add_argument(
        "--out", metavar="FOLDER", help="leave pictures and files of what was found: overlays, COCO JSON, YOLO text"
    )
    parser.add_argument(
        "--save",
        metavar="FILE",
        help="write answers to FILE.csv or FILE.jsonl as they come; the same command goes on with one that was ended",
    )
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument(
        "--json", action="store_true", help="print a JSON object an image, with an error where it can't be read"
    )
    kinds.add_argument(
        "--csv",
        action="store_true",
        help="print CSV with a heading; the last column is the error of what can't be read",
    )


def run(arguments: argparse.Namespace) -> int:
    """Answer as the images come; what can't be read is named on stderr."""
    from vitrail.data.sources.files import ImageFiles
    from vitrail.inference.answering import answer_together
    from vitrail.inference.passes import Passes, join_init_of
    from vitrail.inference.trained import load_trained
    from vitrail.tasks import find_task

    world = arguments.world
    words, trunk = _take_trunk(arguments.paths)
    model, *words = join_init_of(arguments.model, words)
    if arguments.out is not None:
        _refuse_within(arguments.out, words)
    trained = load_trained(model, trunk=trunk)
    trained.require_classifier(model)
    paths = world.share(find_images(words) if world.is_main else None)  # stdin is the main process's
    if trained.classes is None:
        print("the model says no names of its classes: they are numbers", file=sys.stderr)
    settings: dict[str, Any] = {"device": arguments.device, "batch_size": arguments.batch_size}
    if arguments.workers is not None:
        settings["workers"] = arguments.workers
    saved, begun = _open_saved(arguments, trained, paths), Begun()

    with contextlib.ExitStack() as stack:
        if saved is not None:
            if world.is_main:
                stack.enter_context(saved.held())
            begun = world.share(saved.begin() if world.is_main else None)
        data, num_unread = ImageFiles(paths[begun.num_rows :]), begun.num_unread
        advance = stack.enter_context(_show_progress(len(data)))
        writer = _make_writer(sys.stdout, is_json=arguments.json, is_csv=arguments.csv)
        if saved is not None and world.is_main:
            file = stack.enter_context(saved.writing())
            writer = _JsonLines(file) if saved.is_json else _CsvLines(file, columns=begun.columns)

        def note_unread(problem: "Problem") -> None:
            nonlocal num_unread
            num_unread += 1
            print(f"vitrail: {problem.path}: {problem.detail}", file=sys.stderr)
            writer.write_unread(problem)
            advance(1)

        passes = Passes(data, None, settings, world=world)
        task = find_task(trained.task)
        answers = answer_together(
            passes,
            lambda note: task.answer(trained, data, passes=passes, top=arguments.top, note_unread=note),
            note_unread,
        )
        if arguments.threshold is not None:
            answers = (answer.above(arguments.threshold) for answer in answers)
        if arguments.out is not None and world.is_main:
            answers = task.keep(answers, trained=trained, data=data, folder=_make_folder(arguments.out))
        for answer in answers:
            writer.write(answer)
            advance(1)
        writer.close()
    if saved is not None:
        print(f"{len(paths):,} images are in {saved.path}")
    if num_unread == len(paths):
        return _NOTHING
    return _INCOMPLETE if num_unread else 0


def _open_saved(arguments: argparse.Namespace, trained: "Trained", paths: Sequence[str]) -> SavedAnswers | None:
    """The file that answers are kept in, if one is asked for."""
    if arguments.save is None:
        return None
    if arguments.json or arguments.csv or arguments.out:
        raise ValueError(
            "--save FILE.csv or FILE.jsonl says how answers are written: leave --json, --csv and --out out"
        )
    from vitrail.storage import describe_settings, hash_text
    from vitrail.storage.tensors import hash_tensors

    settings = describe_settings((trained.model.family, trained.model.config, trained.view, trained.normalize))
    weights = hash_tensors(trained.model.state_dict())
    return SavedAnswers(
        arguments.save, key=hash_text(f"{settings} {weights} {arguments.top} {arguments.threshold}"), paths=paths
    )


def _refuse_within(out: str, words: Sequence[str]) -> None:
    """Refuse a folder for pictures inside one that images are read from: the next time they would be among them."""
    folder = Path(out).expanduser().resolve()
    for word in words:
        if os.path.isdir(word) and folder.is_relative_to(Path(word).resolve()):
            raise ValueError(
                f"{out} lies inside {word}, where its pictures would be read as images: choose another --out"
            )


def _make_folder(place: str) -> Path:
    """The folder, which is made if need be."""
    folder = Path(place).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot write to {place}: {error.strerror}") from None
    return folder


def _at_least(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"a whole number of at least {least}, not {text!r}")
        return int(text)

    return read


def _probability(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0.0 <= number <= 1.0:
        raise argparse.ArgumentTypeError(f"a probability from 0 to 1, such as 0.3, not {text!r}")
    return number


def _take_trunk(words: Sequence[str]) -> tuple[list[str], str | None]:
    """The words without trunk=PLACE, and the place."""
    places = [word.removeprefix(_TRUNK) for word in words if word.startswith(_TRUNK)]
    return [word for word in words if not word.startswith(_TRUNK)], places[-1] if places else None


def find_images(words: Sequence[str]) -> list[str]:
    """Files as they are given, those below folders in the order of their names, and those that stdin lists."""
    paths: list[str] = []
    for word in words:
        if word == "-":
            listed = (line.rstrip("\r\n") for line in sys.stdin)
            paths += [path for path in listed if path.strip()]
        elif os.path.isdir(word):
            paths += _walk(word)
        elif os.path.exists(word):
            paths.append(word)
        else:
            raise ValueError(f"no image or folder {word!r}")
    if not words:
        raise ValueError("no image given: name images or folders of them")
    if not paths:
        raise ValueError(f"no image found in {', '.join('stdin' if word == '-' else word for word in words)}")
    return paths


def _walk(folder: str) -> Iterator[str]:
    from vitrail.data.sources.folder import EXTENSIONS

    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if name.lower().endswith(EXTENSIONS) and not name.startswith("."):
                yield os.path.join(place, name)


class _Lines:
    """Prints answers for people, one a line and each at once; what can't be read is told on stderr alone."""

    def __init__(self, file: TextIO) -> None:
        self.file = file

    def write(self, answer: "Answer") -> None:
        print(answer, file=self.file, flush=True)

    def write_unread(self, problem: "Problem") -> None:
        pass

    def close(self) -> None:
        pass


class _JsonLines(_Lines):
    """Prints a JSON object an image: its answers, or the error."""

    def write(self, answer: "Answer") -> None:
        print(json.dumps(answer.record()), file=self.file, flush=True)

    def write_unread(self, problem: "Problem") -> None:
        print(json.dumps({"path": problem.path, "error": problem.detail}), file=self.file, flush=True)


class _CsvLines(_Lines):
    """Prints a row an image, with the error in the last column; the first answer says which columns there are."""

    def __init__(self, file: TextIO, *, columns: Sequence[str] | None = None) -> None:
        super().__init__(file)
        self.writer = CsvWriter(file)
        self.columns = None if columns is None else list(columns)
        self.waiting: list[dict[str, str]] = []  # rows until the columns are known

    def write(self, answer: "Answer") -> None:
        cells = answer.cells()
        if self.columns is None:
            self._begin(list(cells))
        self._add(cells)

    def write_unread(self, problem: "Problem") -> None:
        self._add({"path": problem.path, _ERROR: problem.detail})

    def close(self) -> None:
        if self.columns is None:
            self._begin(["path"])

    def _begin(self, columns: list[str]) -> None:
        self.columns = [*columns, _ERROR]
        self.writer.write([self.columns])
        for cells in self.waiting:
            self._add(cells)

    def _add(self, cells: Mapping[str, str]) -> None:
        if self.columns is None:
            self.waiting.append(dict(cells))
            return
        self.writer.write([[cells.get(column, "") for column in self.columns]])
        self.file.flush()


def _make_writer(file: TextIO, *, is_json: bool, is_csv: bool) -> _Lines:
    return _JsonLines(file) if is_json else _CsvLines(file) if is_csv else _Lines(file)


@contextlib.contextmanager
def _show_progress(total: int) -> Iterator[Callable[[int], object]]:
    """A bar on stderr where that is a terminal; none if the answers themselves scroll by there."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    is_shown = console.is_terminal and not sys.stdout.isatty()
    with Progress(console=console, transient=True, disable=not is_shown, redirect_stdout=False) as bars:
        task = bars.add_task("predict", total=total)
        yield lambda count: bars.advance(task, count)
