"""Translate sentences: those given, those of files, or those that come on stdin, one a line."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitrail.translation.translator import TranslatedLine

SUMMARY = "translate sentences"

_ENDINGS = (".txt", ".tsv", ".gz", ".xz", ".bz2")  # of words that mean files
_AT_ONCE = 1000  # lines that are translated together


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `vitrail translate` takes."""
    parser.add_argument("model", metavar="RUN|MODEL", help="a folder of a run or a saved model, or hf://OWNER/NAME")
    parser.add_argument(
        "texts", nargs="*", metavar="TEXT|FILE", help="sentences, or files with one a line (.gz too); none or -: stdin"
    )
    parser.add_argument("--beam", type=int, default=4, help="translations that the search goes on with (default: 4)")
    parser.add_argument("--length-penalty", type=float, default=0.6, help="0: none (default: 0.6)")
    parser.add_argument("--device", default="auto", help="cpu, cuda, mps (default: the best there is)")
    parser.add_argument("--json", action="store_true", help="print a JSON object a line, with scores")


def run(arguments: argparse.Namespace) -> int:
    """Translate, and print a line for each; what could not be translated as it is goes to stderr."""
    from vitrail.inference.translators import load_translator
    from vitrail.translation.translator import SearchSettings

    settings = SearchSettings(beam=arguments.beam, length_penalty=arguments.length_penalty)
    translator = load_translator(arguments.model, device=arguments.device)
    for lines in _chunks(arguments.texts):
        for answer in translator.translate(lines, settings):
            _print(answer, is_json=arguments.json)
    return 0


def _print(answer: "TranslatedLine", *, is_json: bool) -> None:
    for remark in answer.remarks:
        print(f"vitrail: {answer.source[:60]!r}: {remark}", file=sys.stderr)
    print(json.dumps(answer.record(), ensure_ascii=False) if is_json else answer.text, flush=True)


def _chunks(words: Sequence[str]) -> Iterator[list[str]]:
    """Lines to translate, some at a time: what is typed at a terminal at once."""
    for word in words or ("-",):
        if word == "-":
            yield from _read_stdin()
        elif Path(word).is_file():
            yield from _cut(_read_file(Path(word)))
        elif len(word.split()) == 1 and Path(word).suffix in _ENDINGS:
            raise ValueError(f"{word}: no such file; what is to be translated as it stands ends otherwise")
        else:
            yield [word]


def _read_file(path: Path) -> list[str]:
    from vitrail.translation.parallel_text import decode, read_bytes

    lines = list(decode(read_bytes(path), name=str(path)))
    if not lines:
        raise ValueError(f"{path} is empty: there is nothing to translate")
    return lines


def _read_stdin() -> Iterator[list[str]]:
    if sys.stdin.isatty():
        for line in sys.stdin:
            yield [line.rstrip("\r\n")]
        return
    from vitrail.translation.parallel_text import decode, split_lines

    yield from _cut(list(decode(split_lines(sys.stdin.buffer.read()), name="stdin")))


def _cut(lines: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(lines), _AT_ONCE):
        yield lines[start : start + _AT_ONCE]
