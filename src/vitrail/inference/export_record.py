"""export.json: what an exported folder says of itself, and whether its files are those that were written."""

import hashlib
import json
import platform
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vitrail.inference.description import TASK_FILE
from vitrail.storage import read_json_object, write_text

EXPORT_FILE = "export.json"
CERTIFICATE_FILE, CERTIFICATE_PAGE = "certificate.json", "certificate.html"
RECIPE_FILE = "run_recipe.yaml"  # the recipe of the run that was exported
FORMAT: Literal[1] = 1
MAX_THREADS = 4096
REMEDY = "export the model again"
_Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.\-]*$", max_length=200)]  # of a file in the folder
_Side = Annotated[int, Field(ge=1, le=65_536)]
_Count = Annotated[int, Field(ge=0)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())


class InputEntry(_Frozen):
    """What goes in: bytes of a batch of any size, resized and cropped already, not normalised."""

    name: str = "images"
    dtype: Literal["uint8"] = "uint8"
    layout: Literal["nchw", "nhwc"] = "nchw"
    channels: _Side = 3
    height: _Side
    width: _Side
    multiple: _Side | None = None  # sides may be any multiple of it; None: they are the height and width above
    mean: tuple[float, ...]  # that the artefact itself normalises with
    std: tuple[float, ...]
    crop_ratio: float = Field(gt=0.0, le=1.0)  # of the resizing, which is left to whoever asks
    interpolation: str

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of one image."""
        sides = (self.height, self.width)
        return (self.channels, *sides) if self.layout == "nchw" else (*sides, self.channels)


class ModelSummary(_Frozen):
    """The model that was exported."""

    name: str
    family: str
    source: str  # where it was
    num_classes: _Count
    patch_size: _Side | None = None
    reads_patches: bool = False  # whether the embedding is the mean of patches, beside a class stage without training
    is_dense: bool = False  # whether logits are about places in an image
    weights_sha256: _Digest  # of all its tensors, as they were before they were folded
    embedding_key: str | None = None  # of galleries of its embeddings: weights, settings, pictures; None: unknown


class ExportRecord(_Frozen):
    """All of export.json."""

    format: Literal[1] = FORMAT
    vitrail: str  # version
    engine: str
    versions: str  # of the libraries that wrote it
    cpu: str  # kind of machine that it was written on
    precision: Literal["fp32", "fp16", "bf16"] = "fp32"
    quantised: dict[str, Any] | None = None  # how, and what it did to accuracy and speed; None: it is not
    files: dict[_Name, _Digest]  # the first is the one that is opened; task.json and the recipe are among them
    input: InputEntry
    outputs: dict[str, tuple[_Side, ...]]  # the shape of each for one image
    model: ModelSummary
    threads: Annotated[int, Field(ge=1, le=MAX_THREADS)] | None = None  # of one call; None: as the engine thinks best
    part: _Side | None = None  # images of a batch that are computed at a time; None: all
    lanes: Annotated[int, Field(ge=1, le=MAX_THREADS)] = 1  # parts that are computed side by side, each by one thread
    is_drifting: bool = False  # whether it was kept although it does not agree with the model (--allow-drift)
    choice: dict[str, Any] | None = None  # the measurements by which --to auto chose

    @property
    def sha256(self) -> str:
        """What gives the answers, as one SHA-256: all files of the artefact, and in what it is computed."""
        files = {name: digest for name, digest in self.files.items() if name not in (TASK_FILE, RECIPE_FILE)}
        kept = None if self.quantised is None else self.quantised.get("kept")
        return hashlib.sha256(json.dumps([self.engine, files, self.precision, kept]).encode()).hexdigest()


def describe_cpu() -> str:
    """The kind of this machine's processor, as far as compiled code depends on it."""
    import torch

    return f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"


def names_of_export(folder: Path) -> frozenset[str]:
    """The files in a folder that belong to the export that it holds; a record that is none of ours is a ValueError."""
    beside = (EXPORT_FILE, TASK_FILE, RECIPE_FILE, CERTIFICATE_FILE, CERTIFICATE_PAGE)
    return frozenset((*read_record(folder).files, *beside))


def is_exported(folder: Path) -> bool:
    """Whether a folder holds an exported model."""
    return (folder / EXPORT_FILE).is_file()


def read_record(folder: Path) -> ExportRecord:
    """The content of export.json, checked."""
    content = read_json_object(folder / EXPORT_FILE, remedy=REMEDY)
    found = content.get("format")
    if found != FORMAT:
        raise ValueError(f"{folder / EXPORT_FILE} is of format {found!r}, and this version reads {FORMAT}: {REMEDY}")
    try:
        record = ExportRecord.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{folder / EXPORT_FILE} is damaged ({where}: {first['msg']}): {REMEDY}") from None
    if not record.files or not record.outputs:
        raise ValueError(f"{folder / EXPORT_FILE} is damaged (it names no files or no outputs): {REMEDY}")
    return record


def write_record(folder: Path, record: ExportRecord) -> None:
    """Write export.json."""
    write_text(folder / EXPORT_FILE, json.dumps(record.model_dump(mode="json"), indent=1) + "\n")


def check_files(folder: Path, record: ExportRecord) -> None:
    """Refuse files that are not what was exported and measured."""
    for name, digest in record.files.items():
        path = folder / name
        if not path.is_file() or path.is_symlink():
            raise ValueError(f"{path} is missing: {REMEDY}")
        if sha256_of(path) != digest:
            raise ValueError(
                f"{path} is not the file that was exported (its SHA-256 differs from that in {EXPORT_FILE}): {REMEDY}"
            )


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's content."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
