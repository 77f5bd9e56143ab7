"""--quantise int8: as many layers in int8 as accuracy allows, and what that does to accuracy and speed, measured."""

import logging
import math
import shutil
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from vitrail.inference.benchmarking import Comparison, choose_fastest, speeds_by_turns, time_by_turns
from vitrail.inference.certificate import answer_all, reference_of
from vitrail.inference.choosing import (
    BATCHES,
    PATIENCE,
    SECONDS,
    Candidate,
    compare_candidates,
    pixels_for,
    write_candidates,
)
from vitrail.inference.description import TASK_FILE
from vitrail.inference.engines import find_engine
from vitrail.inference.engines.contract import Engine, telling_failures
from vitrail.inference.export_record import ExportRecord, sha256_of
from vitrail.inference.exported import EngineModel
from vitrail.inference.exporting import AUTO, ExportSettings, Proved, make_draft, prove, write_export
from vitrail.inference.judging import Judge
from vitrail.inference.proof_images import ProofImages
from vitrail.inference.trained import Trained
from vitrail.inference.whole_model import Draft

_LOGGER = logging.getLogger(__name__)
NUM_CALIBRATION = 64  # images that ranges are found with
SHARES = (0.0, 0.1, 0.25, 0.5)  # of the layers that are kept in float32, until the loss is small enough
_SECONDS = 2.0
_INT8 = "-int8"  # behind the name of an engine
_SPELLED = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
MAX_LOSS = 0.5  # points of top-1, or of agreement with the model where labels are not known


@dataclass(frozen=True)
class QuantiseSettings:
    """How far accuracy may fall."""

    max_loss: float = MAX_LOSS
    num_calibration: int = NUM_CALIBRATION

    def __post_init__(self) -> None:
        if not 0.0 <= self.max_loss <= 100.0:
            raise ValueError(f"--max-loss is a number of points from 0 to 100, not {self.max_loss:g}")


def write_quantised(
    folder: Path,
    trained: Trained,
    settings: ExportSettings,
    quantise: QuantiseSettings,
    *,
    images: ProofImages,
    source: str,
    told: Callable[[str], object] = lambda line: None,
) -> ExportRecord:
    """Write a model in int8 into a folder, with what it costs and gains in its record.

    Layers are kept in float32, the most sensitive first, until no more than `max_loss` points are lost; where even half
    of them do not help it is refused.
    """
    if settings.precision != "fp32":
        raise ValueError("--quantise int8 starts from fp32: leave --precision out")
    engine = find_engine(settings.engine)
    if not engine.has_int8:
        raise ValueError(f"{engine.name} has no int8 here: export to onnx, openvino or eager with --quantise int8")
    draft = make_draft(trained, settings)
    judge = Judge(answer_all(reference_of(trained), images.pixels), images)
    with tempfile.TemporaryDirectory(prefix="vitrail-int8-") as name:
        plain, own = Path(name) / "plain", Path(name) / "int8"
        plain.mkdir()
        record = write_export(plain, trained, settings, source=source, draft=draft)
        pixels = pixels_for(record, images, min(quantise.num_calibration, len(images)))
        with telling_failures(engine.name, "quantise the model"):
            layers = engine.rank_layers(draft, plain, pixels)
        if not layers:
            raise ValueError(f"{settings.engine} has no layer of this model that it could compute in int8")
        original = EngineModel(engine.open(plain, record, threads=settings.threads), record)
        before = judge(answer_all(original.outputs, images.pixels))
        for share in SHARES:
            kept = layers[: math.ceil(share * len(layers))]
            _clear(own)
            found = _quantise(engine, draft, plain, own, record, pixels=pixels, kept=kept)
            model = EngineModel(engine.open(own, found, threads=settings.threads), found)
            after = judge(answer_all(model.outputs, images.pixels))
            num_int8 = len(layers) - len(kept)
            told(f"{num_int8} of {len(layers)} layers in int8: {judge.measure} {before:.2f} -> {after:.2f} %")
            if before - after <= quantise.max_loss:
                break
        else:
            raise ValueError(
                f"int8 loses {before - after:.2f} points of {judge.measure} with half of the layers in float32, and "
                f"{quantise.max_loss:g} are allowed (--max-loss): export the model without --quantise"
            )
        facts = {
            "kind": "int8",
            "kept": kept,
            "num_layers": len(layers),
            "calibration_images": len(pixels),
            "measure": judge.measure,
            "before": before,
            "after": after,
            "max_loss": quantise.max_loss,
            **_compare_speed(original, model, record, images),
        }
        for path in own.iterdir():
            shutil.copyfile(path, folder / path.name)
    return found.model_copy(update={"quantised": facts})


def write_fastest(
    folder: Path,
    trained: Trained,
    settings: ExportSettings,
    *,
    engines: Sequence[str],
    images: ProofImages,
    source: str,
    quantise: QuantiseSettings | None = None,
    max_loss: float = MAX_LOSS,
    allow_drift: bool = False,
    batches: Sequence[int] = BATCHES,
    seconds: float | None = None,
    told: Callable[[str], object] = lambda line: None,
) -> Proved:
    """Write the fastest of the engines that agree with the model into a folder, with the measurements in its record.

    `seconds` are those for each contender and batch. With the precision AUTO each engine stands for election in
    float32 and in bfloat16 where the CPU has that, which may lose `max_loss` points; with `quantise` those that have
    int8 do so once more. With `allow_drift` the numbers of the fastest may be further from the model's.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix="engines-") as name:
        place = Path(name)
        candidates = write_candidates(trained, settings, engines=engines, source=source, folder=place)
        for engine in dict.fromkeys(one.record.engine for one in candidates.values()):
            if quantise is None:
                break
            own = replace(settings, engine=engine, precision="fp32")
            target = place / f"{engine}{_INT8}"
            target.mkdir()
            try:
                record = write_quantised(
                    target,
                    trained,
                    own,
                    quantise,
                    images=images,
                    source=source,
                    told=told,
                )
            except ValueError as error:
                shutil.rmtree(target)
                told(f"{engine} is not quantised: {error}")
                continue
            candidates[target.name] = Candidate(target, record)
        comparison = compare_candidates(
            candidates,
            images=images,
            threads=settings.threads,
            batches=batches,
            seconds=seconds or SECONDS,
            patience=PATIENCE,
            told=told,
        )
        comparison, proved = _take_fastest(
            candidates,
            comparison,
            trained,
            images=images,
            allow_drift=allow_drift,
            max_loss=max_loss if settings.precision == AUTO else math.inf,  # a precision that is asked for is given
        )
        rivals = {one.engine for one in comparison.measurements} - set(comparison.left_out)
        if not comparison.engine.endswith(_INT8) and any(name.endswith(_INT8) for name in rivals):
            taken = proved[0]
            told(f"int8 is not taken: {taken.engine} in {_SPELLED[taken.precision]} is faster here")
        for path in candidates[comparison.engine].folder.iterdir():
            shutil.move(path, folder / path.name)
    return proved


def _take_fastest(
    candidates: Mapping[str, Candidate],
    comparison: Comparison,
    trained: Trained,
    *,
    images: ProofImages,
    allow_drift: bool,
    max_loss: float,
) -> tuple[Comparison, Proved]:
    """The fastest candidate that agrees with the model, and its proof; faster ones that do not are told of."""
    left_out = dict(comparison.left_out)
    while rest := [one for one in comparison.measurements if one.engine not in left_out]:
        engine, way = choose_fastest(rest)
        chosen = candidates[engine]
        record = chosen.record.model_copy(update=asdict(way))
        try:
            certificate = prove(chosen.folder, record, trained, images=images)
            if not certificate.agrees and not allow_drift:
                raise ValueError(certificate.complaint())
            if record.precision != "fp32" and certificate.lost > max_loss:
                raise ValueError(
                    f"{record.precision} loses {certificate.lost:.2f} points of {certificate.measure} on "
                    f"{len(images):,} images, and {max_loss:g} are allowed (--max-loss)"
                )
        except ValueError as error:
            if len(candidates) == 1:
                raise
            left_out[engine] = str(error).partition("; nothing was written")[0]
            _LOGGER.warning("%s is left out: %s", engine, left_out[engine])
            continue
        comparison = replace(comparison, engine=engine, way=way, left_out=left_out)
        return comparison, (record.model_copy(update={"choice": comparison.describe()}), certificate)
    reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
    raise ValueError(f"no engine gives the answers of the model, and nothing was written ({reasons})")


def _quantise(
    engine: type[Engine],
    draft: Draft,
    plain: Path,
    own: Path,
    record: ExportRecord,
    *,
    pixels: torch.Tensor,
    kept: list[str],
) -> ExportRecord:
    with telling_failures(engine.name, "quantise the model"):
        names = engine.write_int8(draft, plain, own, pixels=pixels, kept=kept)
    shutil.copyfile(plain / TASK_FILE, own / TASK_FILE)
    files = {name: sha256_of(own / name) for name in (*names, TASK_FILE)}
    return record.model_copy(update={"files": files, "quantised": {"kind": "int8", "kept": kept}})


def _compare_speed(
    original: EngineModel, model: EngineModel, record: ExportRecord, images: ProofImages
) -> dict[str, Any]:
    """Images a second before and after, by turns, for one image and for sixteen."""
    speeds: dict[str, Any] = {}
    ratios = []
    for batch in (1, 16):
        pixels = pixels_for(record, images, batch)
        asks = {place: partial(one.engine, pixels) for place, one in enumerate((original, model))}
        found = speeds_by_turns(time_by_turns(asks, seconds=_SECONDS), batch=batch)
        before, after = found[0], found[1]
        speeds[f"batch_{batch}"] = {"before": before, "after": after}
        ratios.append(after / before)
    return {"images_per_second": speeds, "is_faster": statistics.geometric_mean(ratios) > 1.0}


def _clear(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
