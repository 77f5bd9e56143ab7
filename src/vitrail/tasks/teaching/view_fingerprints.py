"""Fingerprints of what a teacher is asked about: data, and the views of it."""

import hashlib
import os

import numpy as np

from vitrail.data.augment import Augmentation
from vitrail.data.contract import Dataset
from vitrail.storage import describe_settings, hash_text

_NUM_READ = 256  # samples whose content goes into the fingerprint of data


def fingerprint_data(dataset: Dataset) -> str:
    """A fingerprint of the samples in their order, wherever they lie: places, sizes, labels and some of the content.

    The places are relative to what they have in common, so that data may be moved. Every file's size is read, and the
    bytes of up to 256 samples: changing others in place, without a change of size, is not seen.
    """
    digest = hashlib.blake2b(f"{len(dataset)}\n".encode(), digest_size=16)
    places = [dataset.locate(index) for index in range(len(dataset))]
    common = os.path.commonprefix([min(places), max(places)])  # noqa: RUF071 (not all places are paths)
    start = max(common.rfind("/"), common.rfind(os.sep), common.rfind("!")) + 1
    archives: dict[str, int] = {}
    for place in places:
        digest.update(f"{place[start:]} {_size_of(place, archives)}\n".encode(errors="surrogateescape"))
    for name, level in sorted(dataset.levels.items()):
        digest.update(f"{name} {level.labels.shape}\n".encode())
        digest.update(np.ascontiguousarray(level.labels).tobytes())
    for index in np.unique(np.linspace(0, len(dataset) - 1, _NUM_READ).round().astype(int)).tolist():
        digest.update(_content_of(dataset, index))
    return digest.hexdigest()


def fingerprint_augmentation(augmentation: Augmentation, *, seed: int = 0) -> str:
    """A fingerprint of all settings of the views, and of the seed they are drawn with."""
    settings = augmentation.settings
    parts = settings.model_dump(exclude={"repeats"}, exclude_defaults=True)
    return hash_text(describe_settings([augmentation.image_size, parts, augmentation.own_steps, seed]))


def _size_of(place: str, archives: dict[str, int]) -> int:
    """The size of the file at a place, or of the archive `archive!member` it is in; -1 where there is none."""
    try:
        return os.stat(place).st_size
    except (OSError, ValueError):
        archive = place.rpartition("!")[0]
    if archive not in archives:
        try:
            archives[archive] = os.stat(archive).st_size
        except (OSError, ValueError):
            archives[archive] = -1
    return archives[archive]


def _content_of(dataset: Dataset, index: int) -> bytes:
    try:
        content = dataset.read(index)
    except OSError:
        return b"unreadable"
    return content if isinstance(content, bytes) else f"{content.shape}".encode() + content.tobytes()
