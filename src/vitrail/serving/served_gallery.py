"""A gallery as the server has it: searched by many while one changes it."""

import base64
import hashlib
import os
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from vitrail.evaluation.features import Extraction
from vitrail.gallery.gallery import Gallery
from vitrail.gallery.gallery_answers import Contents
from vitrail.gallery.gallery_manifest import MANIFEST_FILE
from vitrail.serving.refusals import RefusedError
from vitrail.serving.served_model import ServedModel
from vitrail.serving.telemetry import LOGGER


class ServedGallery:
    """A gallery with its model. A search sees one whole state; changes take turns, and are on the disk when told."""

    def __init__(self, name: str, folder: str, viewer: ServedModel) -> None:
        self.name, self.viewer = name, viewer
        trained = viewer.trained
        extraction = Extraction(
            trained.model, trained.view, trained.normalize, device=viewer.device, dtype=viewer.dtype, faster=viewer.fast
        )
        self._gallery = Gallery(folder, model=extraction)
        self._stamp = self._read_stamp()
        self._refreshing, self._changing = threading.Lock(), threading.Lock()

    def describe(self) -> dict[str, Any]:
        """What clients are told of it."""
        contents = self._see()
        facts = contents.facts
        return {
            "name": self.name,
            "model": self.viewer.name,
            "images": len(contents),
            "level": facts.fine,
            "coarse_level": facts.coarse,
            "classes": contents.counts(facts.fine),
        }

    def __len__(self) -> int:
        return len(self._gallery)

    def search(
        self, vectors: Sequence[Tensor], *, top: int, rank: str | None = None, coarse: str | None = None
    ) -> list[dict[str, Any]]:
        """For each embedding what the gallery takes it for, and the images that rank first."""
        contents = self._see()
        queries = functional.normalize(torch.stack(list(vectors)).float(), dim=1)
        ranking = rank or ("cosine" if coarse is None else "oracle")
        if not len(contents):
            raise RefusedError(409, f"the gallery {self.name!r} is empty: add images first")
        try:
            found = contents.search(queries, top=top, ranking=ranking, coarse=coarse)
            answers = contents.classify(queries, top=top, coarse=coarse)
        except ValueError as error:
            raise RefusedError(400, str(error)) from None
        return [
            {
                "label": answer.label,
                "is_unknown": answer.is_unknown,
                "probabilities": [{"class": name, "probability": round(p, 6)} for name, p in answer.probabilities],
                "hits": [
                    {
                        "id": _identify(hit.path),
                        "labels": dict(hit.labels),
                        "cosine": round(hit.cosine, 6),
                        "score": round(hit.score, 6),
                        "thumbnail": base64.b64encode(contents.thumbnail(hit.row)).decode("ascii"),
                    }
                    for hit in hits
                ],
            }
            for answer, hits in zip(answers, found, strict=True)
        ]

    def add(self, label: str, images: Sequence[np.ndarray], *, coarse: str | None = None) -> dict[str, Any]:
        """Add pixels [height, width, 3] to a class; when this returns they are on the disk."""
        with self._changing:
            try:
                added = self._gallery.add(label, list(images), coarse=coarse)
            except ValueError as error:
                raise _blame(error) from None
            return {"label": label, "added": added.count, "images_of_label": self._gallery.counts()[label]}

    def remove(self, label: str) -> dict[str, Any]:
        """Remove a class with all its images."""
        with self._changing:
            if label not in self._see().counts(self._gallery.manifest.fine):
                raise RefusedError(404, f"the gallery {self.name!r} has no class {label!r}")
            return {"removed": self._remove(label)}

    def remove_image(self, identity: str) -> dict[str, Any]:
        """Remove one image by the name that a search gave it."""
        with self._changing:
            path = next((path for path in self._see().paths() if _identify(path) == identity), None)
            if path is None:
                raise RefusedError(404, f"the gallery {self.name!r} has no such image")
            return {"removed": self._remove(path)}

    def _remove(self, what: str) -> int:
        try:
            return self._gallery.remove(what)
        except ValueError as error:
            raise _blame(error) from None

    def _see(self) -> Contents:
        """The newest state, also of what other processes have changed."""
        try:
            if self._read_stamp() != self._stamp:
                with self._refreshing:
                    stamp = self._read_stamp()  # before the content: what comes between is seen the next time
                    if stamp != self._stamp:
                        self._gallery.refresh()
                        self._stamp = stamp
        except (OSError, ValueError) as error:
            LOGGER.error("the gallery %s can't be read: %s", self.name, error)
            raise RefusedError(503, f"the gallery {self.name!r} can't be read", retry_after=1.0) from None
        return self._gallery.contents

    def _read_stamp(self) -> tuple[int, int]:
        status = os.stat(self._gallery.folder / MANIFEST_FILE)
        return status.st_mtime_ns, status.st_ino


def _identify(path: str) -> str:
    """A name for an image that tells nothing of where it lies."""
    return hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _blame(error: ValueError) -> RefusedError:
    """A refusal of what a client asked, or a failure of ours that is to be tried again."""
    is_ours = "can't be written" in str(error) or "damaged" in str(error)
    return RefusedError(503 if is_ours else 400, str(error), retry_after=1.0 if is_ours else None)
