"""What `vitrail check` finds in parallel text."""

import json
from pathlib import Path

import pytest
from toy_text import make_pairs, write_text

from vitrail.cli import main


def check(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, int]:
    main(["check", str(folder), "--languages", "en,de", "--json"])
    return {finding["problem"]: finding["count"] for finding in json.loads(capsys.readouterr().out)}


def append(folder: Path, split: str, *pairs: tuple[str, str]) -> None:
    for side, language in enumerate(("en", "de")):
        with (folder / f"{split}.{language}").open("a", encoding="utf-8") as file:
            file.writelines(f"{pair[side]}\n" for pair in pairs)


def test_planted_faults_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_text(tmp_path / "text", train=20, val=5)
    assert main(["check", str(folder), "--languages", "en,de"]) == 0
    assert "nothing must be fixed" in capsys.readouterr().out
    first = make_pairs(1)[0]
    append(folder, "train", ("", "x"), ("a " * 20, "b"), first, ("the same old line", "the same old line"))
    append(folder, "val", first)
    assert check(folder, capsys) == {
        "pair of val in train": 1,
        "empty line in train": 1,
        "odd ratio of lengths in train": 1,
        "copied source in train": 1,
        "duplicate pair in train": 1,
    }
    assert main(["check", str(folder), "--languages", "en,de"]) == 1
    assert "pair of val in train: 1, such as val.en:6" in capsys.readouterr().out


def test_files_that_cannot_be_read_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_text(tmp_path / "text", train=4, val=3)
    (folder / "val.en").write_bytes(b"a\n\xff\xfe\n")
    assert check(folder, capsys) == {"line that is not UTF-8": 1, "files of different lengths": 1}
    assert main(["check", str(folder), "--languages", "en"]) == 2
    assert "--languages takes two of them, such as en,de" in capsys.readouterr().err
