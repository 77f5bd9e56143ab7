"""What an examination comes to: findings, the cases of each, and the samples that a training run should leave out."""

from dataclasses import dataclass
from enum import Enum

import numpy as np

from vitrail.data.quarantine import Problem
from vitrail.pages.words import visible


class Severity(Enum):
    """How much a finding matters, the worst first."""

    MUST_BE_FIXED = "must be fixed"
    WORTH_A_LOOK = "worth a look"
    GOOD_TO_KNOW = "good to know"


@dataclass(frozen=True)
class Kind:
    """What is to be said about a problem."""

    severity: Severity
    unit: str  # what is counted, in the singular
    what: str
    why: str
    remedy: str


@dataclass(frozen=True)
class Place:
    """A sample, or anything else that a finding is about: a class, a folder."""

    path: str  # as the data set names it
    split: str = ""
    label: str = ""
    index: int | None = None  # in its split; None where it is no sample
    size: str = ""  # width x height


@dataclass(frozen=True)
class Case:
    """One occurrence: a file, or the copies of one picture."""

    places: tuple[Place, ...]
    detail: str = ""


@dataclass(frozen=True)
class Finding:
    """A kind of problem that this data has."""

    problem: str
    severity: Severity
    count: int
    unit: str  # of the count, in the singular: "file", "group" ...
    cases: tuple[Case, ...]  # all of them, except where there may be very many that do no harm
    quarantined: tuple[Problem, ...] = ()

    @property
    def amount(self) -> str:
        """The count with its unit."""
        plural = f"{self.unit}es" if self.unit.endswith("s") else f"{self.unit}s"
        return f"{self.count:,} {self.unit if self.count == 1 else plural}"


@dataclass(frozen=True, eq=False)
class SplitSummary:
    """A split in numbers."""

    split: str
    num_images: int
    class_counts: tuple[int, ...]  # in the order of the classes
    sizes: np.ndarray  # int64 [images that could be decoded, 2]: width, height

    @property
    def median_size(self) -> str:
        """The median width and height."""
        width, height = np.median(self.sizes, axis=0).astype(int) if len(self.sizes) else (0, 0)
        return f"{width} x {height}"


@dataclass(frozen=True, eq=False, repr=False)
class Findings:
    """All that was found in a source, the worst first."""

    name: str
    root: str  # the folder that holds all files, or nothing
    classes: tuple[str, ...]
    splits: tuple[SplitSummary, ...]
    findings: tuple[Finding, ...]

    def __repr__(self) -> str:
        classes = f"{len(self.classes)} classes" if self.classes else "without labels"
        lines = [f"{self.name}: {sum(split.num_images for split in self.splits):,} images, {classes}"]
        lines += [f"  {finding.severity.value}: {finding.problem}, {finding.amount}" for finding in self.findings]
        return "\n".join([*lines, "nothing must be fixed" if self.is_fit else "to be fixed before training"])

    @property
    def is_fit(self) -> bool:
        """Whether nothing must be fixed before training."""
        return self.count(Severity.MUST_BE_FIXED) == 0

    def count(self, severity: Severity) -> int:
        """How many kinds of problem there are of that severity."""
        return sum(finding.severity is severity for finding in self.findings)

    def shorten(self, path: str) -> str:
        """The path as seen from the folder that holds all files, fit to be shown."""
        return visible(path[len(self.root) :].lstrip("/\\") if self.holds(path) else path)

    def holds(self, path: str) -> bool:
        """Whether the path lies in the folder that holds all files."""
        return bool(self.root) and path.startswith((f"{self.root}/", f"{self.root}\\"))

    @property
    def verdict(self) -> str:
        """One line for a person."""
        must, look = self.count(Severity.MUST_BE_FIXED), self.count(Severity.WORTH_A_LOOK)
        fixed = f"{must} problem{'s' * (must != 1)} must be fixed" if must else "nothing must be fixed"
        return f"{fixed}, {look} {'is' if look == 1 else 'are'} worth a look" if look else fixed

    @property
    def quarantined(self) -> tuple[Problem, ...]:
        """What a training run should leave out: each sample once, with the worst that is wrong with it."""
        rows: dict[tuple[str, str], Problem] = {}
        for finding in self.findings:
            for row in finding.quarantined:
                rows.setdefault((row.path, row.split), row)
        return tuple(rows.values())
