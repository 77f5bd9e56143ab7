"""Writing a trained model for an engine: folded, with its preprocessing inside, into a folder that every verb reads."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail import __version__
from vitrail.evaluation.features import Extraction
from vitrail.inference.certificate import TOLERANCES, Certificate, certify
from vitrail.inference.certificate_page import write_certificate_page
from vitrail.inference.description import SYNONYMS, TASK_FILE
from vitrail.inference.engines import find_engine, open_engine
from vitrail.inference.engines.contract import telling_failures
from vitrail.inference.engines.trust import note_own
from vitrail.inference.export_record import (
    CERTIFICATE_FILE,
    EXPORT_FILE,
    MAX_THREADS,
    RECIPE_FILE,
    ExportRecord,
    InputEntry,
    ModelSummary,
    describe_cpu,
    is_exported,
    names_of_export,
    sha256_of,
    write_record,
)
from vitrail.inference.exported import EngineModel
from vitrail.inference.passes import find_recipe
from vitrail.inference.proof_images import ProofImages
from vitrail.inference.trained import Trained
from vitrail.inference.whole_model import LAYOUTS, PRECISIONS, Draft, Layout, WholeModel
from vitrail.models.contract import Model, Preprocessing
from vitrail.settings.text import write_yaml
from vitrail.storage import replacing_files, write_json, write_text
from vitrail.storage.tensors import as_bytes

AUTO = "auto"
Proved = tuple[ExportRecord, Certificate]  # what a folder holds, and how far it agrees with its model


@dataclass(frozen=True)
class ExportSettings:
    """How a model is exported."""

    engine: str  # one of ENGINES; AUTO: the fastest of several
    precision: str = "fp32"  # that products are computed in; AUTO, with the engine AUTO: whichever is the fastest
    layout: Layout = "nchw"  # of the bytes that go in
    dynamic_size: bool = False  # whether images may have any size that the model can cut into patches
    threads: int | None = None  # of one call; None: as the engine thinks best

    def __post_init__(self) -> None:
        if self.precision not in (*PRECISIONS, AUTO):
            raise ValueError(f"precision must be one of {', '.join(PRECISIONS)} or auto, not {self.precision!r}")
        if self.layout not in LAYOUTS:
            raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}, not {self.layout!r}")
        if self.threads is not None and not 1 <= self.threads <= MAX_THREADS:
            raise ValueError(f"threads is a number from 1 to {MAX_THREADS:,}, not {self.threads:,}")
        if self.engine == AUTO:
            return
        known = find_engine(self.engine).precisions()
        if self.precision not in known:
            raise ValueError(f"{self.engine} computes in {' or '.join(known)} on this machine, not in {self.precision}")


def make_draft(trained: Trained, settings: ExportSettings) -> Draft:
    """A model as an engine takes it."""
    model = trained.model
    if model.is_folded:
        raise ValueError(f"{model.name} is exported or folded already: export the run or model that it was made of")
    preprocessing = dataclasses.replace(model.preprocessing, mean=trained.normalize.mean, std=trained.normalize.std)
    dtype = find_engine(settings.engine).dtype_for(settings.precision)
    whole = WholeModel(model, preprocessing=preprocessing, layout=settings.layout, dtype=dtype)
    return Draft(
        source=model,
        whole=whole,
        size=model.config.size,
        channels=model.config.in_channels,
        precision=settings.precision,
        multiple=find_multiple(model) if settings.dynamic_size else None,
        metadata=_make_metadata(trained, settings),
    )


def check_model(trained: Trained, settings: ExportSettings) -> None:
    """Refuse a model that no engine takes, before any is asked: it is computed once, by torch."""
    plain = dataclasses.replace(settings, engine="eager", precision="fp32")
    assert make_draft(trained, plain).outputs, "a model gives logits or an embedding"


def find_multiple(model: Model) -> int:
    """What the sides of images must be multiples of, where they may differ from the model's own."""
    if model.takes_one_size:
        raise ValueError(f"{model.name} takes images of one size only: leave --dynamic-size out")
    if model.patch_size is None:
        raise ValueError(f"{model.name} does not tell which sizes it takes: leave --dynamic-size out")
    return model.patch_size


def write_export(
    folder: Path, trained: Trained, settings: ExportSettings, *, source: str, draft: Draft
) -> ExportRecord:
    """Write the artefact, its record and its task.json into a folder, which is a draft of the caller's."""
    engine = find_engine(settings.engine)
    with telling_failures(engine.name, "take the model"):
        names = engine.write(draft, folder)  # the one to open first
    write_json(folder / TASK_FILE, describe_task(trained))
    height, width = draft.size
    preprocessing: Preprocessing = trained.model.preprocessing
    return ExportRecord(
        vitrail=__version__,
        engine=settings.engine,
        versions=engine.version(),
        cpu=describe_cpu(),
        precision=settings.precision,  # type: ignore[arg-type]  # checked with the settings
        files={name: sha256_of(folder / name) for name in (*names, TASK_FILE)},
        input=InputEntry(
            layout=settings.layout,
            channels=draft.channels,
            height=height,
            width=width,
            multiple=draft.multiple,
            mean=trained.normalize.mean,
            std=trained.normalize.std,
            crop_ratio=trained.view.crop_ratio,
            interpolation=preprocessing.interpolation,
        ),
        outputs=draft.outputs,
        model=ModelSummary(
            name=trained.model.name,
            family=trained.model.family,
            source=source,
            num_classes=trained.num_classes,
            patch_size=trained.model.patch_size,
            reads_patches=trained.model.reads_patches,
            is_dense=trained.model.is_dense,
            weights_sha256=sha256_of_weights(trained.model.state_dict()),
            embedding_key=_key_of_embeddings(trained) if "embedding" in draft.outputs else None,
        ),
        threads=settings.threads,
    )


def describe_task(trained: Trained) -> dict[str, Any]:
    """The task.json of an export: that of the model, and what else is known of its classes."""
    description = dict(trained.description)
    description.setdefault("task", trained.task)
    if trained.classes is not None:
        description["classes"] = list(trained.classes)
    return {**description, SYNONYMS: dict(trained.synonyms)} if trained.synonyms else description


def _make_metadata(trained: Trained, settings: ExportSettings) -> dict[str, str]:
    """What an artefact says of itself, for programs that see nothing else of the folder."""
    texts = {
        "vitrail": __version__,
        "model": trained.model.name,
        "task": trained.task,
        "precision": settings.precision,
        "layout": settings.layout,
        "normalisation": "inside: uint8 of 0 ... 255 go in",
        "resize": json.dumps(
            {
                "is_inside": False,
                "image_size": trained.view.image_size,
                "crop_ratio": trained.view.crop_ratio,
                "interpolation": trained.view.interpolation,
            }
        ),
    }
    return texts if trained.classes is None else {**texts, "classes": json.dumps(list(trained.classes))}


def sha256_of_weights(state: Mapping[str, Tensor]) -> str:
    """The SHA-256 of all tensors with their names, types and shapes."""
    digest = hashlib.sha256()
    for name, value in sorted(state.items()):
        digest.update(f"\n{name} {value.dtype} {list(value.shape)}\n".encode())
        digest.update(as_bytes(value).numpy().data)
    return digest.hexdigest()


def _key_of_embeddings(trained: Trained) -> str:
    """The key that galleries of the model have, so that they can be asked with its export."""
    return Extraction(trained.model, trained.view, trained.normalize, device=torch.device("cpu")).model_key()


def find_recipe_text(source: str) -> str | None:
    """The recipe of the stage that a run ends with, as YAML; None where the source is no run."""
    recipe = find_recipe(source)
    return None if recipe is None else write_yaml(recipe)


def check_target(folder: Path) -> None:
    """Refuse a folder that holds something else than an export of ours."""
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not is_exported(folder))):
        raise ValueError(f"{folder} is there already and no export ({EXPORT_FILE}): choose another out=")
    if is_exported(folder):
        try:
            names_of_export(folder)
        except ValueError as error:
            raise ValueError(
                f"{folder} is not written over: {error}, with another out=, or remove the folder"
            ) from None
    above = next(parent for parent in folder.absolute().parents if parent.exists())
    if not above.is_dir():
        raise ValueError(f"{folder} can't be written ({above} is a file): choose another out=")


@dataclass(frozen=True, eq=False)
class Exported:
    """An export that was written."""

    folder: Path
    record: ExportRecord
    certificate: Certificate


def export_trained(
    trained: Trained, settings: ExportSettings, *, images: ProofImages, source: str, out: Path, **options: Any
) -> Exported:
    """Write an exported folder for the settings' engine; `options` are those of `export_folder`."""
    find_engine(settings.engine).require()
    draft = make_draft(trained, settings)

    def write(folder: Path) -> Proved:
        record = write_export(folder, trained, settings, source=source, draft=draft)
        return record, prove(folder, record, trained, images=images)

    return export_folder(out, write, **options)


def export_folder(
    out: Path,
    write: Callable[[Path], Proved],
    *,
    allow_drift: bool = False,
    recipe: str | None = None,
) -> Exported:
    """Let `write` fill and prove a folder, and put it in its place; one that does not agree with the model is refused.

    It is there whole or not at all; of an export that was there before all files go, and no others. `recipe` is the
    text of the recipe of the run that the model is of.
    """
    check_target(out)
    before = names_of_export(out) if is_exported(out) else ()
    try:
        with replacing_files(out, keeps_others=True, leaving=before) as folder:
            record, certificate = write(folder)
            if recipe is not None:
                write_text(folder / RECIPE_FILE, recipe)
                files = {**record.files, RECIPE_FILE: sha256_of(folder / RECIPE_FILE)}
                record = record.model_copy(update={"files": files})
            record, certificate = seal(folder, record, certificate, allow_drift=allow_drift)
    except OSError as error:
        where = "" if error.filename is None else f", {error.filename}"
        raise ValueError(f"{out} can't be written ({error.strerror or error}{where}): choose another out=") from None
    note_own(out, record)
    return Exported(out, record, certificate)


def prove(folder: Path, record: ExportRecord, trained: Trained, *, images: ProofImages) -> Certificate:
    """Compare what a folder holds with its model, on these images."""
    tolerance = None if record.quantised is not None else TOLERANCES[record.precision]
    return certify(trained, EngineModel(open_engine(folder, record), record), images, tolerance=tolerance)


def seal(folder: Path, record: ExportRecord, certificate: Certificate, *, allow_drift: bool) -> Proved:
    """Write the certificate and the record of a folder, marked where it does not agree and may be kept."""
    if not certificate.agrees:
        if not allow_drift:
            raise ValueError(certificate.complaint())
        record = record.model_copy(update={"is_drifting": True})
    write_record(folder, record)
    content = certificate.describe(record)
    write_json(folder / CERTIFICATE_FILE, content)
    write_certificate_page(folder, record, content)
    return record, certificate
