"""Broken files of a run: counted, named once in the log and in `quarantine.csv`; too many of them stop the run."""

import csv
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from vitrail.storage import CsvWriter, bare_cell, locked

_LOGGER = logging.getLogger(__name__)
COLUMNS = ("path", "split", "problem", "detail")
# A share is not judged on fewer readings than this: one broken file among the first ten says little.
_ENOUGH_READINGS = 200


class Problem(NamedTuple):
    """A sample that could not be read: a line of `quarantine.csv`."""

    path: str
    split: str
    problem: str
    detail: str


@dataclass(frozen=True)
class QuarantineSettings:
    """What happens to broken files."""

    listing: Path | None = None  # where they are listed; None: only in the log
    max_share: float = 0.05  # of all readings; above it the run stops

    def __post_init__(self) -> None:
        if not 0 <= self.max_share <= 1:
            raise ValueError(f"max_share is a share between 0 and 1, not {self.max_share}")


class Quarantine:
    """Keeps the account. The file is appended to line by line, so a killed run leaves it whole.

    Processes that train together, also on several machines that share the file, have one list: they write in turns.
    """

    def __init__(self, settings: QuarantineSettings | None = None) -> None:
        self.settings = settings or QuarantineSettings()
        self.num_readings = 0
        self.num_broken = 0
        self._known: set[str] = set()

    def account(self, problems: list[Problem], *, num_readings: int) -> None:
        """Add what came with one batch."""
        self.num_readings += num_readings
        self.num_broken += len(problems)
        new = {problem.path: problem for problem in problems if problem.path not in self._known}
        if new:
            for problem in self._list(list(new.values())):
                _LOGGER.warning("could not read %s: %s", problem.path, problem.detail)
            self._known.update(new)
        if self.num_readings >= _ENOUGH_READINGS:
            self.judge()

    def judge(self) -> None:
        """Raise when too many were broken."""
        if self.num_broken > self.settings.max_share * self.num_readings:
            where = f"listed in {self.settings.listing}" if self.settings.listing else "named in the log"
            raise ValueError(
                f"{self.num_broken} of {self.num_readings} readings of samples failed, more than the "
                f"{self.settings.max_share:.0%} allowed; they are {where}: repair them, "
                "or allow more (data.max_broken=SHARE on the command line, max_share of QuarantineSettings)"
            )

    def _list(self, problems: list[Problem]) -> list[Problem]:
        """List the problems that nobody has listed yet, neither an earlier part of the run nor another process."""
        listing = self.settings.listing
        if listing is None:
            return problems
        with locked(listing):
            with listing.open(newline="", encoding="utf-8") as file:
                listed = {bare_cell(row["path"]) for row in csv.DictReader(file) if row.get("path")}
            new = [problem for problem in problems if problem.path not in listed]
            with listing.open("a", newline="", encoding="utf-8") as file:
                CsvWriter(file, lineterminator="\r\n").write(new if file.tell() else [COLUMNS, *new])
        return new


class NotingQuarantine(Quarantine):
    """Hands over what can't be read, and lets the rest be used however little it is."""

    def __init__(self, note: Callable[[Problem], object]) -> None:
        super().__init__()
        self.note = note

    def account(self, problems: list[Problem], *, num_readings: int) -> None:
        """Add what came with one batch."""
        for problem in problems:
            self.note(problem)
