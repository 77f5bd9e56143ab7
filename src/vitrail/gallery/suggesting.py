"""Finer groups inside a coarse class, for a person to name."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from vitrail.evaluation.kmeans import cluster
from vitrail.gallery.gallery_answers import UNNAMED, Contents

_MAX_JUDGED = 1000  # images that decide the number of groups
_MAX_GROUPS = 10  # that are tried


@dataclass(frozen=True)
class Group:
    """Images that are alike."""

    count: int
    cosine: float  # the mean to the group's centre: how much alike they are
    labels: tuple[tuple[str, int], ...]  # what is known of them by the level that is answered, the most frequent first
    examples: tuple[int, ...]  # rows of the gallery, the nearest to the centre first among those with a picture
    paths: tuple[str, ...]  # of all its images, in the same order


def suggest_groups(contents: Contents, *, coarse: str | None, num_groups: int | None, num_examples: int) -> list[Group]:
    """The groups of a coarse class, the largest first; as many as suit the images where no number is given."""
    level = contents.facts.coarse or contents.facts.fine
    rows = contents.rows
    if coarse is not None:
        rows = contents.table.find_rows({level: contents.class_index(level, coarse)})
    if len(rows) < 2:
        raise ValueError(f"there are {len(rows)} images: groups need at least two")
    vectors = contents.table.vectors_of(rows).float()
    number = choose_number(vectors) if num_groups is None else num_groups
    if not 1 <= number <= len(rows):
        raise ValueError(f"{len(rows)} images can't be put into {number} groups")
    found = cluster(vectors, num_clusters=number, backend="torch")
    centres = functional.normalize(found.centroids, dim=1)
    groups = []
    for place in range(number):
        own = (found.labels == place).nonzero()[:, 0]
        if len(own):
            cosines = vectors[own] @ centres[place]
            ordered = rows[own[cosines.argsort(descending=True)]].tolist()
            groups.append(_describe(contents, ordered, cosine=cosines.mean().item(), num_examples=num_examples))
    return sorted(groups, key=lambda group: -group.count)


def choose_number(vectors: Tensor, *, seed: int = 0) -> int:
    """The number of groups, 2 to 10, with the best silhouette; 1 where there are too few vectors to tell."""
    if len(vectors) < 4:
        return 1
    order = torch.randperm(len(vectors), generator=torch.Generator().manual_seed(seed))[:_MAX_JUDGED]
    judged = vectors[order]
    tried = range(2, min(_MAX_GROUPS, len(judged) // 2) + 1)
    groups = {number: cluster(judged, num_clusters=number, seed=seed, backend="torch").labels for number in tried}
    return max(tried, key=lambda number: silhouette(judged, groups[number]))


def silhouette(vectors: Tensor, groups: Tensor) -> float:
    """The mean of (b - a) / max(a, b) over vectors of length 1, of distances 1 - cosine.

    a is the mean distance to the others of a vector's group, b that to the nearest other group; a vector that is alone
    counts 0.
    """
    names, groups = groups.unique(return_inverse=True)
    members = functional.one_hot(groups, len(names)).to(vectors.dtype)
    sizes = members.sum(dim=0)
    distances = (1.0 - vectors @ vectors.T).fill_diagonal_(0.0) @ members  # summed by group
    rows = torch.arange(len(vectors))
    own_size = sizes[groups]
    own = distances[rows, groups] / (own_size - 1).clamp(min=1)
    means = distances / sizes
    means[rows, groups] = torch.inf
    other = means.min(dim=1).values
    values = (other - own) / torch.maximum(own, other).clamp(min=1e-12)
    return values.masked_fill(own_size == 1, 0.0).mean().item()


def _describe(contents: Contents, rows: list[int], *, cosine: float, num_examples: int) -> Group:
    names = [*contents.classes(contents.facts.fine), UNNAMED]
    counts: dict[str, int] = {}
    for place in contents.table.labels_of(torch.tensor(rows))[:, 0].tolist():
        counts[names[place]] = counts.get(names[place], 0) + 1
    pictured = zip(contents.table.thumbnails_of(rows), rows, strict=True)
    return Group(
        count=len(rows),
        cosine=cosine,
        labels=tuple(sorted(counts.items(), key=lambda pair: -pair[1])),
        examples=tuple(row for _, row in sorted(pictured, key=lambda pair: not pair[0])[:num_examples]),
        paths=tuple(contents.table.paths_of(rows)),
    )
