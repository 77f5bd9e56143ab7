"""Name what images show: the most probable classes of each, one line an image."""

import argparse
import contextlib
import csv
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TextIO

SUMMARY = "name the classes of images"

Answers = Sequence[tuple[str, float]]  # classes and their probabilities, the most probable first
Write = Callable[[str, Answers], object]

_INCOMPLETE, _NOTHING = 1, 2  # exit codes: some images, or all, could not be read
_TRUNK = "trunk="


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `vitrail predict` takes."""
    parser.add_argument("model", metavar="RUN|MODEL", help="a folder of a run, a model or a pack, or hf://OWNER/NAME")
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="IMAGE",
        help="images, folders of them, or - for paths on stdin, one a line; trunk=PLACE says where a pack's trunk is",
    )
    parser.add_argument("--top", type=_at_least(1), default=5, help="classes for each image (default: 5)")
    parser.add_argument("--batch-size", type=_at_least(1), default=32, help="images at a time (default: 32)")
    parser.add_argument("--workers", type=_at_least(0), help="processes that read images (default: by the device)")
    parser.add_argument("--device", default="auto", help="cpu, cuda, mps (default: the best there is)")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--json", action="store_true", help="print a JSON object a line")
    kinds.add_argument("--csv", action="store_true", help="print CSV with a heading")


def run(arguments: argparse.Namespace) -> int:
    """Answer as the images come; what can't be read is named on stderr."""
    import vitrail
    from vitrail.data.sources.files import ImageFiles
    from vitrail.data.stored import printable
    from vitrail.evaluation.predict import choose_device, choose_precision
    from vitrail.inference.trained import answer, load_trained
    from vitrail.tasks.images.image_task import default_workers

    device = choose_device(arguments.device)
    words, trunk = _take_trunk(arguments.paths)
    trained = load_trained(arguments.model, trunk=trunk)
    trained.require_classifier(arguments.model)
    paths = find_images(words)
    names = trained.class_names
    if trained.classes is None:
        print("the model says no names of its classes: they are numbers", file=sys.stderr)
    top = min(arguments.top, len(names))
    write = _make_writer(sys.stdout, top=top, is_json=arguments.json, is_csv=arguments.csv)
    num_unread = 0

    with _show_progress(len(paths)) as advance:

        def note_unread(path: str, detail: str) -> None:
            nonlocal num_unread
            num_unread += 1
            print(f"vitrail: {path}: {detail}", file=sys.stderr)
            advance(1)

        answers = answer(
            dataclasses.replace(trained, model=vitrail.fold(trained.model)),
            ImageFiles(paths),
            device=device,
            dtype=choose_precision("auto", device),
            batch_size=arguments.batch_size,
            workers=default_workers(device) if arguments.workers is None else arguments.workers,
            note_unread=lambda problem: note_unread(problem.path, problem.detail),
        )
        for logits, batch in answers:
            values, indices = (column.tolist() for column in logits.softmax(dim=1).topk(top, dim=1))
            for place, row, probabilities in zip(batch.indices.tolist(), indices, values, strict=True):
                write(printable(paths[place]), [(names[i], p) for i, p in zip(row, probabilities, strict=True)])
            sys.stdout.flush()
            advance(len(logits))
    if num_unread == len(paths):
        return _NOTHING
    return _INCOMPLETE if num_unread else 0


def _at_least(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"a whole number of at least {least}, not {text!r}")
        return int(text)

    return read


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


def _make_writer(file: TextIO, *, top: int, is_json: bool, is_csv: bool) -> Write:
    """What writes the answers for one image as one line."""
    if is_json:
        return lambda path, answers: print(json.dumps(_as_record(path, answers)), file=file)
    if is_csv:
        writer = csv.writer(file, lineterminator="\n")
        numbers = range(1, top + 1)
        writer.writerow(["path", *(name for n in numbers for name in (f"class_{n}", f"probability_{n}"))])
        return lambda path, answers: writer.writerow(
            [path, *(cell for name, p in answers for cell in (name, f"{p:.6f}"))]
        )
    return lambda path, answers: print(path, *(f"{name} {p:.1%}" for name, p in answers), sep="  ", file=file)


def _as_record(path: str, answers: Answers) -> dict[str, object]:
    return {"path": path, "answers": [{"class": name, "probability": round(p, 6)} for name, p in answers]}


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
