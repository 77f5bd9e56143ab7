"""A gallery as the server has it: searched by many while one changes it."""

import base64
import hashlib
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from vitrail.gallery.gallery import Gallery
from vitrail.gallery.gallery_answers import Contents, Hit
from vitrail.gallery.gallery_manifest import GalleryFacts
from vitrail.gallery.store_failures import StoreFailedError
from vitrail.serving.decoding import NewImage
from vitrail.serving.refusals import RefusedError
from vitrail.serving.served_model import ServedModel
from vitrail.serving.telemetry import LOGGER

Answer = TypeVar("Answer")


class ServedGallery:
    """A gallery of the embeddings of a model, in a folder or on Milvus.

    A search sees one whole state; changes take turns, and are kept when they are told.
    """

    def __init__(self, name: str, place: str, viewer: ServedModel) -> None:
        self.name, self.viewer = name, viewer
        self._gallery = Gallery(place, model=viewer.trained)
        self._is_fitting = {self._gallery.manifest.model.key: True}  # by what galleries say of their model
        self._stamp = self._gallery.store.stamp()
        self._refreshing, self._changing = threading.Lock(), threading.Lock()

    def describe(self) -> dict[str, Any]:
        """What clients are told of it."""

        def describe(contents: Contents) -> dict[str, Any]:
            facts = contents.facts
            return {
                "name": self.name,
                "model": self.viewer.name,
                "images": len(contents),
                "level": facts.fine,
                "coarse_level": facts.coarse,
                "classes": contents.counts(facts.fine),
            }

        return self._ask(describe)

    def __len__(self) -> int:
        return self._ask(len)

    def search(
        self, vectors: Sequence[Tensor], *, top: int, rank: str | None = None, coarse: str | None = None
    ) -> list[dict[str, Any]]:
        """For each embedding what the gallery takes it for, and the images that rank first."""
        queries = _as_unit(vectors)
        ranking = rank or ("cosine" if coarse is None else "oracle")

        def search(contents: Contents) -> list[dict[str, Any]]:
            if not len(contents):
                raise RefusedError(409, f"the gallery {self.name!r} is empty: add images first")
            found = contents.search(queries, top=top, ranking=ranking, coarse=coarse)
            answers = contents.classify(queries, top=top, coarse=coarse)
            return [
                {
                    "label": answer.label,
                    "is_unknown": answer.is_unknown,
                    "probabilities": [{"class": name, "probability": round(p, 6)} for name, p in answer.probabilities],
                    "hits": [_tell(hit, contents) for hit in hits],
                }
                for answer, hits in zip(answers, found, strict=True)
            ]

        return self._ask(search)

    def add(
        self, label: str, images: Sequence[NewImage], vectors: Sequence[Tensor], *, coarse: str | None = None
    ) -> dict[str, Any]:
        """Add images with their embeddings to a class; when this returns they are on the disk."""
        embedded = _as_unit(vectors)
        if not bool(embedded.isfinite().all()):
            raise RefusedError(400, "the embeddings of the images are not finite: nothing was added")
        paths, thumbnails = [one.path for one in images], [one.thumbnail for one in images]
        with self._changing:
            try:
                added = self._gallery.add_embedded(label, embedded, paths=paths, thumbnails=thumbnails, coarse=coarse)
            except (OSError, ValueError) as error:
                raise self._blame(error) from None
            known = self._count_classes()
            return {"label": label, "added": added.count, "images_of_label": known.get(label, 0)}

    def remove(self, label: str) -> dict[str, Any]:
        """Remove a class with all its images."""
        with self._changing:
            if label not in self._count_classes():
                raise RefusedError(404, f"the gallery {self.name!r} has no class {label!r}")
            return {"removed": self._remove(label)}

    def remove_image(self, identity: str) -> dict[str, Any]:
        """Remove one image by the name that a search gave it."""
        with self._changing:
            paths = self._ask(lambda contents: list(contents.paths()))
            path = next((path for path in paths if _identify(path) == identity), None)
            if path is None:
                raise RefusedError(404, f"the gallery {self.name!r} has no such image")
            return {"removed": self._remove(path)}

    def _remove(self, what: str) -> int:
        try:
            return self._gallery.remove(what)
        except (OSError, ValueError) as error:
            raise self._blame(error) from None

    def _count_classes(self) -> dict[str, int]:
        return self._ask(lambda contents: contents.counts(contents.facts.fine))

    def _ask(self, question: Callable[[Contents], Answer]) -> Answer:
        """What the newest state answers, also of what other processes have changed."""

        def ask(contents: Contents) -> Answer:
            self._check_model(contents.facts)
            return question(contents)

        try:
            self._refresh()
            return self._gallery.ask(ask)
        except (OSError, ValueError) as error:
            raise self._blame(error) from None

    def _refresh(self) -> None:
        store = self._gallery.store
        if store.stamp() == self._stamp:
            return
        with self._refreshing:
            stamp = store.stamp()  # before the content: what comes between is seen the next time
            if stamp != self._stamp:
                self._gallery.refresh()
                self._stamp = stamp

    def _check_model(self, facts: GalleryFacts) -> None:
        """Refuse what another process may have put in the gallery's place: the embeddings of another model."""
        key = facts.model.key
        if key not in self._is_fitting:
            self._is_fitting[key] = self._gallery.extraction.has_model_key(key)
        if not self._is_fitting[key]:
            raise StoreFailedError(f"it holds embeddings of another model ({facts.model.name}): load all anew")

    def _blame(self, error: OSError | ValueError) -> RefusedError:
        """A refusal of what a client asked, or a failure of ours, which the log tells and which may be tried again."""
        if not isinstance(error, (OSError, StoreFailedError)):
            place = rf"(?<![\w./-]){re.escape(self._gallery.store.place)}(?![\w-])"
            return RefusedError(400, re.sub(place, lambda _: self.name, str(error)))
        LOGGER.error("the gallery %s can't be read or changed: %s", self.name, error)
        return RefusedError(503, f"the gallery {self.name!r} can't be read or changed now", retry_after=1.0)


def _as_unit(vectors: Sequence[Tensor]) -> Tensor:
    """Embeddings [images, dim] of length 1."""
    return functional.normalize(torch.stack(list(vectors)).float(), dim=1)


def _tell(hit: Hit, contents: Contents) -> dict[str, Any]:
    return {
        "id": _identify(hit.path),
        "labels": dict(hit.labels),
        "cosine": round(hit.cosine, 6),
        "score": round(hit.score, 6),
        "thumbnail": base64.b64encode(contents.thumbnail(hit.row)).decode("ascii"),
    }


def _identify(path: str) -> str:
    """A name for an image that tells nothing of where it lies."""
    return hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()[:16]
