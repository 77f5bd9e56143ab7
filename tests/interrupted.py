"""Ctrl-C in the middle of writing, at the moments that matter."""

from collections.abc import Callable
from pathlib import Path

import pytest

Rename = Callable[[Path, Path], Path]


def interrupt(monkeypatch: pytest.MonkeyPatch, *, at: int, is_after: bool) -> None:
    """Ctrl-C just before the rename of number `at`, counted from 1, or just after it."""
    num_left = at

    def interrupted(rename: Rename) -> Rename:
        def renamed(path: Path, target: Path) -> Path:
            nonlocal num_left
            num_left -= 1
            if num_left == 0 and not is_after:
                raise KeyboardInterrupt
            found = rename(path, target)
            if num_left == 0:
                raise KeyboardInterrupt
            return found

        return renamed

    for name in ("rename", "replace"):
        monkeypatch.setattr(Path, name, interrupted(getattr(Path, name)))
