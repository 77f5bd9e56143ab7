"""What tests of exports and of benchmarks share: a tiny run, its exports, and an error of one line."""

from pathlib import Path

import pytest

import vitrail
from vitrail.cli import main


def export_run(run: Path, *, to: str) -> Path:
    """The run exported to an engine, beside it; its files are noted as those of a user who owns them."""
    folder = run.parent / to
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITRAIL_CACHE", str(run.parent / "cache"))
        vitrail.export(run, to=to, out=folder)
    return folder


def error_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line that a command line ends with, and exit code 2."""
    assert main(list(words)) == 2
    told = capsys.readouterr().err.strip().splitlines()
    assert len(told) == 1, told
    return told[0]
