"""Which engine is the fastest here: all in one run, by turns, with one thread and all cores, whole and in parts."""

import contextlib
import logging
import math
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.inference.engines import find_engine, open_engine
from vitrail.inference.engines.contract import Engine
from vitrail.inference.engines.threads import count_cores
from vitrail.inference.engines.ways import Way
from vitrail.inference.export_record import ExportRecord

_LOGGER = logging.getLogger(__name__)
_WARM_UPS = 2
_FEW = 4  # images of a batch that are computed at a time, one part after the other
BESIDE = (2, 4)  # images of a part, where parts are computed side by side
_FEWEST, _MOST = 5, 200  # calls of each contender that are timed
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Contender:
    """An artefact, and how many threads compute it."""

    label: str  # the engine; of an exported folder its name
    folder: Path
    record: ExportRecord
    threads: int  # of one call
    lanes: int = 1  # calls of one thread that are computed side by side, for parts of a batch
    part: int | None = None  # images of such a part

    def open(self) -> Engine:
        """Its engine, which computes a batch as it is told to."""
        way = {"threads": self.threads, "lanes": self.lanes, "part": self.part}
        return open_engine(self.folder, self.record.model_copy(update=way))

    def ways(self, batch: int) -> list[Way]:
        """The ways in which it computes a batch of that size: whole and in parts, or in parts side by side."""
        parts = (None, _FEW) if self.lanes == 1 else (self.part,)
        return [Way(self.threads, part, self.lanes) for part in parts if part is None or part < batch]


@dataclass(frozen=True)
class Measurement:
    """What calls of one contender took, with so many images each."""

    engine: str
    threads: int  # of one call
    batch: int
    images_per_second: float  # by the median call of the fastest, and by turns beside it
    p50_ms: float
    p99_ms: float
    num_calls: int
    part: int | None = None  # images that were computed at a time; None: all
    lanes: int = 1  # parts that were computed side by side, each by one thread
    peak_mb: float | None = (
        None  # memory of a process of its own above that of the libraries; None: it is not told here
    )

    @property
    def way(self) -> Way:
        """How the batch was computed."""
        return Way(self.threads, self.part, self.lanes)


@dataclass(frozen=True)
class Comparison:
    """All measurements of one run, and who is the fastest."""

    measurements: tuple[Measurement, ...]
    engine: str
    way: Way
    left_out: Mapping[str, str] = field(default_factory=dict)  # engines that can't be taken, and why

    def describe(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {
            "engine": self.engine,
            **asdict(self.way),
            "left_out": dict(self.left_out),
            "cores": count_cores(),
            "torch": torch.__version__,
            "measurements": [asdict(one) for one in self.measurements],
        }


def thread_counts() -> list[int]:
    """The numbers of threads that are tried: one, and as many as there are cores."""
    return sorted({1, count_cores()})


def compare_contenders(
    contenders: Sequence[Contender],
    *,
    batches: Sequence[int],
    seconds: float,
    pixels: Callable[[Contender, int], Tensor],
    has_memory: bool = True,
    patience: float = math.inf,
    told: Callable[[str], object] = lambda line: None,
) -> Comparison:
    """Time all contenders by turns, for about so many `seconds` each and batch; the fastest is the best on average.

    Each computes batches whole, and in parts where they are larger, one after the other or side by side. The average
    over batches is the geometric mean of images a second. One that can't be opened or can't compute a batch is told of
    and left out. `patience` is that of `time_by_turns`.
    """
    left_out: dict[str, str] = {}
    contenders = [one for one in contenders if any(one.ways(batch) for batch in batches)]

    def leave_out(label: str, error: Exception) -> None:
        if label not in left_out:
            left_out[label] = say_why(error)
            _LOGGER.warning("%s is left out: %s", label, left_out[label])

    engines: dict[int, Engine] = {}
    for place, one in enumerate(contenders):
        try:
            engines[place] = one.open()
        except Exception as error:  # engines have errors of their own, with no common parent
            leave_out(one.label, error)
    found: list[Measurement] = []
    for batch in batches:
        here = [place for place in engines if contenders[place].label not in left_out]
        ways = [(place, way) for place in here for way in contenders[place].ways(batch)]
        asks = {
            number: partial(engines[place].in_parts, pixels(contenders[place], batch), way.part)
            for number, (place, way) in enumerate(ways)
        }
        told(f"{len(asks)} contenders, {batch} images at a time")
        failures: dict[int, Exception] = {}
        times = time_by_turns(asks, seconds=seconds, patience=patience, failed=failures.__setitem__)
        for number, speed in speeds_by_turns(times, batch=batch).items():
            place, way = ways[number]
            label = contenders[place].label
            found.append(measurement_of(label, way=way, batch=batch, times=times[number], speed=speed))
        for number, failure in failures.items():
            leave_out(contenders[ways[number][0]].label, failure)
    found = [one for one in found if one.engine not in left_out]
    if not found:
        reasons = "; ".join(f"{label}: {reason}" for label, reason in left_out.items())
        raise ValueError(f"no engine computes the model here ({reasons})")
    if has_memory:
        del engines, asks
        known = {
            (one.label, one.threads, one.lanes, one.part): measure_memory(one, pixels(one, max(batches)))
            for one in contenders
            if one.label not in left_out
        }
        found = [
            replace(one, peak_mb=known[one.engine, one.threads, one.lanes, one.part if one.lanes > 1 else None])
            if one.batch == max(batches)
            else one
            for one in found
        ]
    return Comparison(tuple(found), *choose_fastest(found), left_out=left_out)


def say_why(error: Exception) -> str:
    """What an error of any library says, in one short line."""
    reason = " ".join(str(error).split()) or type(error).__name__
    return reason if isinstance(error, ValueError) else reason[:200]


def choose_fastest(measurements: Sequence[Measurement]) -> tuple[str, Way]:
    """Engine and way with the best geometric mean of images a second over the batches.

    A batch that is no larger than a part counts as it was measured whole.
    """
    speeds = {(one.engine, one.way, one.batch): one.images_per_second for one in measurements}
    batches = {one.batch for one in measurements}

    def mean(choice: tuple[str, Way]) -> float:
        engine, way = choice
        return statistics.fmean(
            math.log(speeds.get((engine, way, batch)) or speeds[engine, Way(way.threads), batch]) for batch in batches
        )

    return max(dict.fromkeys((one.engine, one.way) for one in measurements), key=mean)


def time_by_turns(
    asks: Mapping[int, Callable[[], object]],
    *,
    seconds: float,
    patience: float = math.inf,
    failed: Callable[[int, Exception], object] | None = None,
) -> dict[int, list[float]]:
    """Seconds of each call; all are called in turn, so that what else the machine does hits them alike.

    Those whose first turns take more than `patience` times as long as the fastest's are called no more: their few
    times stay. `failed` hears of one that raises, which is called no more and has no times; without it the error is the
    caller's.
    """
    times: dict[int, list[float]] = {place: [] for place in asks}

    def ask(place: int) -> None:
        try:
            asks[place]()
        except Exception as error:  # engines have errors of their own, with no common parent
            if failed is None:
                raise
            del times[place]
            failed(place, error)

    for place in asks:
        for _ in range(_WARM_UPS):
            if place in times:
                ask(place)
    here = list(times)
    for number in range(_MOST):
        if number == _FEWEST and times:
            fastest = min(map(statistics.median, times.values()))
            here = [place for place in times if statistics.median(times[place]) <= patience * fastest]
        if number >= _FEWEST and sum(sum(times.get(place, ())) for place in here) > seconds * len(here):
            break
        for place in here:
            if place not in times:
                continue
            start = time.perf_counter()
            ask(place)
            if place in times:
                times[place].append(time.perf_counter() - start)
    return times


def speeds_by_turns(times: Mapping[int, Sequence[float]], *, batch: int) -> dict[int, float]:
    """Images a second of each: of the fastest by its median call, of others by the median of single turns beside it.

    Calls of one turn meet the same machine, which other programs may hold up for longer than a turn.
    """
    if not times:
        return {}
    fastest = times[min(times, key=lambda place: statistics.median(times[place]))]
    speed = batch / statistics.median(fastest)
    return {
        place: speed * statistics.median(best / own for best, own in zip(fastest, found, strict=False))
        for place, found in times.items()
    }


def measurement_of(
    engine: str, *, way: Way, batch: int, times: Sequence[float], speed: float | None = None
) -> Measurement:
    """What the seconds of some calls say; `speed` is images a second beside others, None: by the median call."""
    assert way.threads is not None, "a measurement knows its threads"
    median = statistics.median(times)
    ranked = sorted(times)
    return Measurement(
        engine=engine,
        threads=way.threads,
        batch=batch,
        images_per_second=speed or batch / median,
        p50_ms=1e3 * median,
        p99_ms=1e3 * ranked[min(len(ranked) - 1, math.ceil(0.99 * len(ranked)) - 1)],
        num_calls=len(times),
        part=way.part,
        lanes=way.lanes,
    )


def measure_memory(contender: Contender, pixels: Tensor) -> float | None:
    """Megabytes that opening a contender and asking it takes at most, in a process of its own."""
    return in_own_process(_use_memory, contender, list(pixels.shape))


def in_own_process(measure: Callable[..., float], *given: object) -> float | None:
    """What a function measures of the memory of a process of its own; None where the system does not tell it."""
    if not _STATUS.is_file():
        return None
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        try:
            return pool.submit(measure, *given).result()
        except BrokenProcessPool:  # the system has ended it: there was not enough
            return None


def _use_memory(contender: Contender, shape: list[int]) -> float:
    import vitrail.inference.exported  # noqa: F401  what every process imports counts for none of them

    engine_class = find_engine(contender.record.engine)
    engine_class.require()
    before = read_peak_mb()
    engine = contender.open()
    pixels = torch.zeros(shape, dtype=torch.uint8)
    for _ in range(_WARM_UPS):
        for way in contender.ways(len(pixels)):
            engine.in_parts(pixels, way.part)
    return read_peak_mb() - before


def read_peak_mb() -> float:
    """The most memory that this process has held, in megabytes, as Linux tells it."""
    for line in _STATUS.read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1e3
    return math.nan


def reset_peak_mb() -> None:
    """Let `read_peak_mb` begin anew at what this process holds now, where Linux allows it."""
    with contextlib.suppress(OSError):
        _CLEAR.write_text("5")


def table_rows(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    """The rows of a table for people, the fastest first."""
    for one in sorted(comparison.measurements, key=lambda each: (each.batch, -each.images_per_second)):
        best = comparison.way
        best = best if best.part is not None and best.part < one.batch else Way(best.threads)
        is_best = (one.engine, one.way) == (comparison.engine, best)
        yield (
            one.engine,
            str(one.threads),
            str(one.batch),
            one.way.at_a_time,
            f"{one.images_per_second:.1f}",
            f"{one.p50_ms:.1f}",
            f"{one.p99_ms:.1f}",
            "" if one.peak_mb is None else f"{one.peak_mb:,.0f}",
            "fastest" if is_best else "",
        )


COLUMNS = ("engine", "threads", "batch", "at a time", "images/s", "p50 ms", "p99 ms", "peak MB", "")
