"""The command line: finds the verb, runs it, and turns every user error into one line on stderr and exit code 2."""

import argparse
import contextlib
import difflib
import logging
import os
import signal
import sys
from typing import TYPE_CHECKING, NoReturn

import vitrail
from vitrail.cli import (
    benchmark,
    check,
    download,
    evaluate,
    explain,
    export,
    gallery,
    inspect,
    models,
    pack,
    plan,
    predict,
    pretrain,
    preview,
    probe,
    recipes,
    retrieve,
    serve,
    shards,
    train,
    translate,
)
from vitrail.cli.together import VERBS as VERBS_OF_PASSES
from vitrail.cli.together import run_together, take_processes, tell_once
from vitrail.settings.own import allow_own, trusting_files

if TYPE_CHECKING:
    from vitrail.evaluation.together import Together

# The one table of verbs. A verb is a module with `SUMMARY`, `add_arguments(parser)` and `run(arguments) -> int`; it
# imports whatever is heavy inside `run`, so that help answers at once.
VERBS = {
    "models": models,
    "download": download,
    "recipes": recipes,
    "check": check,
    "preview": preview,
    "plan": plan,
    "train": train,
    "pretrain": pretrain,
    "evaluate": evaluate,
    "predict": predict,
    "translate": translate,
    "probe": probe,
    "retrieve": retrieve,
    "explain": explain,
    "inspect": inspect,
    "gallery": gallery,
    "pack": pack,
    "export": export,
    "benchmark": benchmark,
    "serve": serve,
    "shards": shards,
}

_TRUST = "--trust"
_REST = ("settings", "texts")  # what a verb calls the words that it takes any number of
_WITHOUT_FILES = ("models", "download")  # verbs that read no recipe, run or model of anyone's
_TOO_LARGE = "lower image_size, batch_size or run.micro_batch, or take a smaller model"
_NO_MEMORY = ("can't allocate memory", "out of memory", "Storage size calculation overflowed")  # torch's words
_BAD_USAGE = 2
_INTERRUPTED = 130  # 128 + SIGINT, what shells report
_BROKEN_PIPE = 141  # 128 + SIGPIPE


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are exceptions without usage lines, and name what was probably meant."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message} (see `{self.prog} --help`)")

    def reject(self, word: str) -> NoReturn:
        """Raise for a word that this parser has no place for."""
        if not word.startswith("-"):
            self.error(f"unexpected argument {word!r}")
        option = word.partition("=")[0]
        self.error(f"unknown option {option!r}{_suggest(option, self.options)}")

    @property
    def options(self) -> list[str]:
        return [name for action in self._actions for name in action.option_strings]


def main(argv: list[str] | None = None) -> int:
    """Run the command line `argv` (the process's own when None) and return its exit code."""
    code = _answer(argv)
    if "RANK" in os.environ:
        _leave_at_once(code)
    return code


def _leave_at_once(code: int) -> NoReturn:
    """End a process that trained with others before the interpreter takes its modules apart.

    Threads of the collectives may still run by then, and the process would end by an abort now and then.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)


def _answer(argv: list[str] | None) -> int:
    """The exit code of a command line; every way in which it may end is one of them."""
    words = sys.argv[1:] if argv is None else argv
    allow_own(*words)
    try:
        code = _run(words)
        sys.stdout.flush()  # a closed pipe shows here rather than at the interpreter's exit
    except ValueError as error:
        tell_once()
        print("vitrail: error:", " ".join(str(error).split()), file=sys.stderr)
        return _BAD_USAGE
    except (MemoryError, RuntimeError) as error:
        if not _is_of_memory(error):
            raise
        print(f"vitrail: error: there is not enough memory for this: {_TOO_LARGE}", file=sys.stderr)
        return _BAD_USAGE
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 0
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader has left, as in `vitrail models | head`. The interpreter flushes once more at exit: into nothing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    return code


def _is_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or any(words in str(error) for words in _NO_MEMORY)


class _VerbsFormatter(argparse.HelpFormatter):
    """Help that keeps the longest verb and its summary in one line."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog)
        self._action_max_length = max(map(len, VERBS)) + 4  # argparse forgets that verbs are indented


def _run(argv: list[str]) -> int:
    parser = _Parser(
        prog="vitrail",
        allow_abbrev=False,
        description="Vision transformers and their relatives.",
        formatter_class=_VerbsFormatter,
    )
    parser.add_argument("--version", action="version", version=f"vitrail {vitrail.__version__}")
    subparsers = parser.add_subparsers(title="verbs", metavar="VERB")
    parsers = {}
    for name, module in VERBS.items():
        parsers[name] = subparsers.add_parser(name, help=module.SUMMARY, description=module.__doc__, allow_abbrev=False)
        module.add_arguments(parsers[name])
        if name not in _WITHOUT_FILES:
            trust = "import code (module:name) that a recipe, run or model names without your having typed it"
            parsers[name].add_argument(_TRUST, action="store_true", help=trust)

    # No option before the verb takes a value, so the first word is the verb: looked up here for a better message.
    verb = next((word for word in argv if not word.startswith("-")), None)
    if verb == "help":
        raise ValueError("help is an option, not a verb: vitrail --help")
    if verb is not None and verb not in VERBS:
        parser.error(f"unknown verb {verb!r}{_suggest(verb, list(VERBS))}")
    goes_over_data = verb in VERBS_OF_PASSES
    argv, processes = take_processes(argv) if goes_over_data else (argv, {})
    words = argv
    trusts = verb not in (None, *_WITHOUT_FILES) and _TRUST in argv
    if trusts:  # anywhere, also behind an action of the verb
        argv = [word for word in argv if word != _TRUST]
    try:
        arguments, unknown = parser.parse_known_args(argv)
    except SystemExit:  # --help and --version have printed their answer
        return 0
    rest = next((name for name in _REST if hasattr(arguments, name)), None)
    if rest is not None and unknown and not any(word.startswith("-") for word in unknown):
        # words after an option, which argparse no longer expects
        setattr(arguments, rest, [*getattr(arguments, rest), *unknown])
        unknown = []
    if unknown and verb is not None:
        word = unknown[0]
        is_early = word in argv[: argv.index(verb)]
        if is_early and word in parsers[verb].options:
            raise ValueError(f"{word} is an option of {verb}: put it after the verb: vitrail {verb} {word}")
        (parser if is_early else parsers[verb]).reject(word)
    if unknown:
        parser.reject(unknown[0])
    if verb is None:
        parser.error(f"a verb is missing: {', '.join(VERBS)}")
    if (
        verb not in ("train", "pretrain") and signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    ):  # a run notes Ctrl-C as soon as it steps
        signal.signal(signal.SIGINT, signal.default_int_handler)
    arguments.trust = trusts
    with trusting_files() if trusts else contextlib.nullcontext():
        if not goes_over_data:
            return VERBS[verb].run(arguments)

        def run(world: "Together") -> int:
            arguments.world = world
            return VERBS[verb].run(arguments)

        return run_together(words, processes, run)


def _suggest(word: str, choices: list[str]) -> str:
    nearest = difflib.get_close_matches(word, choices, n=1)
    return f", did you mean {nearest[0]!r}?" if nearest else ""
