"""Code of a user's own by `module:name`, run only where the user has said that very text, never because a file has it.

Recipes, run folders and models travel between people. What a text in them names is imported only after `allow_own` was
told the same text: the command line tells it every word that was typed, Python code calls it, and the environment
variable VITRAIL_OWN holds texts with commas between them. `trusting_files`, the option --trust, takes a file's word.
"""

import importlib
import importlib.machinery
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

ENVIRONMENT_VARIABLE = "VITRAIL_OWN"
OWN_PATTERN = r"^(?P<module>[^\W\d]\w*(\.[^\W\d]\w*)*):(?P<name>[^\W\d]\w*)$"
_OWN = re.compile(OWN_PATTERN)
_allowed: set[str] = set()
_trusts_files: ContextVar[bool] = ContextVar("trusts_files", default=False)


def is_own(text: str) -> bool:
    """Whether a text has the form `module:name`."""
    return _OWN.fullmatch(text) is not None


def allow_own(*texts: str) -> None:
    """Let `load_own` import what these texts name: `module:name`, `key=module:name`, several with commas.

    What has another form is passed over, so that all words of a command line may be given.
    """
    for text in texts:
        _allowed.update(part for part in re.split(r"[=,\s]", text) if is_own(part))


@contextmanager
def trusting_files() -> Iterator[None]:
    """Let files name code too, inside the block: the user has said that they may."""
    token = _trusts_files.set(True)
    try:
        yield
    finally:
        _trusts_files.reset(token)


def are_files_trusted() -> bool:
    """Whether files may name code, or hold some."""
    return _trusts_files.get()


def allowed_texts() -> str:
    """What may be imported, as the environment variable has it: for processes that this one starts."""
    given = os.environ.get(ENVIRONMENT_VARIABLE, "").split(",")
    return ",".join(sorted(_allowed.union(filter(None, given))))


def load_own(text: str, *, what: str) -> Callable[..., Any]:
    """The callable that `module:name` names, from the working directory or the python path; `what` is for messages."""
    match = _OWN.fullmatch(text)
    if match is None:
        raise ValueError(f"the {what} {text} is not written as module:name, such as mine:{what.replace(' ', '_')}")
    if not _is_allowed(text):
        raise ValueError(
            f"the {what} {text} is code that a file names, and nothing of it was run: it would import "
            f"{_find_file(match['module'])} and call {match['name']}; if you trust it, add --trust or name {text} in "
            f"the command itself ({ENVIRONMENT_VARIABLE}={text} does it too, in Python vitrail.allow_own({text!r}))"
        )
    with working_directory_on_path():
        return _import(text, module=match["module"], name=match["name"], what=what)


def _is_allowed(text: str) -> bool:
    return _trusts_files.get() or text in _allowed or text in os.environ.get(ENVIRONMENT_VARIABLE, "").split(",")


def _find_file(module: str) -> str:
    """The file that an import of the module would run first, found without running it; else the module's name."""
    package = module.partition(".")[0]
    found = importlib.machinery.PathFinder.find_spec(package, [os.getcwd(), *sys.path])
    return found.origin if found is not None and found.origin is not None else module


@contextmanager
def working_directory_on_path() -> Iterator[None]:
    """Let imports look into the working directory first, as in `python -m`."""
    before = list(sys.path)
    sys.path.insert(0, os.getcwd())
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = before


def _import(text: str, *, module: str, name: str, what: str) -> Callable[..., Any]:
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
            raise ValueError(
                f"the {what} {text}: there is no module {module} on the python path or in the working directory"
            ) from None
        raise ValueError(f"the {what} {text}: {module} needs the module {error.name}, which is missing") from None
    found = getattr(imported, name, None)
    if not callable(found):
        lack = "has no" if found is None else "holds no callable"
        raise ValueError(f"the {what} {text}: {module} {lack} function {name}")
    return found
