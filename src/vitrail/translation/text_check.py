"""What `vitrail check` looks for in parallel text: encoding, empty lines, odd lengths, copies, and leaks into val."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vitrail.translation.parallel_text import Pairs, ParallelText, TextFile, read_bytes

_MOST_SHOWN = 5  # places of a finding
_RATIO, _LEAST_WORDS = 3.0, 9  # words of one side over the other, where the longer has so many


@dataclass(frozen=True)
class TextFinding:
    """A kind of problem of parallel text."""

    problem: str
    severity: str  # "must be fixed" or "worth a look"
    count: int
    places: tuple[str, ...]  # some of them
    remedy: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.problem}: {self.count:,}, such as {', '.join(self.places)}; {self.remedy}"

    def record(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {**vars(self), "places": list(self.places)}


def check_text(text: ParallelText) -> list[TextFinding]:
    """All that is found in the splits of a text, the worst first."""
    findings: list[TextFinding] = []
    pairs: dict[str, Pairs] = {}
    for split in text.splits:
        faults = list(_check_files(split, text.files[split]))
        findings += faults
        if not faults:
            pairs[split] = text.read(split)
            findings += _check_pairs(pairs[split])
    findings += _check_leaks(pairs)
    return sorted(findings, key=lambda finding: finding.severity != "must be fixed")


def _check_files(split: str, files: tuple[TextFile, TextFile]) -> Iterator[TextFinding]:
    """What keeps a split from being read."""
    counts = []
    for file in dict.fromkeys((files[0].path, files[1].path)):
        try:
            lines = read_bytes(file)
        except ValueError as error:
            yield TextFinding("file that can't be read", "must be fixed", 1, (str(error),), "restore it")
            return
        counts.append(len(lines))
        bad = [number for number, line in enumerate(lines, start=1) if not _is_text(line)]
        if bad:
            places = tuple(f"{file.name}:{number}" for number in bad[:_MOST_SHOWN])
            yield TextFinding("line that is not UTF-8", "must be fixed", len(bad), places, "convert the file to UTF-8")
        if files[0].column is not None:
            short = [number for number, line in enumerate(lines, start=1) if line.count(b"\t") < 1]
            if short:
                places = tuple(f"{file.name}:{number}" for number in short[:_MOST_SHOWN])
                yield TextFinding("row without two columns", "must be fixed", len(short), places, "separate by a tab")
    if len(set(counts)) > 1:
        names = tuple(f"{file.path.name} {count:,}" for file, count in zip(files, counts, strict=True))
        yield TextFinding("files of different lengths", "must be fixed", 1, names, "align them line by line")
    elif counts[0] == 0:
        yield TextFinding("empty split", "must be fixed", 1, (split,), "add sentences, or remove its files")


def _check_pairs(pairs: Pairs) -> Iterator[TextFinding]:
    """What is odd about single pairs."""
    places: dict[str, list[int]] = {"empty line": [], "odd ratio of lengths": [], "copied source": []}
    for index, (source, target) in enumerate(zip(pairs.source, pairs.target, strict=True)):
        words = len(source.split()), len(target.split())
        if min(words) == 0:
            places["empty line"].append(index)
        elif max(words) >= _LEAST_WORDS and max(words) > _RATIO * min(words):
            places["odd ratio of lengths"].append(index)
        elif source.strip() == target.strip() and max(words) > 2:
            places["copied source"].append(index)
    seen: dict[tuple[str, str], int] = {}
    places["duplicate pair"] = []
    for index, pair in enumerate(zip(pairs.source, pairs.target, strict=True)):
        if pair in seen:
            places["duplicate pair"].append(index)
        seen.setdefault(pair, index)
    remedies = {
        "empty line": "a run leaves such pairs out",
        "odd ratio of lengths": "are they translations of each other?",
        "copied source": "the target is the source: was it translated?",
        "duplicate pair": "keep one of each",
    }
    for problem, found in places.items():
        if found:
            shown = tuple(_short(pairs, index) for index in found[:_MOST_SHOWN])
            yield TextFinding(f"{problem} in {pairs.split}", "worth a look", len(found), shown, remedies[problem])


def _check_leaks(pairs: Mapping[str, Pairs]) -> Iterator[TextFinding]:
    """Pairs of val and test that training sees."""
    if "train" not in pairs:
        return
    trained = Counter(zip(pairs["train"].source, pairs["train"].target, strict=True))
    for split, own in pairs.items():
        if split == "train":
            continue
        leaked = [index for index, pair in enumerate(zip(own.source, own.target, strict=True)) if pair in trained]
        if leaked:
            shown = tuple(_short(own, index) for index in leaked[:_MOST_SHOWN])
            remedy = "take them out of train, or scores are too good"
            yield TextFinding(f"pair of {split} in train", "must be fixed", len(leaked), shown, remedy)


def _short(pairs: Pairs, index: int) -> str:
    return f"{pairs.files[0].path.name}:{pairs.lines[index]}"


def _is_text(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True
