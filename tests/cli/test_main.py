"""The command line's manners: help, exit codes, and one line for every user error."""

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import vitrail
from vitrail.cli import VERBS, main, models


def test_help_names_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out, err = capsys.readouterr()
    assert all(f"{name} " in out and module.SUMMARY in out for name, module in VERBS.items())
    assert err == ""


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"]) == 0
    assert f"usage: vitrail {verb}" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"vitrail {vitrail.__version__}\n"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "a verb is missing: models"),
        (["modles"], "unknown verb 'modles', did you mean 'models'?"),
        (["quux"], "unknown verb 'quux' (see `vitrail --help`)"),
        (["--verison"], "unknown option '--verison', did you mean '--version'?"),
        (["models", "--jsno"], "unknown option '--jsno', did you mean '--json'?"),
        (["models", "--js"], "unknown option '--js'"),
        (["models", "--json=yes"], "--json: ignored explicit argument 'yes' (see `vitrail models --help`)"),
        (["--json", "models"], "--json is an option of models: put it after the verb: vitrail models --json"),
        (["--verison", "models"], "unknown option '--verison', did you mean '--version'? (see `vitrail --help`)"),
        (["help"], "help is an option, not a verb: vitrail --help"),
        (["check", "photos", "others"], "unexpected argument 'others'"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("vitrail: error: ")
    assert said in err
    assert err.count("\n") == 1
    assert err.endswith("\n")


def test_a_library_error_of_two_lines_becomes_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(arguments: argparse.Namespace) -> int:
        raise ValueError("the image is 225 pixels wide;\n  resize it to 224")

    monkeypatch.setattr(models, "run", fail)
    assert main(["models"]) == 2
    assert capsys.readouterr().err == "vitrail: error: the image is 225 pixels wide; resize it to 224\n"


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(arguments: argparse.Namespace) -> int:
        raise KeyError("a bug")

    monkeypatch.setattr(models, "run", fail)
    with pytest.raises(KeyError):
        main(["models"])


def test_interrupt_is_quiet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(arguments: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(models, "run", interrupt)
    assert main(["models"]) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.skipif(sys.platform == "win32", reason="pipes close differently on Windows")
def test_a_closed_pipe_is_quiet() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-c", "import sys; from vitrail.cli import main; sys.exit(main())", "models", "--json"]
    try:
        finished = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(writer)
    assert finished.returncode == 141
    assert finished.stderr == b""


def test_the_installed_script_is_this_main() -> None:
    script = Path(sys.executable).with_name("vitrail")
    if not script.exists():
        pytest.skip("vitrail is importable but not installed beside this Python")
    finished = subprocess.run([script, "nonsense"], capture_output=True, text=True, check=False)
    assert finished.returncode == 2
    assert finished.stderr.startswith("vitrail: error: unknown verb 'nonsense'")


# Ctrl-C when a module is about to be imported, which is where start-up spends its time.
INTERRUPTED = """
import os, runpy, signal, sys
class Interrupting:
    def find_spec(self, name, *_):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)
module = sys.argv.pop(1)
sys.meta_path.insert(0, Interrupting())
runpy.run_module("vitrail", run_name="__main__", alter_sys=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
@pytest.mark.parametrize("module", ["vitrail.cli.train", "vitrail.recipes", "numpy", "vitrail.training.start"])
def test_ctrl_c_during_start_up_is_quiet(module: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", INTERRUPTED, module, "train", "small", "data=shapes", f"out={tmp_path / 'run'}"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (finished.returncode, finished.stdout, finished.stderr) == (-signal.SIGINT, "", "")
    assert list(tmp_path.iterdir()) == []


def test_too_little_memory_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def run(_: object) -> int:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried")

    monkeypatch.setattr("vitrail.cli.recipes.run", run)
    assert main(["recipes"]) == 2
    told = "vitrail: error: there is not enough memory for this: lower image_size, batch_size or run.micro_batch"
    assert capsys.readouterr().err.startswith(told)
