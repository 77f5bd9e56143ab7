"""What can be wrong with a single sample: its file, its size, how it is stored."""

import os
from collections.abc import Iterator, Sequence

import numpy as np

from vitrail.data.doctor.examine import ExaminedSplit
from vitrail.data.doctor.findings import Case, Finding, Severity
from vitrail.data.doctor.kinds import kind_of
from vitrail.data.doctor.places import listed_path, place_of
from vitrail.data.quarantine import Problem

_SHORT_SIDE = 32  # pixels; below it an image is tiny, in data whose images are large
_LARGE_SIDE = 64  # the median short side above which images count as large
_TINY_SHARE = 1 / 8  # of the median short side
_EXTREME_RATIO = 5
_MAX_HARMLESS = 200  # cases that are kept of what is only good to know
_MODES = {
    "greyscale": ("1", "L", "LA"),
    "CMYK": ("CMYK",),
    "16 bit": ("16 bit",),
    "32 bit": ("32 bit",),
    "floating point": ("float",),
    "transparency": ("LA", "RGBA", "PA", "RGBa", "La"),
    "palette": ("P", "PA"),
}
_ENDINGS = {
    "AVIF": (".avif", ".avifs"),
    "BMP": (".bmp", ".dib"),
    "GIF": (".gif",),
    "HEIF": (".heic", ".heif"),
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif", ".mpo"),
    "JPEG2000": (".jp2", ".j2k", ".jpf", ".jpx", ".jpc", ".j2c"),
    "MPO": (".jpg", ".jpeg", ".mpo"),
    "PNG": (".png", ".apng"),
    "PPM": (".ppm", ".pgm", ".pbm", ".pnm", ".pfm"),
    "TIFF": (".tif", ".tiff"),
    "WEBP": (".webp",),
}
_ALL_ENDINGS = frozenset(ending for endings in _ENDINGS.values() for ending in endings)


def check_samples(splits: Sequence[ExaminedSplit]) -> Iterator[Finding]:
    """Findings about single samples."""
    yield from _check_failures(splits)
    yield from _check_sizes(splits)
    yield from _find("blank image", splits, [split.records["is_blank"] for split in splits])
    yield from _check_storage(splits)


def _check_failures(splits: Sequence[ExaminedSplit]) -> Iterator[Finding]:
    for problem in ("broken file", "unreadable file", "unread format", "decompression bomb"):
        cases, quarantined = [], []
        for split in splits:
            for index, failure in sorted(split.failures.items()):
                if failure.problem == problem:
                    place = place_of(split, index)
                    cases.append(Case((place,), failure.detail))
                    quarantined.append(Problem(listed_path(place, splits), place.split, problem, failure.detail))
        if cases:
            kind = kind_of(problem)
            yield Finding(problem, kind.severity, len(cases), kind.unit, tuple(cases), tuple(quarantined))


def _check_sizes(splits: Sequence[ExaminedSplit]) -> Iterator[Finding]:
    short = [np.minimum(split.records["height"], split.records["width"]).astype(np.float64) for split in splits]
    long = [np.maximum(split.records["height"], split.records["width"]).astype(np.float64) for split in splits]
    sides = np.concatenate([side[side > 0] for side in short]) if short else np.empty(0)
    median = float(np.median(sides)) if len(sides) else 0.0
    limit = max(_SHORT_SIDE if median >= _LARGE_SIDE else 0.0, _TINY_SHARE * median)
    yield from _find("tiny image", splits, [side < limit for side in short])
    yield from _find("extreme shape", splits, [b > _EXTREME_RATIO * a for a, b in zip(short, long, strict=True)])


def _check_storage(splits: Sequence[ExaminedSplit]) -> Iterator[Finding]:
    yield from _find("misleading name", splits, [_are_misnamed(split) for split in splits])
    yield from _find("turned by EXIF", splits, [split.records["is_turned"] for split in splits])
    yield from _find("animation", splits, [split.records["is_animated"] for split in splits])
    for problem, modes in _MODES.items():
        flags = [np.isin(split.records["mode"], [mode.encode() for mode in modes]) for split in splits]
        if problem == "palette":  # as every GIF has one
            flags = [flag & (split.records["format"] != b"GIF") for flag, split in zip(flags, splits, strict=True)]
        is_everywhere = all(flag[split.records["is_whole"]].all() for flag, split in zip(flags, splits, strict=True))
        if problem != "greyscale" or not is_everywhere:  # odd is only what differs from the rest
            yield from _find(problem, splits, flags)


def _are_misnamed(split: ExaminedSplit) -> np.ndarray:
    flags = np.zeros(len(split.records), dtype=bool)
    for index, image_format in enumerate(split.records["format"].tolist()):
        endings = _ENDINGS.get(image_format.decode())
        if endings is not None:
            ending = os.path.splitext(split.dataset.locate(index))[1].lower()
            flags[index] = ending in _ALL_ENDINGS and ending not in endings
    return flags


def _find(problem: str, splits: Sequence[ExaminedSplit], flags: Sequence[np.ndarray]) -> Iterator[Finding]:
    """A finding of all whole samples that are flagged, if any are."""
    kind = kind_of(problem)
    limit = _MAX_HARMLESS if kind.severity is Severity.GOOD_TO_KNOW else None
    found = [
        (split, index)
        for split, flag in zip(splits, flags, strict=True)
        for index in np.flatnonzero(flag & split.records["is_whole"]).tolist()
    ]
    if found:
        cases = tuple(
            Case((place_of(split, index),), _describe(split.records[index])) for split, index in found[:limit]
        )
        yield Finding(problem, kind.severity, len(found), kind.unit, cases)


def _describe(record: np.void) -> str:
    return f"{record['format'].decode()}, {record['mode'].decode()}"
