"""Embeddings of a whole data set, kept on disk so that the next probe of the same model needs no pass over the data."""

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from vitrail.data.augment import EvaluationView
from vitrail.data.blend import Normalize
from vitrail.data.contract import Dataset
from vitrail.data.loader import ImageLoader
from vitrail.data.quarantine import NotingQuarantine, Problem
from vitrail.data.sampler import Sampler
from vitrail.evaluation.predict import predict
from vitrail.layers.classifier import PerClassClassifier
from vitrail.models.contract import Model
from vitrail.storage import describe_settings, hash_text, replacing
from vitrail.storage.reading import WRONG_CONTENT, parse_json
from vitrail.storage.tensors import as_bytes, hash_tensors, read_tensors, write_tensors

_LOGGER = logging.getLogger(__name__)
_FORMAT = 1  # of the cached files; part of their key
_UNREAD_KEY = "unread"


@dataclass(frozen=True, eq=False)
class Embeddings:
    """What a model says of every image of a data set that could be read, in the order of the data."""

    vectors: Tensor  # float32 [images, dim]
    indices: Tensor  # int64 [images]: the image's place in the data set
    unread: tuple[Problem, ...] = ()  # images that were left out


class Embedder(nn.Module):
    """A model without its classifier: from images to one vector each.

    One summary token is the vector. Two of them, with distillation, are put side by side, so that a linear probe can
    weigh both and still be written as the model's two heads. Tokens of single classes know about other classes than the
    data's: there it is the mean of the patches.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.training = model.training  # else evaluating would leave the model in training mode
        self.reads_patches = isinstance(model.head, PerClassClassifier)
        self.uses_all_cores = model.uses_all_cores

    def forward(self, images: Tensor) -> Tensor:  # [batch, channels, height, width] -> [batch, dim]
        if self.reads_patches:
            return self.model.features(images).patches.mean(dim=(2, 3))
        return self.model.summarize(images).flatten(1)


@dataclass(frozen=True, eq=False)
class Extraction:
    """How images become embeddings: the model, what it sees, and where it computes."""

    model: Model
    view: EvaluationView
    normalize: Normalize
    device: torch.device
    dtype: torch.dtype = torch.float32
    batch_size: int = 64
    workers: int = 0
    faster: Model | None = None  # a copy of the model with the same outputs, such as `fold` makes, to compute with

    def key(self, data: Dataset) -> str:
        """A text that changes with whatever the embeddings depend on: weights, settings, picture and images.

        Files count by their path, size and time of change, other images by their content. Labels are no part of it:
        embeddings serve every level of labels.
        """
        digest = hashlib.sha256(f"{self.model_key()} {self.dtype} {data.split!r}".encode())
        _digest_images(digest, data)
        return digest.hexdigest()[:32]

    def model_key(self) -> str:
        """A text that changes with the weights, the settings and the picture: embeddings of one key can be compared."""
        settings = describe_settings((_FORMAT, self.model.family, self.model.config, self.view, self.normalize))
        return hash_text(f"{settings} {hash_tensors(self.model.state_dict())}")

    def has_model_key(self, key: str) -> bool:
        """Whether embeddings that were kept under this key are of the same model and picture."""
        view = self.view
        of_source = self.model.embedding_key(
            image_size=view.image_size, crop_ratio=view.crop_ratio, interpolation=view.interpolation
        )
        return key in (of_source, self.model_key()) or key == _former_digest(self).hexdigest()[:32]


def _ignore(count: int) -> None:
    """Show no progress."""


def embed(
    extraction: Extraction,
    data: Dataset,
    *,
    cache: str | os.PathLike[str] | None = None,
    advance: Callable[[int], object] = _ignore,
) -> Embeddings:
    """The embeddings of all images of the data, from the folder `cache` where it has those of the same key.

    Images that can't be read are left out and listed. `advance` is told of every batch's number of images.
    """
    if cache is None:
        return _compute(extraction, data, advance=advance)
    folder = Path(cache).expanduser()
    path = folder / f"features-{extraction.key(data)}.safetensors"
    known = _read(path)
    if known is None and any(folder.glob("features-*")):
        known = _read(folder / f"features-{_former_key(extraction, data)}.safetensors")
    if known is None:
        _check_writable(folder)
        known = _compute(extraction, data, advance=advance)
        _write(known, path)
    else:
        advance(len(data))
    return known


def _compute(extraction: Extraction, data: Dataset, *, advance: Callable[[int], object]) -> Embeddings:
    unread: list[Problem] = []
    loader = ImageLoader(
        data,
        transform=extraction.view,
        sampler=Sampler(len(data), batch_size=extraction.batch_size, is_training=False),
        num_workers=extraction.workers,
        quarantine=NotingQuarantine(unread.append),
        pin_memory=extraction.device.type == "cuda",
    )
    embedder = Embedder(extraction.faster or extraction.model).to(extraction.device)
    answers = predict(
        embedder,
        loader.epoch(0),
        normalize=extraction.normalize,
        device=extraction.device,
        dtype=extraction.dtype,
    )
    vectors, indices = [], []
    for batch_vectors, batch in answers:
        vectors.append(batch_vectors.cpu())
        indices.append(batch.indices)
        advance(len(batch_vectors))
    if not vectors:
        raise ValueError(f"none of the {len(data)} images of {data.split} of {data.name} could be read")
    return Embeddings(torch.cat(vectors), torch.cat(indices), tuple(unread))


def _former_digest(extraction: Extraction, *more: object) -> "hashlib._Hash":
    """The digest of keys that named all fields of the settings: galleries and caches of that time are good."""
    model = extraction.model
    settings = (_FORMAT, model.family, model.config, extraction.view, extraction.normalize, *more)
    digest = hashlib.sha256(repr(settings).encode())
    for name, value in sorted(model.state_dict().items()):
        digest.update(f"\n{name} {value.dtype} {list(value.shape)}\n".encode())
        digest.update(as_bytes(value).numpy().data)
    return digest


def _former_key(extraction: Extraction, data: Dataset) -> str:
    digest = _former_digest(extraction, extraction.dtype, data.split)
    _digest_images(digest, data)
    return digest.hexdigest()[:32]


def _digest_images(digest: "hashlib._Hash", data: Dataset) -> None:
    for index in range(len(data)):
        _digest_image(digest, data, index)


def _digest_image(digest: "hashlib._Hash", data: Dataset, index: int) -> None:
    place = data.locate(index)
    digest.update(f"\n{place} ".encode())
    try:
        state = os.stat(place)
        digest.update(f"{state.st_size} {state.st_mtime_ns}".encode())
        return
    except (OSError, ValueError):  # no file of its own: a member of an archive, or an image in memory
        pass
    try:
        content = data.read(index)
    except OSError as error:
        content = str(error).encode()
    digest.update(content if isinstance(content, bytes) else f"{content.shape}".encode() + content.tobytes())


def _read(path: Path) -> Embeddings | None:
    """The embeddings of a file; None where there is none, or it is damaged and has to be made again."""
    try:
        if not path.is_file():
            return None
        tensors, metadata = read_tensors(path, label=str(path))
        unread = parse_json(metadata[_UNREAD_KEY])
        return Embeddings(tensors["vectors"], tensors["indices"], tuple(Problem(*row) for row in unread))
    except (OSError, *WRONG_CONTENT) as error:
        _LOGGER.warning("%s is damaged (%s): the embeddings are computed again", path, error)
        return None


def _check_writable(folder: Path) -> None:
    """Refuse a folder that can't be written to, before the work begins."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except FileExistsError:
        raise ValueError(f"{folder}: is a file; the cache of embeddings is a folder") from None
    except OSError as error:
        told = error.strerror or error
        raise ValueError(f"the embeddings can't be kept in {folder} ({told}): choose another cache") from None


def _write(embeddings: Embeddings, path: Path) -> None:
    """Write the embeddings to a file, which takes its name only when it is complete."""
    tensors = {"vectors": embeddings.vectors, "indices": embeddings.indices}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            write_tensors(tensors, temporary, metadata={_UNREAD_KEY: json.dumps(embeddings.unread)})
    except (OSError, SafetensorError) as error:
        raise ValueError(f"the embeddings can't be kept in {path.parent} ({error}): choose another cache") from None
