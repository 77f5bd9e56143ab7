"""Faults of annotations: an error of one line at the first, or notes of all for `vitrail check`."""

from collections import Counter
from dataclasses import dataclass, field

from vitrail.data.contract import Faults, Note

_MAX_NOTES = 1000  # of one kind: beyond them the rest is counted


@dataclass
class FaultList:
    """Takes what is wrong while a source is opened."""

    faults: Faults = "refused"
    _notes: list[Note] = field(default_factory=list)
    _counts: Counter[str] = field(default_factory=Counter)

    def report(self, problem: str, place: object, detail: str) -> None:
        """Refuse the data for it, or keep it as a note."""
        if self.faults == "refused":
            raise ValueError(f"{place}: {detail}; `vitrail check` lists all such faults")
        self.note(problem, place, detail, is_serious=True)

    def report_unmarked(self, place: object, *, split: str, num_images: int, looked: str) -> None:
        """Refuse a split in whose images there is no object at all; what is only tested on may have none.

        Where annotations are faulty, that is said instead.
        """
        if split in ("train", "val") and not any(note.is_serious for note in self._notes):
            self.report("no objects", place, f"none of the {num_images:,} images of {split} has an object: {looked}")

    def note(self, problem: str, place: object, detail: str, *, is_serious: bool = False) -> None:
        """Keep as a note what stops no training."""
        self._counts[problem] += 1
        if self._counts[problem] <= _MAX_NOTES:
            self._notes.append(Note(problem, str(place), detail, is_serious=is_serious))

    @property
    def notes(self) -> list[Note]:
        """What was reported; of very many of one kind the first, and how many more there are."""
        more = [
            Note(problem, "more of them", f"{count - _MAX_NOTES} further ones are not listed", is_serious=False)
            for problem, count in self._counts.items()
            if count > _MAX_NOTES
        ]
        return [*self._notes, *more]
