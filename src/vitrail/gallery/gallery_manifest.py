"""The one small file that says what a gallery is made of: everything else is found through it."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

MANIFEST_FILE = "gallery.json"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelEntry(_Frozen):
    """The model whose embeddings the gallery holds."""

    source: str | None  # a run, a saved model, hf://OWNER/NAME; None: only its maker knows
    trunk: str | None = None  # of a pack
    name: str
    key: str  # changes with the weights, the settings and the picture
    image_size: int | tuple[int, int]
    crop_ratio: float
    level: str | None = None  # the labels it was trained on, where it says so


class Threshold(_Frozen):
    """The cosine to the nearest image below which an answer is `unknown`."""

    cosine: float
    false_reject: float = Field(ge=0.0, le=1.0)  # the share of the held-out images that it turns away
    num_held_out: int  # images it was set with
    held_out: str  # what they were


class PartEntry(_Frozen):
    """A file of images."""

    file: str
    count: int
    size: int  # in bytes


class IndexEntry(_Frozen):
    """An approximate index, and the parts that it covers."""

    kind: Literal["ivf", "hnsw"]
    file: str
    size: int
    parts: tuple[str, ...]


class Manifest(_Frozen):
    """What is in the folder at one moment. A change is a new manifest with the next generation's number."""

    format: Literal[1] = 1  # of the files
    generation: int
    model: ModelEntry
    dim: int
    levels: dict[str, tuple[str, ...]]  # each level's classes; the first level is the one that is answered
    coarse: str | None  # the level that rankings are conditioned by
    neighbours: int  # that answer for an image
    threshold: Threshold | None
    wanted_index: Literal["exact", "ivf", "hnsw"] = "exact"
    index: IndexEntry | None = None
    parts: tuple[PartEntry, ...]

    @model_validator(mode="after")
    def _check(self) -> "Manifest":
        if not self.levels:
            raise ValueError("it has no labels")
        if self.coarse is not None and self.coarse not in self.levels:
            raise ValueError(f"there are no labels {self.coarse!r}")
        return self

    @property
    def fine(self) -> str:
        """The level that is answered."""
        return next(iter(self.levels))

    @property
    def files(self) -> set[str]:
        """The names of all files that belong to the gallery."""
        return {part.file for part in self.parts} | ({self.index.file} if self.index else set())


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a gallery's folder."""
    path = folder / MANIFEST_FILE
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(
            f"no gallery {str(folder)!r}: make one with `vitrail gallery build RUN data=SPEC out={folder}`"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"the gallery {folder} can't be read: {error}") from None
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(
            f"the gallery {folder} is damaged: {MANIFEST_FILE}: {where + ': ' if where else ''}{first['msg']}"
        ) from None
