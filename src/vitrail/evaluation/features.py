"""Embeddings of a whole data set, kept on disk so that the next probe of the same model needs no pass over the data."""

import contextlib
import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from vitrail.data.augment import EvaluationView
from vitrail.data.blend import Normalize
from vitrail.data.contract import Dataset
from vitrail.data.loader import ImageLoader
from vitrail.data.quarantine import NotingQuarantine, Problem
from vitrail.data.turns import RangeSampler, cut_pieces
from vitrail.evaluation.embedding_files import EmbeddingParts, Embeddings, keep_if_whole, read_embeddings
from vitrail.evaluation.predict import predict
from vitrail.evaluation.together import Alone, Together
from vitrail.layers.classifier import PerClassClassifier
from vitrail.models.contract import Model
from vitrail.storage import describe_settings, hash_text, locked, write_json
from vitrail.storage.tensors import as_bytes, hash_tensors

_LOGGER = logging.getLogger(__name__)
_FORMAT = 1  # of the cached files; part of their key
_BATCHES_OF_A_PART = 32  # at most, of a file that is written while embeddings are computed
_MOST_PARTS = 4096  # of very many images, whose files then hold more batches
_MANIFEST_FILE = "manifest.json"  # among the parts: what they are parts of


class Embedder(nn.Module):
    """A model without its classifier: from images to one vector each.

    One summary token is the vector. Two of them, with distillation, are put side by side, so that a linear probe can
    weigh both and still be written as the model's two heads. Tokens of single classes know about other classes than the
    data's, and a class stage that nothing has trained knows nothing: there it is the mean of the patches.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.training = model.training  # else evaluating would leave the model in training mode
        self.reads_patches = model.reads_patches or isinstance(model.head, PerClassClassifier)
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
    world: Together = field(default_factory=Alone)  # the processes that share the images of a data set among them

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
        if self.model.reads_patches:
            settings += " patches"
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
    key: str | None = None,
    may_be_empty: bool = False,
    advance: Callable[[int], object] = _ignore,
) -> Embeddings:
    """The embeddings of all images of the data, from the folder `cache` where it has those of the same key.

    Images that can't be read are left out and listed; where none can be, it is an error unless `may_be_empty`.
    `advance` is told of every batch's number of images. What is computed for a cache is written as it comes: a pass
    that was killed goes on with what is there, and memory holds some batches only. Several processes compute an equal
    share each, which they write to the cache or, without one, to a folder that is removed; the main process then has
    all embeddings, and the others none. A `key` of the caller's own spares reading images that are no files only to
    know them again.
    """
    world = extraction.world
    if cache is not None:
        found = _embed_in(Path(cache).expanduser(), extraction, data, key=key, advance=advance)
    elif world.num_ranks > 1:
        with _scratch_folder(world) as folder:
            _compute_parts(extraction, data, folder / "features.safetensors", advance=advance)
            found = _open_made(folder / "features.safetensors", world=world)
    else:
        [found] = _compute(extraction, data, [range(len(data))], advance=advance)
    if world.is_main and not may_be_empty and not len(found.indices):
        raise ValueError(f"none of the {len(data)} images of {data.split} of {data.name} could be read")
    return found


def _embed_in(
    folder: Path, extraction: Extraction, data: Dataset, *, key: str | None, advance: Callable[[int], object]
) -> Embeddings:
    """The embeddings in a folder, where they are computed if need be."""
    world = extraction.world
    key, known = world.share(_look_up(folder, extraction, data, key=key) if world.is_main else None)
    assert key is not None
    path = Path(folder / f"features-{key}.safetensors" if known is None else known)
    if known is None:
        with _working_in(folder, key, is_main=world.is_main):
            if not world.share(world.is_main and keep_if_whole(path)):  # else another command has made it meanwhile
                _compute_parts(extraction, data, path, advance=advance)
    else:
        advance(len(data))
    return _open_made(path, world=world)


def _open_made(path: Path, *, world: Together) -> Embeddings:
    """All embeddings in the main process; none in the others, whose memory they would fill for nothing."""
    if not world.is_main:
        return Embeddings(torch.zeros(0, 0), torch.zeros(0, dtype=torch.int64))
    found = read_embeddings(path)
    if found is None:
        raise ValueError(f"{path} was removed, or damaged, as soon as it was written: choose another cache")
    return found


def _look_up(folder: Path, extraction: Extraction, data: Dataset, *, key: str | None) -> tuple[str, str | None]:
    """The key of embeddings, and the file that has them."""
    has_own_key, key = key is not None, key or extraction.key(data)
    path = folder / f"features-{key}.safetensors"
    if read_embeddings(path) is not None:
        return key, str(path)
    if not has_own_key and any(folder.glob("features-*")):
        former = folder / f"features-{_former_key(extraction, data)}.safetensors"
        if read_embeddings(former) is not None:
            return key, str(former)
    _check_writable(folder)
    return key, None


def _compute_parts(extraction: Extraction, data: Dataset, path: Path, *, advance: Callable[[int], object]) -> None:
    """Compute what is missing of embeddings, each process its share of it, and make them one file."""
    world = extraction.world
    parts = EmbeddingParts(path.with_suffix(".parts"), num_images=len(data))
    pieces: list[range] | None = None
    if world.is_main:
        with _telling_of_the_disk(path.parent):
            pieces = _begin_parts(parts, extraction, data)
    pieces = world.share(pieces)
    if any(world.any(not parts.folder.is_dir())):
        raise ValueError(f"{parts.folder} is not seen by all processes: give cache=FOLDER that all machines share")
    advance(len(data) - sum(map(len, pieces)))
    own = pieces[world.rank :: world.num_ranks]
    found = _compute(extraction, data, own, advance=lambda count: advance(count * world.num_ranks))
    for piece, embeddings in zip(own, found, strict=True):
        with _telling_of_the_disk(path.parent):
            parts.write(piece, embeddings)
    world.gather(None)  # all have written theirs
    if world.is_main:
        with _telling_of_the_disk(path.parent):
            parts.join(path)
        shutil.rmtree(parts.folder, ignore_errors=True)


def _begin_parts(parts: EmbeddingParts, extraction: Extraction, data: Dataset) -> list[range]:
    """The folder of parts, with a word about what it is; which pieces are to be computed."""
    parts.folder.mkdir(parents=True, exist_ok=True)
    said = {"model": extraction.model.name, "model_key": extraction.model_key(), "precision": str(extraction.dtype)}
    said |= {"data": data.name, "split": data.split}
    write_json(parts.folder / _MANIFEST_FILE, {"format": _FORMAT, **said, "num_images": len(data)})
    parts.drop_damaged()
    missing = parts.missing()
    if sum(map(len, missing)) < len(data):
        _LOGGER.info("%s: %d images are embedded already", parts.folder, len(data) - sum(map(len, missing)))
    most = max(_BATCHES_OF_A_PART, -(-len(data) // extraction.batch_size) // _MOST_PARTS)
    return cut_pieces(missing, batch_size=extraction.batch_size, num_ranks=extraction.world.num_ranks, most=most)


def _compute(
    extraction: Extraction, data: Dataset, pieces: Sequence[range], *, advance: Callable[[int], object]
) -> Iterator[Embeddings]:
    """The embeddings of one range of the images after the other."""
    unread: list[Problem] = []
    loader = ImageLoader(
        data,
        transform=extraction.view,
        sampler=RangeSampler(len(data), batch_size=extraction.batch_size, epochs=[[piece] for piece in pieces]),
        num_workers=extraction.workers,
        quarantine=NotingQuarantine(unread.append),
        pin_memory=extraction.device.type == "cuda",
    )
    embedder = Embedder(extraction.faster or extraction.model).to(extraction.device)
    for number in range(len(pieces)):
        answers = predict(
            embedder,
            loader.epoch(number),
            normalize=extraction.normalize,
            device=extraction.device,
            dtype=extraction.dtype,
        )
        vectors, indices = [torch.zeros(0, 0)], [torch.zeros(0, dtype=torch.int64)]
        for batch_vectors, batch in answers:
            vectors.append(batch_vectors.cpu())
            indices.append(batch.indices)
            advance(len(batch_vectors))
        yield Embeddings(torch.cat(vectors[1:] or vectors), torch.cat(indices), tuple(unread))
        unread.clear()


def _former_digest(extraction: Extraction, *more: object) -> "hashlib._Hash":
    """The digest of keys that named all fields of the settings: galleries and caches of that time are good."""
    model = extraction.model
    settings = (_FORMAT, model.family, model.config, extraction.view, extraction.normalize, *more)
    digest = hashlib.sha256(repr(settings).encode())
    if model.reads_patches:  # at that time the class stage was asked
        digest.update(b"patches")
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


@contextlib.contextmanager
def _working_in(folder: Path, key: str, *, is_main: bool) -> Iterator[None]:
    """Keep other commands from computing the same embeddings into a folder at the same time; they wait."""
    if not is_main:
        yield
        return
    place = folder / f".features-{key}.lock"
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(place, patience=0))
        except BlockingIOError:
            _LOGGER.warning("another process computes these embeddings into %s: waiting for it", folder)
            stack.enter_context(locked(place))
        yield
        place.unlink(missing_ok=True)


@contextlib.contextmanager
def _scratch_folder(world: Together) -> Iterator[Path]:
    """A folder that is gone at the end; memory that is mapped from its files stays."""
    folder = Path(world.share(tempfile.mkdtemp(prefix="vitrail-features-") if world.is_main else None))
    try:
        yield folder
    finally:
        if world.is_main:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _telling_of_the_disk(folder: Path) -> Iterator[None]:
    """Blame what goes wrong while embeddings are written on the folder."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise ValueError(f"the embeddings can't be kept in {folder} ({error}): choose another cache") from None
