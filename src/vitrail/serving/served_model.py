"""A trained model as the server has it: what it can do, and its computations, each for a batch."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitrail.data.checks import as_pair
from vitrail.data.decode import open_image
from vitrail.data.quarantine import Problem
from vitrail.data.sources.given import EncodedImages
from vitrail.evaluation.features import Embedder
from vitrail.evaluation.predict import autocast, choose_precision
from vitrail.explain.attention_rows import find_gaze
from vitrail.explain.canvas import colour, overlay
from vitrail.explain.maps import attention_maps, choose_kind, kinds_of
from vitrail.inference.folding import as_folded
from vitrail.inference.passes import Passes
from vitrail.inference.trained import Trained
from vitrail.serving.decoding import ShownPicture
from vitrail.serving.refusals import RefusedError
from vitrail.tasks import find_task
from vitrail.tasks.results import Answer

_MAP_SIDE = 336  # pixels of the longer side of a map alone
EMBED, EXPLAIN = "embed", "explain"


class DrawnAnswer(NamedTuple):
    """What a model says about places in an image, and pictures of that as PNG."""

    answer: Answer
    pictures: dict[str, bytes]


@dataclass(frozen=True)
class MapQuestion:
    """Which map of an image is asked for."""

    picture: ShownPicture
    kind: str | None
    layer: int | None
    head: int | None
    class_index: int | None
    is_alone: bool  # the map alone, not over the image


class DrawnMap(NamedTuple):
    """A map as PNG, and what it is of."""

    picture: bytes
    kind: str
    layer: int | None
    head: int | None
    class_name: str | None


class ServedModel:
    """A model with its fastest form; `compute_...` get a batch at a time, or where it `may_part` parts side by side."""

    def __init__(self, name: str, trained: Trained, *, device: torch.device, is_folded: bool = True) -> None:
        self.name = name
        self.trained = dataclasses.replace(trained, model=trained.model.to(device).eval())
        self.device, self.dtype = device, choose_precision("auto", device)
        self.task = find_task(trained.task)
        model = self.trained.model
        self.fast = as_folded(model) if is_folded else model

    @cached_property
    def abilities(self) -> tuple[str, ...]:
        """What can be asked of the model, by the names of the server's verbs."""
        found = []
        if self.task.answering is not None and self.trained.num_classes:
            found.append(self.task.answering)
        if self.trained.model.gives_embeddings:
            found.append(EMBED)
        if self.map_kinds:
            found.append(EXPLAIN)
        return tuple(found)

    @cached_property
    def map_kinds(self) -> tuple[str, ...]:
        """Kinds of maps that it has of an image."""
        model = self.trained.model.trunk
        return () if model.is_folded else tuple(kind for kind in kinds_of(model) if kind != "mixing")

    def describe(self) -> dict[str, Any]:
        """What clients are told of it."""
        height, width = as_pair(self.trained.view.image_size)
        described: dict[str, Any] = {
            "name": self.name,
            "architecture": self.trained.model.name,
            "task": self.trained.task,
            "abilities": list(self.abilities),
            "classes": list(self.trained.class_names) if self.trained.num_classes else [],
            "image_size": [height, width],
        }
        if self.map_kinds:
            gaze = find_gaze(self.trained.model.trunk)
            described["maps"] = {
                "kinds": list(self.map_kinds),
                "layers": [] if gaze is None else list(gaze.layers),
                "heads": 0 if gaze is None else gaze.num_heads,
                "shown_layer": None if gaze is None else gaze.shown_layer,
            }
        return described

    def require(self, ability: str) -> None:
        """Refuse what the model can't do."""
        if ability not in self.abilities:
            known = ", ".join(self.abilities) or "nothing"
            raise RefusedError(404, f"the model {self.name!r} can't {ability}; it can: {known}")

    @property
    def may_part(self) -> bool:
        """Whether parts of a batch may be computed side by side: a CPU's cores do, and no engine divides the work."""
        return self.device.type == "cpu" and not self.fast.uses_all_cores

    @property
    def answers_by_logits(self) -> bool:
        """Whether its answer comes of one pass over the picture of its own size, so that images share batches."""
        return self.task.answers_by_logits

    def compute_logits(self, pictures: Sequence[Tensor]) -> list[Tensor]:
        """Logits [classes] of pictures uint8 [3, height, width]."""
        return list(self._run(self.fast, pictures).cpu().unbind())

    def compute_embeddings(self, pictures: Sequence[Tensor]) -> list[Tensor]:
        """Embeddings [dim] of pictures uint8 [3, height, width]."""
        return list(self._run(self._embedder, pictures).cpu().unbind())

    def read_logits(self, logits: Sequence[Tensor], *, top: int) -> list[Answer]:
        """What logits say."""
        places = [f"image {number}" for number in range(len(logits))]
        return self.task.read_logits(self.trained, torch.stack(list(logits)), places=places, top=top)

    def compute_answers(self, images: Sequence[bytes]) -> list[DrawnAnswer | RefusedError]:
        """Answers about places in encoded images, with pictures of them."""
        results: list[DrawnAnswer | RefusedError] = []
        for image in images:
            unread: list[Problem] = []
            data = EncodedImages([image])
            trained = dataclasses.replace(self.trained, model=self.fast)
            answers = list(self.task.answer(trained, data, passes=self._passes, top=1, note_unread=unread.append))
            if unread:
                results.append(RefusedError(422, f"the image {unread[0].detail}"))
                continue
            pixels = open_image(image).pixels().numpy()
            drawn = self.task.draw_answer(answers[0], trained=trained, pixels=pixels)
            results.append(DrawnAnswer(answers[0], {name: as_png(picture) for name, picture in drawn.items()}))
        return results

    def compute_maps(self, questions: Sequence[MapQuestion]) -> list[DrawnMap | RefusedError]:
        """Maps as they are asked for."""
        return [self._draw(question) for question in questions]

    def _draw(self, question: MapQuestion) -> DrawnMap | RefusedError:
        model, picture = self.trained.model.trunk, question.picture
        try:
            kind = choose_kind(model, question.kind)
            if kind == "mixing":
                return RefusedError(400, f"mixing is of no image; maps of an image are: {', '.join(self.map_kinds)}")
            images = self.trained.normalize(picture.seen[None].to(self.device))
            maps = attention_maps(
                model,
                images,
                kind=kind,
                layer=question.layer,
                head=question.head,
                class_index=question.class_index,
            )
        except ValueError as error:
            return RefusedError(400, str(error))
        values = maps.overview()[0, 0]
        if kind == "gradient":
            values = values.clamp(min=0)
        if question.is_alone:
            longest = max(values.shape)
            height, width = (max(1, round(_MAP_SIDE * side / longest)) for side in values.shape)
            drawn = colour(values.detach().float().cpu(), size=(height, width))
        else:
            drawn = overlay(picture.image, values, picture.part)
        names = self.trained.class_names
        return DrawnMap(
            as_png(drawn),
            kind,
            maps.layers[maps.shown_place] if maps.layers else None,
            question.head,
            None if maps.classes is None else names[int(maps.classes[0, 0])],
        )

    def _run(self, module: torch.nn.Module, pictures: Sequence[Tensor]) -> Tensor:
        with torch.inference_mode(), autocast(self.device, self.dtype):
            images = torch.stack(list(pictures)).to(self.device)
            return module(self.trained.normalize(images)).float()

    @cached_property
    def _embedder(self) -> Embedder:
        return Embedder(self.fast).eval()

    @cached_property
    def _passes(self) -> Passes:
        return Passes(EncodedImages([]), None, {"device": str(self.device), "batch_size": 1, "workers": 0})


def as_png(picture: Image.Image) -> bytes:
    """A picture as a file of PNG."""
    file = BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def as_probabilities(trained: Trained, logits: Sequence[Tensor]) -> np.ndarray:
    """Probabilities float32 [images, classes]."""
    stacked = torch.stack(list(logits))
    return (stacked.sigmoid() if trained.is_multiple else stacked.softmax(dim=1)).numpy()
