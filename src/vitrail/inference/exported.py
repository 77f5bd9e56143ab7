"""An exported folder as a model: whatever asks a model for answers or embeddings asks its engine."""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from vitrail.data.blend import Normalize
from vitrail.inference.engines import find_engine, open_engine
from vitrail.inference.engines.contract import Engine, EngineFailedError
from vitrail.inference.engines.trust import require_trust
from vitrail.inference.export_record import CERTIFICATE_PAGE, ExportRecord, check_files, read_record
from vitrail.models.config import height_and_width
from vitrail.models.contract import Features, Model, Preprocessing
from vitrail.storage import settle

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class ExportedConfig:
    """What an exported model tells of itself, as the configs of other models do."""

    image_size: int | tuple[int, int]
    in_channels: int
    num_classes: int
    sha256: str  # of the artefact and in what it is computed

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the images."""
        return height_and_width(self.image_size)


class KeepBytes(Normalize):
    """The normalisation of a model that normalises by itself: none."""

    def __call__(self, images: Tensor, *, dtype: torch.dtype = torch.float32) -> Tensor:
        """The bytes as they are."""
        return images


class EngineModel(Model):
    """A model that an engine computes. It answers with logits and embeddings; what is inside of it can't be seen.

    It takes bytes as the artefact does, uint8 [batch, 3, height, width], or images that are normalised already, which
    it turns back into bytes: exactly those that were normalised.
    """

    family = "exported"
    is_folded = True
    is_opaque = True
    uses_all_cores = True
    config: ExportedConfig

    def __init__(self, engine: Engine, record: ExportRecord, *, size: tuple[int, int] | None = None) -> None:
        height, width = size or (record.input.height, record.input.width)
        super().__init__(
            ExportedConfig(
                image_size=height if height == width else (height, width),
                in_channels=record.input.channels,
                num_classes=record.model.num_classes,
                sha256=record.sha256,
            )
        )
        self.engine, self.record, self.name = engine, record, record.model.name
        self.is_dense, self.embeds_patches = record.model.is_dense, record.model.reads_patches
        self.head = nn.Identity()
        given = record.input
        self.preprocessing = Preprocessing(given.crop_ratio, given.interpolation, given.mean, given.std)
        # The artefact stands for the weights wherever they are compared: in the keys of galleries and caches.
        self.register_buffer("sha256", torch.tensor(list(bytes.fromhex(record.sha256)), dtype=torch.uint8))
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        found = self.outputs(images)
        return found["logits"] if self.config.num_classes else found["embedding"]

    def outputs(self, images: Tensor) -> dict[str, Tensor]:
        pixels = self.to_bytes(images).cpu()
        if pixels.ndim != 4 or pixels.shape[1] != self.config.in_channels:
            raise ValueError(
                f"expected images of shape [batch, {self.config.in_channels}, height, width], got {list(pixels.shape)}"
            )
        self.check_size((pixels.shape[2], pixels.shape[3]))
        if self.record.input.layout == "nhwc":
            pixels = pixels.permute(0, 2, 3, 1)
        return {name: value.to(images.device) for name, value in self._compute(pixels.contiguous()).items()}

    def _compute(self, pixels: Tensor) -> dict[str, Tensor]:
        try:
            return self.engine(pixels)
        except (ValueError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # engines have errors of their own, with no common parent
            reason = " ".join(str(error).split())[:200]
            told = f"{self.record.engine} can't compute the export ({reason})"
            raise EngineFailedError(f"{told}: export the model again, or to another engine") from error

    def to_bytes(self, images: Tensor) -> Tensor:
        """Bytes as they are; normalised images as the bytes that they were made of."""
        if images.dtype == torch.uint8:
            return images
        mean, std = (images.new_tensor(each).view(-1, 1, 1) for each in (self.record.input.mean, self.record.input.std))
        return ((images * std + mean) * 255.0).round().clamp(0, 255).to(torch.uint8)

    def check_size(self, size: tuple[int, int]) -> None:
        """Refuse images that the artefact does not take."""
        given = self.record.input
        if given.multiple is None and size != (given.height, given.width):
            raise ValueError(
                f"this export of {self.name} takes images of {given.height}x{given.width}, not {size[0]}x{size[1]}: "
                "export the model with that image_size=, or with --dynamic-size"
            )
        if given.multiple is not None and any(side % given.multiple for side in size):
            raise ValueError(
                f"this export of {self.name} takes images whose sides are multiples of {given.multiple}, not "
                f"{size[0]}x{size[1]}"
            )

    def summarize(self, images: Tensor) -> Tensor:
        found = self.outputs(images)
        if "embedding" not in found:
            raise ValueError(f"this export of {self.name} gives no embeddings: ask the model that was exported")
        return found["embedding"].unsqueeze(1)

    def embedding_key(self, *, image_size: int | tuple[int, int], crop_ratio: float, interpolation: str) -> str | None:
        """The key of the model that was exported, where the picture is its own and the export agrees with it."""
        given = self.record.input
        own = (given.height, given.width), given.crop_ratio, given.interpolation
        is_alike = (height_and_width(image_size), crop_ratio, interpolation) == own
        is_exact = self.record.quantised is None and not self.record.is_drifting
        return self.record.model.embedding_key if is_alike and is_exact else None

    def features(self, images: Tensor, *, levels: Sequence[int] = ()) -> Features:
        self.require_inside()
        raise AssertionError("an export is opaque")

    def resized(self, image_size: int | tuple[int, int]) -> Model:
        size = height_and_width(image_size)
        if size == self.config.size:
            return self
        self.check_size(size)
        return EngineModel(self.engine, self.record, size=size)

    @property
    def patch_size(self) -> int | None:
        return self.record.model.patch_size

    @property
    def gives_embeddings(self) -> bool:
        return "embedding" in self.record.outputs

    @property
    def takes_one_size(self) -> bool:
        return self.record.input.multiple is None


def load_engine_model(folder: str | os.PathLike[str], *, threads: int | None = None) -> EngineModel:
    """The model of an exported folder, whose files must be those that were exported.

    `threads` are those of one call; None: those that the export names, or as the engine thinks best. Files that may
    hold code are opened only where this user has written them, or has said --trust.
    """
    place = Path(folder).expanduser()
    record = check_openable(place)
    return EngineModel(open_engine(place, record, threads=threads), record)


def check_openable(folder: Path) -> ExportRecord:
    """The record of an exported folder that may be opened: its engine is here, its files are whole and trusted."""
    settle(folder)
    record = read_record(folder)
    engine = find_engine(record.engine)
    engine.require_to_open()
    check_files(folder, record)
    if record.is_drifting:
        _LOGGER.warning(
            "%s does not agree with its model (%s): it was kept with --allow-drift", folder, CERTIFICATE_PAGE
        )
    if engine.may_run_code:
        require_trust(folder, record)
    return record
