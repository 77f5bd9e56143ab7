"""Ranked lists of a gallery for some images of labelled data, as a picture (thesis figure 2.6)."""

from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from vitrail.data.contract import Dataset
from vitrail.data.stored import Subset
from vitrail.evaluation.ranked_lists import RankedList, judge, save_ranked_lists
from vitrail.gallery.gallery import Gallery
from vitrail.gallery.gallery_answers import Contents, Hit
from vitrail.gallery.gallery_images import GivenImages, embed_unit, make_thumbnail

_QUERIES, _FOUND = 10, 10


def draw_lists(gallery: Gallery, data: Dataset, path: Path, *, rank: str = "cosine") -> Path:
    """The first image of each of the first classes, and what the gallery has most like it."""
    manifest = gallery.manifest
    levels = [manifest.fine, *filter(None, [manifest.coarse])]
    labels = {level: data.level(level) for level in manifest.levels if level in data.levels}
    _, first = np.unique(data.level(next(iter(labels))).labels, return_index=True)
    chosen = Subset(data, np.sort(first)[:_QUERIES])
    vectors, indices, _ = embed_unit(gallery.extraction, chosen)
    lists = []
    for index, hits in zip(indices.tolist(), gallery.search_vectors(vectors, top=_FOUND, rank=rank), strict=True):
        own = {level: found.classes[chosen.level(level).labels[index]] for level, found in labels.items()}
        names = [own.get(level) for level in levels]
        found = [
            (
                _picture(gallery.contents, hit),
                judge(names, [hit.labels.get(level) for level in levels]),
            )
            for hit in hits
        ]
        query = Image.open(BytesIO(make_thumbnail(chosen, index)))
        lists.append(RankedList(query, " / ".join(filter(None, names)), found))
    return save_ranked_lists(lists, path, levels=levels)


def _picture(contents: Contents, hit: Hit) -> Image.Image | None:
    """The thumbnail that is kept, or one of the file where it still is."""
    kept = contents.thumbnail(hit.row)
    if not kept and Path(hit.path).is_file():
        kept = make_thumbnail(GivenImages([hit.path]), 0)
    return Image.open(BytesIO(kept)) if kept else None
