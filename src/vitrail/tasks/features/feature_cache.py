"""A teacher's features on disk, in float16, so that it is asked about each view of an image once."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.heads.features import FeatureShape
from vitrail.tasks.teaching.answer_store import AnswerStore, check_counts, locate_place, open_place

_FORMAT = 1  # of the files; part of the key
_LARGEST = 65504.0  # in float16


class FeatureCache(AnswerStore):
    """The features of each view of each sample, as rows of numbers."""

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        teacher: str,
        data: str,
        augmentation: str,
        num_samples: int,
        num_views: int,
        shape: FeatureShape,
        limit: float,
    ) -> "FeatureCache":
        """The cache in a subfolder of `folder` that all of these but the limit decide; an empty one if there is none.

        `teacher`, `data` and `augmentation` are fingerprints: with any other one nothing old is ever read. One that
        would take more gigabytes than `limit`, or than the disk has free, is refused.
        """
        check_counts(num_samples=num_samples, num_views=num_views)
        check_room(num_samples=num_samples, num_views=num_views, shape=shape, limit=limit)
        parts: dict[str, Any] = {"format": _FORMAT, "kind": "features", "teacher": teacher, "data": data}
        parts |= {"augmentation": augmentation, "num_samples": num_samples, "num_views": num_views}
        parts |= {"summary": shape.summary, "patches": shape.patches, "grid": list(shape.grid)}
        record = _record_of(shape)
        if not locate_place(folder, parts).is_dir():
            _check_disk(folder, num_samples * num_views * record.itemsize)
        place = open_place(folder, parts, num_answers=num_samples * num_views, record=record)
        return cls(place, shape=(num_samples, num_views), record=record)

    def encode(self, answers: Tensor) -> np.ndarray:
        """Rows of float16."""
        if not answers.isfinite().all():
            raise ValueError("the teacher's features are not finite: they are not kept, and can't be learnt from")
        return answers.detach().float().clamp(-_LARGEST, _LARGEST).half().cpu().numpy()

    def decode(self, records: np.ndarray, device: torch.device) -> Tensor:
        """Rows of float32."""
        return torch.from_numpy(np.ascontiguousarray(records)).to(device).float()


def check_room(*, num_samples: int, num_views: int, shape: FeatureShape, limit: float) -> None:
    """Refuse to keep more than `limit` gigabytes of features."""
    size = num_samples * num_views * _record_of(shape).itemsize / 1e9
    if size > limit:
        raise ValueError(
            f"teacher.cache=views:{num_views} of {num_samples:,} images would take {size:.1f} GB, {shape.size:,} "
            f"numbers a view, and teacher.cache_limit is {limit:g}: fewer views, features.patches=0 or a higher limit"
        )


def _check_disk(folder: Path, size: int) -> None:
    place = folder.expanduser().absolute()
    free = shutil.disk_usage(next(parent for parent in (place, *place.parents) if parent.exists())).free
    if size > free:
        raise ValueError(
            f"the teacher's features would take {size / 1e9:.1f} GB, and {free / 1e9:.1f} are free in {folder}: set "
            "teacher.cache_folder or VITRAIL_CACHE to another folder, or take fewer views"
        )


def _record_of(shape: FeatureShape) -> np.dtype:
    return np.dtype((np.float16, (shape.size,)))
