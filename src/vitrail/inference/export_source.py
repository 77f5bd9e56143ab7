"""export: from a run, a model or a name to a folder for an engine, as `vitrail export` does it."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vitrail.inference.certificate import NUM_DENSE_IMAGES, NUM_IMAGES
from vitrail.inference.choosing import choose_engines
from vitrail.inference.engines import find_engine
from vitrail.inference.exporting import (
    AUTO,
    Exported,
    ExportSettings,
    Proved,
    check_target,
    export_folder,
    export_trained,
    find_recipe_text,
    prove,
)
from vitrail.inference.passes import check_keys, keep_source, load_seeing, read_whole
from vitrail.inference.proof_images import gather_images
from vitrail.inference.quantising import MAX_LOSS, QuantiseSettings, write_fastest, write_quantised

KEYS = ("data", "split", "level", "image_size", "crop_ratio", "trunk", "num_images", "threads")


def export(
    source: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str],
    to: str = AUTO,
    precision: str | None = None,
    layout: str = "nchw",
    dynamic_size: bool = False,
    quantise: str | None = None,
    max_loss: float | None = None,
    engines: Sequence[str] = (),
    images: Sequence[str] = (),
    allow_drift: bool = False,
    told: Callable[[str], object] = lambda line: None,
    **settings: Any,
) -> Exported:
    """Write a run, a saved model, a pack or a model by name for an engine, and prove it on real images.

    `to` is an engine (onnx, openvino, eager, torch, inductor) or "auto", the fastest here among `engines`. `precision`
    is fp32, fp16, bf16, or "auto", the faster of fp32 and bf16 where the CPU has that; without one it is fp32 for an
    engine by name and auto for "auto". `quantise` may be "int8". What was not asked for by name loses at most
    `max_loss` points (0.5), and so does int8. The images are files, or data=SPEC, or the run's own val.
    Further settings are those of `vitrail export`: data, split, level, image_size, crop_ratio, trunk, num_images,
    threads. `told` hears how far it is.
    """
    text, target = os.fspath(source), Path(out).expanduser()
    check_keys(settings, keys=KEYS)
    check_target(target)
    threads = read_whole(settings["threads"], "threads") if "threads" in settings else None
    if to != AUTO and engines:
        raise ValueError("--engines says which of them --to auto tries: leave one of both out")
    if precision == AUTO and to != AUTO:
        find_engine(to)
        engines, to = (to,), AUTO
    precision = precision or (AUTO if to == AUTO else "fp32")
    chosen = ExportSettings(
        engine=to,
        precision=precision,
        layout=layout,  # type: ignore[arg-type]  # which the settings check
        dynamic_size=dynamic_size,
        threads=threads,
    )
    if quantise not in (None, "int8"):
        raise ValueError(f"quantise may be int8, not {quantise!r}")
    if quantise is not None and precision not in ("fp32", AUTO):
        raise ValueError("--quantise int8 starts from fp32: leave --precision out")
    if max_loss is not None and quantise is None and precision != AUTO:
        raise ValueError("--max-loss is for --quantise and --precision auto: leave it out")
    if images and (given := [key for key in ("data", "split", "level") if key in settings]):
        raise ValueError(f"--images says what it is proved on: leave {given[0]}= out, or --images")
    losing = QuantiseSettings(max_loss=MAX_LOSS if max_loss is None else max_loss)
    wanted = losing if quantise is not None else None
    if to == AUTO:
        engines = choose_engines(engines, precision=precision)
    trained = load_seeing(text, settings)
    most = NUM_DENSE_IMAGES if trained.model.is_dense else NUM_IMAGES
    limit = read_whole(settings.get("num_images", most), "num_images")
    proof = gather_images(trained, text, settings, paths=images, limit=limit)
    common: dict[str, Any] = {"images": proof, "source": keep_source(text)}
    options: dict[str, Any] = {"allow_drift": allow_drift, "recipe": find_recipe_text(text)}
    if to != AUTO and wanted is None:
        return export_trained(trained, chosen, out=target, **common, **options)

    def write(folder: Path) -> Proved:
        if to == AUTO:
            return write_fastest(
                folder,
                trained,
                chosen,
                engines=engines,
                quantise=wanted,
                max_loss=losing.max_loss,
                allow_drift=allow_drift,
                told=told,
                **common,
            )
        assert wanted is not None
        record = write_quantised(folder, trained, chosen, wanted, told=told, **common)
        return record, prove(folder, record, trained, images=proof)

    return export_folder(target, write, **options)
