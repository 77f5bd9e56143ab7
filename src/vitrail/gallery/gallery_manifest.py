"""The one small file that says what a gallery is made of: everything else is found through it."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from vitrail.gallery.gallery_damage import damage
from vitrail.gallery.store_failures import StoreFailedError
from vitrail.storage import hash_text, read_json_object, write_text

MANIFEST_FILE = "gallery.json"
FORMAT: Literal[2] = 2
RuleName = Literal["neighbours", "means", "mix"]
_CHECKSUM = "checksum"  # the key of the manifest's own
_Count = Annotated[int, Field(ge=0)]
_Positive = Annotated[int, Field(ge=1)]
_Side = Annotated[int, Field(ge=1, le=65_536)]
_Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ModelEntry(_Frozen):
    """The model whose embeddings the gallery holds."""

    source: str | None  # a run, a saved model, hf://OWNER/NAME; None: only its maker knows
    trunk: str | None = None  # of a pack
    name: str
    key: str  # changes with the weights, the settings and the picture
    image_size: _Side | tuple[_Side, _Side]
    crop_ratio: float = Field(gt=0.0, le=1.0)
    level: str | None = None  # the labels it was trained on, where it says so


class Threshold(_Frozen):
    """The cosine to the nearest image below which an answer is `unknown`."""

    cosine: float
    false_reject: float = Field(ge=0.0, le=1.0)  # the share of the held-out images that it turns away
    num_held_out: _Positive  # images it was set with
    held_out: str  # what they were
    # The same for the likeness to the most similar class, which goes before it; None: it is not known.
    class_cosine: float | None = None
    class_false_reject: float | None = Field(default=None, ge=0.0, le=1.0)


class RuleEntry(_Frozen):
    """How an image is answered, and the shares of held-out images that each rule was right for."""

    name: RuleName
    temperature: float = Field(gt=0.0)  # that turns cosines to the means of classes into probabilities
    known: dict[RuleName, float] | None = None  # as the gallery was
    added: dict[RuleName, float] | None = None  # as if the image's class had been added from five pictures
    num_held_out: _Count = 0  # images the rules were compared with
    held_out: str = ""  # what they were


class PartEntry(_Frozen):
    """A file of images."""

    file: str = Field(pattern=r"^part-\w+\.safetensors$")
    count: _Count
    size: _Count  # in bytes
    sha256: _Digest | None = None  # None in galleries of before


class IndexEntry(_Frozen):
    """An approximate index, and the parts that it covers."""

    kind: Literal["ivf", "hnsw"]
    file: str = Field(pattern=r"^index-\w+\.faiss$")
    size: _Count
    parts: tuple[str, ...]
    sha256: _Digest | None = None  # None in galleries of before


class GalleryFacts(_Frozen):
    """What a gallery is, wherever its images are kept. A change is a state with the next generation's number."""

    generation: _Positive
    model: ModelEntry
    dim: _Positive
    levels: dict[str, tuple[str, ...]]  # each level's classes; the first level is the one that is answered
    coarse: str | None  # the level that rankings are conditioned by
    neighbours: _Positive  # that answer for an image
    threshold: Threshold | None
    rule: RuleEntry | None = None  # None in galleries of before: neighbours
    wanted_index: str = "exact"

    @model_validator(mode="after")
    def _check_levels(self) -> "GalleryFacts":
        if not self.levels:
            raise ValueError("it has no labels")
        if self.coarse is not None and self.coarse not in self.levels:
            raise ValueError(f"there are no labels {self.coarse!r}")
        for level, names in self.levels.items():
            if len(set(names)) < len(names):
                raise ValueError(f"a class of {level!r} is listed twice")
        return self

    @property
    def fine(self) -> str:
        """The level that is answered."""
        return next(iter(self.levels))

    def plain(self) -> dict[str, Any]:
        """The facts alone, without what a store adds to them."""
        return {name: getattr(self, name) for name in GalleryFacts.model_fields}


class Manifest(GalleryFacts):
    """What is in the folder at one moment."""

    format: Literal[1, 2] = FORMAT  # of the files: 1 is without checksums and rules
    wanted_index: Literal["exact", "ivf", "hnsw"] = "exact"
    index: IndexEntry | None = None
    parts: tuple[PartEntry, ...]

    @model_validator(mode="after")
    def _check_files(self) -> "Manifest":
        files = tuple(part.file for part in self.parts)
        if len(set(files)) < len(files):
            raise ValueError("a file is listed twice")
        if self.index is not None and self.index.parts != files[: len(self.index.parts)]:
            raise ValueError("its index is of other files")
        return self

    @property
    def files(self) -> set[str]:
        """The names of all files that belong to the gallery."""
        return {part.file for part in self.parts} | ({self.index.file} if self.index else set())


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a gallery's folder."""
    path = folder / MANIFEST_FILE
    if not path.exists():
        raise StoreFailedError(
            f"no gallery {str(folder)!r}: make one with `vitrail gallery build RUN data=SPEC out={folder}`"
        )
    try:
        content = read_json_object(path, remedy="restore the file from a copy, or build the gallery anew")
    except ValueError as error:
        raise StoreFailedError(str(error)) from None
    checksum = content.pop(_CHECKSUM, None)  # galleries of before have none
    try:
        manifest = Manifest.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise damage(folder, MANIFEST_FILE, f": {where + ': ' if where else ''}{first['msg']}") from None
    if checksum is not None and checksum != _hash(content):
        raise damage(
            folder,
            MANIFEST_FILE,
            f": it is not what was written (if you have changed it by hand, remove its line {_CHECKSUM!r})",
        )
    return manifest


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Make a manifest that of the folder, with a checksum of all that it says."""
    content = manifest.model_dump(mode="json")
    write_text(folder / MANIFEST_FILE, json.dumps({**content, _CHECKSUM: _hash(content)}, indent=1) + "\n")


def _hash(content: dict[str, Any]) -> str:
    return hash_text(json.dumps(content, sort_keys=True))
