"""--to auto: a model written for every engine and precision that there is here, and the fastest of them kept."""

import dataclasses
import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path

from torch import Tensor

from vitrail.inference.benchmarking import BESIDE, Comparison, Contender, compare_contenders, say_why, thread_counts
from vitrail.inference.engines import ENGINES, find_engine, installed_engines
from vitrail.inference.engines.threads import count_cores
from vitrail.inference.export_record import ExportRecord
from vitrail.inference.exporting import AUTO, ExportSettings, check_model, make_draft, write_export
from vitrail.inference.proof_images import ProofImages
from vitrail.inference.trained import Trained

_LOGGER = logging.getLogger(__name__)
BATCHES, SECONDS = (1, 16), 4.0
PATIENCE = 1.5  # who takes so many times as long as the fastest is not timed to the end by --to auto
_COMPETING = ("fp32", "bf16")  # precisions of AUTO: what a CPU with instructions for it may compute faster


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A model as one engine takes it, in one precision."""

    folder: Path
    record: ExportRecord


def choose_engines(names: Sequence[str], *, precision: str) -> list[str]:
    """Engines by name, or all that are installed, as far as they compute in that precision."""
    for name in names:
        find_engine(name).require()
    tried = dict.fromkeys(names or installed_engines())
    found = [name for name in tried if find_precisions(name, precision)]
    if not found:
        raise ValueError(f"no engine here computes in {precision}: there are {', '.join(ENGINES)}")
    return found


def find_precisions(engine: str, wanted: str) -> list[str]:
    """The precisions of that name that an engine computes in on this machine; several of AUTO, none where it can't."""
    known = find_engine(engine).precisions()
    return [precision for precision in (_COMPETING if wanted == AUTO else (wanted,)) if precision in known]


def label_of(engine: str, precision: str, *, wanted: str) -> str:
    """The name of a candidate: its engine, and behind it the precision where several compete and it is not fp32."""
    return engine if wanted != AUTO or precision == "fp32" else f"{engine}-{precision}"


def write_candidates(
    trained: Trained, settings: ExportSettings, *, engines: Sequence[str], source: str, folder: Path
) -> dict[str, Candidate]:
    """The model written for several engines, each into a folder of its own; one that can't is told of and left out.

    Where the precision is AUTO an engine has several folders, one for each that it is fast in.
    """
    check_model(trained, settings)
    found: dict[str, Candidate] = {}
    reasons = []
    wanted = [(engine, precision) for engine in engines for precision in find_precisions(engine, settings.precision)]
    for engine, precision in wanted:
        own = dataclasses.replace(settings, engine=engine, precision=precision)
        label = label_of(engine, precision, wanted=settings.precision)
        place = folder / label
        place.mkdir()
        try:
            record = write_export(place, trained, own, source=source, draft=make_draft(trained, own))
        except Exception as error:  # engines have errors of their own, with no common parent
            if len(wanted) == 1:
                raise
            reasons.append(f"{label}: {say_why(error)}")
            _LOGGER.warning("%s is left out: %s", label, say_why(error))
            continue
        found[label] = Candidate(place, record)
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
    patience: float = math.inf,
    told: Callable[[str], object] = lambda line: None,
) -> Comparison:
    """The candidates timed by turns, batches whole and in parts; `threads` of None are one, and all cores.

    `patience` is that of `time_by_turns`.
    """
    contenders = [
        Contender(label=name, folder=one.folder, record=one.record, threads=count, lanes=lanes, part=part)
        for name, one in candidates.items()
        for count in (thread_counts() if threads is None else [threads])
        for lanes in (sorted({1, min(count, count_cores())}) if find_engine(one.record.engine).has_lanes else [1])
        for part in ((None,) if lanes == 1 else BESIDE)
    ]
    return compare_contenders(
        contenders,
        batches=batches,
        seconds=seconds,
        pixels=lambda one, batch: pixels_for(one.record, images, batch),
        has_memory=has_memory,
        patience=patience,
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
