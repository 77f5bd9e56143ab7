"""--to auto: a model written for every engine that there is here, and the fastest of them kept."""

import dataclasses
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from torch import Tensor

from vitrail.inference.benchmarking import Comparison, Contender, compare_contenders, say_why, thread_counts
from vitrail.inference.engines import ENGINES, find_engine, installed_engines
from vitrail.inference.engines.threads import count_cores
from vitrail.inference.export_record import ExportRecord
from vitrail.inference.exporting import ExportSettings, make_draft, write_export
from vitrail.inference.proof_images import ProofImages
from vitrail.inference.trained import Trained

_LOGGER = logging.getLogger(__name__)
BATCHES, SECONDS = (1, 16), 4.0


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A model as one engine takes it."""

    folder: Path
    record: ExportRecord


def choose_engines(names: Sequence[str], *, precision: str) -> list[str]:
    """Engines by name, or all that are installed, as far as they compute in that precision."""
    for name in names:
        find_engine(name).require()
    found = [name for name in (names or installed_engines()) if precision in find_engine(name).precisions()]
    if not found:
        raise ValueError(f"no engine here computes in {precision}: there are {', '.join(ENGINES)}")
    return found


def write_candidates(
    trained: Trained, settings: ExportSettings, *, engines: Sequence[str], source: str, folder: Path
) -> dict[str, Candidate]:
    """The model written for several engines, each into a folder of its own; one that can't is told of and left out."""
    found: dict[str, Candidate] = {}
    reasons = []
    for name in engines:
        own = dataclasses.replace(settings, engine=name)
        place = folder / name
        place.mkdir()
        try:
            record = write_export(place, trained, own, source=source, draft=make_draft(trained, own))
        except Exception as error:  # engines have errors of their own, with no common parent
            if len(engines) == 1:
                raise
            reasons.append(f"{name}: {say_why(error)}")
            _LOGGER.warning("%s is left out: %s", name, say_why(error))
            continue
        found[name] = Candidate(place, record)
    if not found:
        raise ValueError(f"no engine takes the model ({'; '.join(reasons)})")
    return found


def compare_candidates(
    candidates: dict[str, Candidate],
    *,
    images: ProofImages | None,
    threads: int | None = None,
    batches: Sequence[int] = BATCHES,
    seconds: float = SECONDS,
    has_memory: bool = False,
    told: Callable[[str], object] = lambda line: None,
) -> Comparison:
    """The candidates timed by turns, batches whole and in parts; `threads` of None are one, and all cores."""
    contenders = [
        Contender(label=name, folder=one.folder, record=one.record, threads=count, lanes=lanes)
        for name, one in candidates.items()
        for count in (thread_counts() if threads is None else [threads])
        for lanes in (sorted({1, min(count, count_cores())}) if find_engine(one.record.engine).has_lanes else [1])
    ]
    return compare_contenders(
        contenders,
        batches=batches,
        seconds=seconds,
        pixels=lambda one, batch: pixels_for(one.record, images, batch),
        has_memory=has_memory,
        told=told,
    )


def pixels_for(record: ExportRecord, images: ProofImages | None, batch: int) -> Tensor:
    """So many images as an artefact takes them: real ones again and again, or grey."""
    import torch

    given = record.input
    if images is None:
        pixels = torch.full((batch, given.channels, given.height, given.width), 127, dtype=torch.uint8)
    else:
        pixels = images.pixels[torch.arange(batch) % len(images)]
    return (pixels.permute(0, 2, 3, 1) if given.layout == "nhwc" else pixels).contiguous()
