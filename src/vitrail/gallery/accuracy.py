"""How well a gallery answers for labelled images that are not in it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.data.contract import Dataset, Level
from vitrail.evaluation.features import Extraction
from vitrail.evaluation.ranking import row_chunks
from vitrail.evaluation.retrieval import Levelled, evaluate_level
from vitrail.gallery.answer_rules import override
from vitrail.gallery.gallery_answers import Contents
from vitrail.gallery.gallery_images import embed_unit

_WIDTH = 8192  # numbers that are held for a query while it is answered, about


def measure_gallery(
    contents: Contents,
    extraction: Extraction,
    data: Dataset,
    *,
    rule: str | None = None,
    cache: str | None = None,
    advance: Callable[[int], object] | None = None,
) -> dict[str, Any]:
    """Figures in percent for each level that the gallery and the data have in common, with classes matched by name.

    Images of classes that the gallery does not have can't be answered rightly: they take no part in a level's figures,
    and it is told how many of them are answered `unknown`. Neighbours without a name answer as they do in `classify`.
    The level that is answered also has the accuracy of the gallery's rule, or of `rule`.
    """
    manifest = contents.facts
    common = [level for level in manifest.levels if level in data.levels and not data.levels[level].is_multiple]
    if not common:
        raise ValueError(
            f"the gallery has the labels {', '.join(manifest.levels)}, of which {data.name} has none: it has "
            f"{', '.join(data.levels)}"
        )
    if not len(contents):
        raise ValueError(f"the gallery is empty: {contents.table.place}: add images with `vitrail gallery add`")
    vectors, indices, unread = embed_unit(extraction, data, cache=cache, advance=advance)
    labels = {level: _match(contents, data.levels[level], level)[indices] for level in common}
    queries = Levelled(vectors, labels, {level: len(contents.classes(level)) for level in common})
    figures = _rank_all(contents, queries)
    answered = manifest.fine if manifest.fine in figures else None
    shares, unknown = _measure_answers(contents, queries, level=answered, is_new=labels[common[0]] < 0, rule=rule)
    if answered is not None:
        figures[answered].update(shares)
    return {
        "data": data.name,
        "split": data.split,
        "num_images": len(vectors),
        "num_left_out": len(unread),
        "num_in_gallery": len(contents),
        "num_unnamed": sum(count for own, count in contents.table.label_sets().items() if own[0] < 0),
        "neighbours": manifest.neighbours,
        "rule": override(manifest.rule, rule).name,
        "levels": figures,
        **unknown,
    }


def _rank_all(contents: Contents, queries: Levelled) -> dict[str, dict[str, Any]]:
    """The figures of each level by the ranking of all images; only the number of queries where they are too many."""
    facts, limit = contents.facts, contents.table.max_whole
    known = {level: int((labels >= 0).sum()) for level, labels in queries.labels.items() if bool((labels >= 0).any())}
    if limit is not None and len(contents) > limit:
        return {level: {"num_images": number} for level, number in known.items()}
    images = Levelled(
        contents.vectors.float(), contents.labels, {level: len(names) for level, names in facts.levels.items()}
    )
    coarse = facts.coarse if facts.coarse in queries.labels else None  # the oracle must know it of the queries
    return {
        level: evaluate_level(
            queries,
            images,
            level,
            coarse=coarse if level != coarse else None,  # known classes leave nothing to rank by them
            neighbours=facts.neighbours,
            unlabelled_vote=True,
        )
        for level in known
    }


def _match(contents: Contents, level: Level, name: str) -> Tensor:
    """The labels of data as places in the gallery's list of classes; -1 for a class without an image there."""
    counts = contents.counts(name)
    places = {known: place for place, known in enumerate(contents.classes(name)) if known in counts}
    table = torch.tensor([*(places.get(known, -1) for known in level.classes), -1])
    return table[torch.from_numpy(np.array(level.labels, dtype=np.int64))]  # -1 leads to the last


def _measure_answers(
    contents: Contents, queries: Levelled, *, level: str | None, is_new: Tensor, rule: str | None
) -> tuple[dict[str, float], dict[str, Any]]:
    """The accuracy of what `classify` answers, `unknown` aside; and the shares that are answered `unknown`."""
    is_rejected, ranks = [], []
    for rows in row_chunks(len(queries.vectors), width=_WIDTH):
        judged = contents.judge(queries.vectors[rows], rule=rule)
        is_rejected.append(judged.is_unknown)
        if level is not None:
            own = judged.probabilities.gather(1, queries.labels[level][rows].clamp(min=0)[:, None])
            ranks.append((judged.probabilities > own).sum(dim=1))
    shares = {}
    if level is not None:
        rank = torch.cat(ranks)[queries.labels[level] >= 0]
        for name, limit in (("answer_top1", 1), ("answer_top5", 5)):
            shares[name] = 100.0 * (rank < limit).double().mean().item()
    if contents.facts.threshold is None:
        return shares, {}
    rejected = torch.cat(is_rejected)
    unknown = {
        name: 100.0 * rejected[which].double().mean().item() if bool(which.any()) else None
        for name, which in (("false_reject", ~is_new), ("new_rejected", is_new))
    }
    return shares, {"num_new": int(is_new.sum()), **unknown}
