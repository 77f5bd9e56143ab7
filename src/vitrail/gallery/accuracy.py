"""How well a gallery answers for labelled images that are not in it."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.data.contract import Dataset, Level
from vitrail.evaluation.features import Extraction
from vitrail.evaluation.retrieval import Levelled, evaluate_level
from vitrail.gallery.gallery_answers import Contents
from vitrail.gallery.gallery_images import embed_unit


def measure_gallery(
    contents: Contents,
    extraction: Extraction,
    data: Dataset,
    *,
    cache: str | None = None,
    advance: Callable[[int], object] | None = None,
) -> dict[str, Any]:
    """Figures in percent for each level that the gallery and the data have in common, with classes matched by name.

    Images of classes that the gallery does not have can't be answered rightly: they take no part in a level's figures,
    and it is told how many of them are answered `unknown`. Neighbours without a name answer as they do in `classify`.
    """
    manifest = contents.state.manifest
    common = [level for level in manifest.levels if level in data.levels and not data.levels[level].is_multiple]
    if not common:
        raise ValueError(
            f"the gallery has the labels {', '.join(manifest.levels)}, of which {data.name} has none: it has "
            f"{', '.join(data.levels)}"
        )
    if not len(contents):
        raise ValueError("the gallery is empty: add images with `vitrail gallery add`")
    vectors, indices, unread = embed_unit(extraction, data, cache=cache, advance=advance)
    labels = {level: _match(contents, data.levels[level], level)[indices] for level in common}
    queries = Levelled(vectors, labels, {level: len(contents.classes(level)) for level in common})
    images = Levelled(
        contents.vectors.float(), contents.labels, {level: len(names) for level, names in manifest.levels.items()}
    )
    figures = {}
    coarse = manifest.coarse if manifest.coarse in common else None  # the oracle must know it of the queries
    for level in common:
        if bool((labels[level] >= 0).any()):
            other = coarse if level != coarse else None  # known classes leave nothing to rank by them
            figures[level] = evaluate_level(
                queries, images, level, coarse=other, neighbours=manifest.neighbours, unlabelled_vote=True
            )
    return {
        "data": data.name,
        "split": data.split,
        "num_images": len(vectors),
        "num_left_out": len(unread),
        "num_in_gallery": len(contents),
        "num_unnamed": int((contents.labels[manifest.fine] < 0).sum()),
        "neighbours": manifest.neighbours,
        "levels": figures,
        **_measure_unknown(contents, vectors, labels[common[0]] < 0),
    }


def _match(contents: Contents, level: Level, name: str) -> Tensor:
    """The labels of data as places in the gallery's list of classes; -1 for a class without an image there."""
    counts = contents.counts(name)
    places = {known: place for place, known in enumerate(contents.classes(name)) if known in counts}
    table = torch.tensor([*(places.get(known, -1) for known in level.classes), -1])
    return table[torch.from_numpy(np.array(level.labels, dtype=np.int64))]  # -1 leads to the last


def _measure_unknown(contents: Contents, vectors: Tensor, is_new: Tensor) -> Mapping[str, Any]:
    """Which share is answered `unknown`, of images of known classes and of others."""
    threshold = contents.state.manifest.threshold
    if threshold is None:
        return {}
    nearest, _ = contents.nearest(vectors, count=1)
    is_rejected = nearest[:, 0] < threshold.cosine
    shares = {
        name: 100.0 * is_rejected[which].double().mean().item() if bool(which.any()) else None
        for name, which in (("false_reject", ~is_new), ("new_rejected", is_new))
    }
    return {"num_new": int(is_new.sum()), **shares}
