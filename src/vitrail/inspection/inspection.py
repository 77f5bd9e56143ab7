"""`inspect_model`: all that can be measured inside a model, as tables, pictures and a page."""

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.evaluation.energy import cumulative_energy
from vitrail.evaluation.tokens import TokenMeter, watched_tokens
from vitrail.inspection.attention_reach import AttentionMeter, watched_attention
from vitrail.inspection.branches import watched_branches
from vitrail.inspection.history import Moment, read_history
from vitrail.inspection.inspection_page import render_inspection
from vitrail.inspection.inspection_parts import (
    InspectionPart,
    distance_part,
    energy_part,
    find_part,
    parallel_part,
    ratios_part,
    scales_part,
    sparsity_part,
    spread_part,
    tokens_part,
)
from vitrail.inspection.layers import Layer, LayerMeans, evaluating, find_layers
from vitrail.inspection.parallel import watched_pairs
from vitrail.inspection.weights import scales_of, sparsities_of
from vitrail.layers.classifier import PerClassClassifier
from vitrail.models.contract import Features, Model
from vitrail.pages.charts import draw_document

PAGE_FILE = "report.html"
BATCH_SIZE = 8  # attention of all patches to all is held for a batch


@dataclass(frozen=True)
class Inspection:
    """What was found inside a model."""

    model_name: str
    num_parameters: int
    num_blocks: int
    num_images: int
    image_size: tuple[int, int]
    parts: tuple[InspectionPart, ...]

    def part(self, name: str) -> InspectionPart:
        """The part of that name, which may only say why it is missing."""
        return find_part(self.parts, name)

    def write(self, folder: str | os.PathLike[str], *, source: str = "", data: str = "") -> Path:
        """Write `report.html`, a CSV for each table and an SVG for each picture into a folder; gives the page's path.

        `source` and `data` are what the page says of where the model and the images come from.
        """
        height, width = self.image_size
        facts = {
            "parameters": f"{self.num_parameters / 1e6:.1f} M",
            "blocks": str(self.num_blocks) if self.num_blocks else "",
            "images": f"{self.num_images:,}",
            "pixels": f"{height} x {width}",
        }
        words = [f"Weights of {source}." if source else "", f"Images of {data}." if data else ""]
        page = render_inspection(
            self.model_name,
            lead=[" ".join(filter(None, words))],
            facts={what: value for what, value in facts.items() if value},
            parts=self.parts,
        )
        return write_inspection(folder, page=page, parts=self.parts)


def write_inspection(folder: str | os.PathLike[str], *, page: str, parts: Sequence[InspectionPart]) -> Path:
    """Write a page, and the tables and pictures of its parts beside it; gives the page's path."""
    pictures = {part.name: draw_document(part.chart) for part in parts if part.chart is not None}
    place = Path(folder).expanduser()
    try:
        place.mkdir(parents=True, exist_ok=True)
        for part in parts:
            for name, table in part.files.items():
                (place / f"{name}.csv").write_text(table.as_csv(), encoding="utf-8")
        for name, picture in pictures.items():
            (place / f"{name}.svg").write_text(picture, encoding="utf-8")
        (place / PAGE_FILE).write_text(page, encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{error.filename or place} can't be written: {error.strerror}") from None
    return place / PAGE_FILE


def _ignore(count: int) -> None:
    """Show no progress."""


def inspect_model(
    model: Model,
    images: Tensor,
    *,
    records: Iterable[Mapping[str, Any]] = (),
    batch_size: int = BATCH_SIZE,
    advance: Callable[[int], object] = _ignore,
) -> Inspection:
    """Measure what happens inside a model while it looks at images [images, channels, height, width] prepared for it.

    `records` are those of a run's metrics: where ratios of branches are among them, their course is drawn. What a model
    does not have is a part that says so. `advance` is told of every batch's number of images, twice: the second pass is
    for the parallel errors. The model is left as it was, in its mode and without a hook.
    """
    _check(model, images, batch_size=batch_size)
    layers = find_layers(model)
    seen = _look(model, images, batch_size=batch_size, advance=advance)
    errors = _find_errors(model, images, batch_size=batch_size, advance=advance)
    parts = _make_parts(model, layers, seen, errors, read_history(records))
    return Inspection(
        model_name=model.name or type(model).__name__,
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        num_blocks=len({layer.label for layer in layers}),
        num_images=len(images),
        image_size=(images.shape[2], images.shape[3]),
        parts=parts,
    )


def _check(model: object, images: object, *, batch_size: int) -> None:
    if not isinstance(model, Model):
        raise ValueError(f"inspect_model takes a model made by create_model or load_model, not {type(model).__name__}")
    if model.is_folded:
        raise ValueError("a folded model has no branches of its own any more: pass the model it was folded from")
    if isinstance(images, Tensor) and images.ndim == 4 and len(images) == 0:
        raise ValueError("there are no images to look at: give at least 1")
    model.check_images(images)  # type: ignore[arg-type]
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, not {batch_size}")


@dataclass(eq=False)
class _Seen:
    """What one pass over the images tells."""

    ratios: LayerMeans
    attention: AttentionMeter
    tokens: TokenMeter | str  # or why there is none
    embeddings: Tensor
    num_patches: int


def _look(model: Model, images: Tensor, *, batch_size: int, advance: Callable[[int], object]) -> _Seen:
    vectors, num_patches = [], 0
    device = next(model.parameters()).device
    with contextlib.ExitStack() as stack:
        stack.enter_context(evaluating(model))
        ratios = stack.enter_context(watched_branches(model))
        attention = stack.enter_context(watched_attention(model, (images.shape[2], images.shape[3])))
        tokens: TokenMeter | str
        try:
            tokens = stack.enter_context(watched_tokens(model.trunk))
        except ValueError as error:
            tokens = str(error)
        for batch in images.split(batch_size):
            features = model.features(batch.to(device))
            vectors.append(_embedding_of(model, features).float().cpu())
            num_patches = features.patches.shape[2] * features.patches.shape[3]
            advance(len(batch))
    return _Seen(ratios, attention, tokens, torch.cat(vectors), num_patches)


def _embedding_of(model: Model, features: Features) -> Tensor:
    """All summary tokens side by side; with a token per class the mean of the patches, as embeddings are made."""
    if isinstance(model.trunk.head, PerClassClassifier):
        return features.patches.mean(dim=(2, 3))
    return features.summary.flatten(1)


def _find_errors(
    model: Model, images: Tensor, *, batch_size: int, advance: Callable[[int], object]
) -> dict[str, list[float | None]]:
    device = next(model.parameters()).device
    with evaluating(model), watched_pairs(model) as errors:
        for batch in images.split(batch_size):
            model.features(batch.to(device))
            advance(len(batch))
    return errors.results()


def _make_parts(
    model: Model,
    layers: Sequence[Layer],
    seen: _Seen,
    errors: dict[str, list[float | None]],
    history: Sequence[Moment],
) -> tuple[InspectionPart, ...]:
    label = model.name or type(model).__name__
    closed = f"{label} is a backbone of timm, whose layers are not open to this" if model.trunk.foreign else ""
    scales, sparsities = scales_of(model), sparsities_of(model)
    distances, spreads = seen.attention.distances(), seen.attention.spreads()
    even = seen.attention.even_distance
    has_errors = any(value is not None for values in errors.values() for value in values)
    return (
        ratios_part(layers, seen.ratios.results(), history)
        if layers
        else InspectionPart("ratios", missing=closed or f"{label} has no residual layers"),
        parallel_part(layers, errors)
        if has_errors
        else InspectionPart("parallel", missing=closed or f"{label} has no two layers that follow each other"),
        scales_part(scales)
        if scales
        else InspectionPart("layer_scale", missing=closed or f"{label} has no LayerScale"),
        distance_part(layers, distances, even=even)
        if distances and even is not None
        else InspectionPart("attention_distance", missing=closed or f"{label} has no self-attention"),
        spread_part(layers, spreads, num_patches=seen.num_patches)
        if spreads
        else InspectionPart("class_attention_spread", missing=f"{label} has no class-attention"),
        InspectionPart("tokens", missing=seen.tokens)
        if isinstance(seen.tokens, str)
        else tokens_part(list(seen.tokens.results())),
        sparsity_part(sparsities)
        if sparsities
        else InspectionPart("sparsity", missing=closed or f"{label} has no residual layers"),
        _find_energy(seen.embeddings),
    )


def _find_energy(embeddings: Tensor) -> InspectionPart:
    try:
        return energy_part(cumulative_energy(embeddings), num_images=len(embeddings), dim=embeddings.shape[1])
    except ValueError as error:
        return InspectionPart("energy", missing=str(error))
