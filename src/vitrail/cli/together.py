"""Verbs that go over data in several processes: `devices=N nodes=M`, or started by torchrun."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitrail.evaluation.together import Together

VERBS = ("evaluate", "predict", "probe", "retrieve", "explain", "gallery")
_KEYS = ("devices", "nodes")
_PATIENCE = timedelta(days=1)  # a process may be that far ahead; one that is gone is noticed at once
_OWN_CODES = (1, 141)  # of the main process, which say that images could not be read or the reader of a pipe has left


def take_processes(words: Sequence[str]) -> tuple[list[str], dict[str, int]]:
    """The words without devices=N and nodes=M, and what those say."""
    asked = {}
    for word in words:
        key, sign, text = word.partition("=")
        if sign and key in _KEYS:
            if not text.isdecimal() or int(text) < 1:
                raise ValueError(f"{key} must be a whole number of at least 1, not {text!r}")
            asked[key] = int(text)
    rest = [word for word in words if word.partition("=")[0] not in _KEYS or "=" not in word]
    return rest, asked


def run_together(words: Sequence[str], asked: Mapping[str, int], run: "Callable[[Together], int]") -> int:
    """Run a verb in this process, which may be one of several, or in several that it starts; the exit code.

    `words` are those of the command without devices and nodes, which are in `asked`.
    """
    if "RANK" not in os.environ and max(asked.values(), default=1) == 1:
        from vitrail.evaluation.together import Alone

        return run(Alone())

    if "RANK" not in os.environ:
        from vitrail.settings.running import RunSettings
        from vitrail.training.parallel.launch import launch

        settings = RunSettings(devices=asked.get("devices", 1), nodes=asked.get("nodes", 1))
        return launch(words, settings, reads_input="-" in words, own_codes=_OWN_CODES)

    from vitrail.evaluation.predict import choose_device
    from vitrail.training.parallel.distributed import joined_world

    # What processes tell each other is small and on the CPU: gloo, whatever the device.
    with contextlib.ExitStack() as stack:
        device = choose_device(_device_in(words))
        world, _ = stack.enter_context(joined_world(device, timeout=_PATIENCE, backend="gloo"))
        if not world.is_main:
            stack.enter_context(_silence())
        code = run(world)
        return code if world.is_main else 0


def tell_once() -> None:
    """Leave it to the main process to tell an error, where it has the same; called before it is told."""
    if "RANK" in os.environ:
        from vitrail.training.parallel.launch import let_main_tell

        let_main_tell()


def refuse_several(world: "Together", what: str) -> None:
    """Refuse several processes where there is no pass over data that they could share."""
    if world.num_ranks > 1:
        raise ValueError(f"{what} is the work of one process: leave devices= out, or start it without torchrun")


def _device_in(words: Sequence[str]) -> str:
    """The device that the words of a command ask for."""
    found = "auto"
    for place, word in enumerate(words):
        for start in ("device=", "--device="):
            if word.startswith(start):
                found = word.removeprefix(start)
        if word == "--device" and place + 1 < len(words):
            found = words[place + 1]
    return found


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Nothing that is said in the block is heard; an error leaves it as always."""
    with contextlib.ExitStack() as stack:
        nowhere = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
        stack.enter_context(contextlib.redirect_stdout(nowhere))
        stack.enter_context(contextlib.redirect_stderr(nowhere))
        yield
