"""Broken files are counted, named once, listed as they come, and stop the run when they are too many."""

import csv
import logging
from pathlib import Path

import pytest
from warm import WarmProgram

from vitrail.data.exclusion import leave_out
from vitrail.data.quarantine import Problem, Quarantine, QuarantineSettings
from vitrail.data.stored import FileDataset


def problem(name: str) -> Problem:
    return Problem(path=name, split="train", problem="broken", detail="is cut off")


def rows(listing: Path) -> list[dict[str, str]]:
    with listing.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_each_broken_file_is_logged_and_listed_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    listing = tmp_path / "quarantine.csv"
    quarantine = Quarantine(QuarantineSettings(listing=listing))
    with caplog.at_level(logging.WARNING):
        quarantine.account([problem("a, b.jpg")], num_readings=10)
        quarantine.account([problem("a, b.jpg"), problem("c.jpg")], num_readings=10)
    assert [row["path"] for row in rows(listing)] == ["a, b.jpg", "c.jpg"]
    assert rows(listing)[0] == problem("a, b.jpg")._asdict()
    assert caplog.messages == ["could not read a, b.jpg: is cut off", "could not read c.jpg: is cut off"]
    assert quarantine.num_broken == 3


def test_a_run_that_goes_on_does_not_list_a_file_again(tmp_path: Path) -> None:
    settings = QuarantineSettings(listing=tmp_path / "quarantine.csv")
    Quarantine(settings).account([problem("a.jpg")], num_readings=10)
    Quarantine(settings).account([problem("a.jpg"), problem("b.jpg")], num_readings=10)
    assert [row["path"] for row in rows(tmp_path / "quarantine.csv")] == ["a.jpg", "b.jpg"]


def test_a_folder_that_is_gone_is_not_made_anew(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Quarantine(QuarantineSettings(listing=tmp_path / "run" / "quarantine.csv")).account(
            [problem("a.jpg")], num_readings=10
        )
    assert list(tmp_path.iterdir()) == []


def test_names_that_a_spreadsheet_would_compute_are_guarded_and_read_back(tmp_path: Path) -> None:
    listing = tmp_path / "quarantine.csv"
    names = ["=1.jpg", "-b.jpg", "'@c.jpg"]
    for _ in range(2):
        Quarantine(QuarantineSettings(listing=listing)).account([problem(name) for name in names], num_readings=10)
    assert [row["path"] for row in rows(listing)] == ["'=1.jpg", "'-b.jpg", "''@c.jpg"]
    data = FileDataset(name="files", split="train", root=tmp_path, paths=[*names, "whole.jpg"], levels={})
    left = leave_out(data, listing)
    assert [left.locate(index) for index in range(len(left))] == [str(tmp_path / "whole.jpg")]


def test_a_list_that_is_no_file_is_refused() -> None:
    with pytest.raises(ValueError, match="/dev/zero is no file"):
        leave_out(FileDataset(name="files", split="train", root=Path(), paths=["a"], levels={}), "/dev/zero")


def test_more_than_the_allowed_share_stops_the_run() -> None:
    quarantine = Quarantine(QuarantineSettings(max_share=0.05))
    quarantine.account([problem(str(number)) for number in range(10)], num_readings=199)  # too early to tell
    quarantine.account([], num_readings=1)
    with pytest.raises(ValueError, match=r"^11 of 201 readings of samples failed, more than the 5% allowed") as error:
        quarantine.account([problem("one more")], num_readings=1)
    assert "data.max_broken=SHARE on the command line" in str(error.value)


def test_the_end_of_an_epoch_judges_a_small_data_set() -> None:
    quarantine = Quarantine()
    quarantine.account([problem("a.jpg")], num_readings=10)
    with pytest.raises(ValueError, match="1 of 10 readings of samples failed"):
        quarantine.judge()


def test_a_share_is_between_zero_and_one() -> None:
    with pytest.raises(ValueError, match="max_share is a share between 0 and 1, not 5"):
        QuarantineSettings(max_share=5)


LISTING = """
import sys
from pathlib import Path
from vitrail.data.exclusion import leave_out
from vitrail.data.quarantine import Problem, Quarantine, QuarantineSettings
name, listing = sys.argv[1:]
quarantine = Quarantine(QuarantineSettings(listing=Path(listing)))
print("ready", flush=True)
sys.stdin.readline()
for number in range(100):
    paths = f"{name} {number}.jpg", f"both {number}.jpg"
    quarantine.account([Problem(path, "train", "broken", "is cut off") for path in paths], num_readings=1000)
"""


def test_two_processes_list_each_broken_file_once_in_one_file(tmp_path: Path) -> None:
    listing = tmp_path / "quarantine.csv"
    processes = [WarmProgram(LISTING, name, str(listing)) for name in ("first", "second")]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.tell("go")
    for process in processes:
        assert process.wait() == 0
    wanted = {f"{name} {number}.jpg" for name in ("first", "second", "both") for number in range(100)}
    assert sorted(row["path"] for row in rows(listing)) == sorted(wanted)


def test_what_another_process_has_listed_is_neither_listed_nor_logged_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = QuarantineSettings(listing=tmp_path / "quarantine.csv")
    one, other = Quarantine(settings), Quarantine(settings)
    with caplog.at_level(logging.WARNING):
        one.account([problem("a.jpg")], num_readings=10)
        other.account([problem("a.jpg"), problem("b.jpg")], num_readings=10)
    assert [row["path"] for row in rows(tmp_path / "quarantine.csv")] == ["a.jpg", "b.jpg"]
    assert caplog.messages == ["could not read a.jpg: is cut off", "could not read b.jpg: is cut off"]


def test_where_nothing_is_broken_nothing_is_written(tmp_path: Path) -> None:
    Quarantine(QuarantineSettings(listing=tmp_path / "run" / "quarantine.csv")).account([], num_readings=10)
    assert not (tmp_path / "run").exists()
