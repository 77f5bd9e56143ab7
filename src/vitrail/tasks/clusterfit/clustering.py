"""Clusters of a model's features in the place of labels: the second training of ClusterFit+ (thesis 2.4.2)."""

import logging
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from vitrail.data.contract import Dataset, Level
from vitrail.data.stored import Relabelled
from vitrail.evaluation.features import Embeddings, Extraction, embed
from vitrail.evaluation.kmeans import cluster, nearest_centroids
from vitrail.inference.trained import load_trained
from vitrail.storage import content_of, remove, replacing
from vitrail.storage.tensors import read_tensors, write_tensors
from vitrail.tasks.clusterfit.settings import ClusterFitRecipe
from vitrail.tasks.images.image_task import count_workers
from vitrail.tasks.images.labelled_data import LabelledData
from vitrail.tasks.site import Site

_LOGGER = logging.getLogger(__name__)
_POLL_SECONDS = 1.0
LEVEL = "cluster"  # the name of the labels


def cluster_data(data: LabelledData, recipe: ClusterFitRecipe, *, site: Site) -> LabelledData:
    """The data with clusters of its training images for labels.

    They are found once and kept in a file: a run goes on with the same. All processes compute features, each a share of
    the images, which are kept until there are clusters of them, so that a run that was killed goes on. The main process
    clusters them; the others look for the file, for k-means of a large data set takes longer than processes wait for
    each other. For a plan, which has no folder, clusters of no meaning are as good.
    """
    settings = recipe.clusters
    if settings.number > data.num_train:
        raise ValueError(
            f"clusters.number={settings.number} is more than the {data.num_train} images of train: lower it"
        )
    if site.folder is None:
        train, val = (torch.arange(len(part)) % settings.number for part in (data.train, data.val))
        return use_clusters(data, train, val, num_clusters=settings.number)
    file = site.folder / f"clusters_{site.stage}.safetensors"
    labels = _read(file)
    if not site.world.share(labels is not None):
        labels = _find(data, recipe, site=site, kept=file.with_suffix(".features"))
        if labels is not None:
            _write(labels, file)
            remove(file.with_suffix(".features"))
    while labels is None:
        time.sleep(_POLL_SECONDS)
        labels = _read(file)
    with content_of(file, remedy="delete it to have the clusters found anew"):
        if not all(bool((labels[part] < settings.number).all()) for part in ("train", "val")):
            raise ValueError(f"it has labels beyond clusters.number={settings.number}")
        return use_clusters(data, labels["train"], labels["val"], num_clusters=settings.number)


def use_clusters(data: LabelledData, train: Tensor, val: Tensor, *, num_clusters: int) -> LabelledData:
    """The data with those labels; negative ones are of images that could not be read."""
    sets: list[Dataset] = []
    for part, labels in ((data.train, train), (data.val, val)):
        if len(labels) != len(part):
            raise ValueError(
                f"the clusters are of {len(labels)} images and {part.split} of {part.name} has {len(part)}: "
                "the data has changed, begin a new run"
            )
        indices = torch.nonzero(labels >= 0).squeeze(1)
        level: Level = cluster_level(labels[indices], indices=indices, num_samples=len(part), num_clusters=num_clusters)
        sets.append(Relabelled(part, name=LEVEL, level=level))
    return LabelledData(sets[0], sets[1], LEVEL, None, None)


def pseudo_labels(
    train: Tensor, val: Tensor, *, num_clusters: int, seed: int = 0, backend: str = "auto"
) -> tuple[Tensor, Tensor]:
    """The clusters of training embeddings [images, dim] as their labels, and the nearest cluster of each of val's.

    The embeddings are taken at length 1, as for retrieval.
    """
    found = cluster(functional.normalize(train.float(), dim=1), num_clusters=num_clusters, seed=seed, backend=backend)
    nearest, _ = nearest_centroids(functional.normalize(val.float(), dim=1), found.centroids, chunk_size=8192)
    return found.labels, nearest


def cluster_level(labels: Tensor, *, indices: Tensor, num_samples: int, num_clusters: int) -> Level:
    """Clusters as labels of a data set.

    `indices` are the samples that have one. Others could not be read, so that no batch will hold them: they get 0.
    """
    of_all = np.zeros(num_samples, dtype=np.int64)
    of_all[indices.cpu().numpy()] = labels.cpu().numpy()
    width = len(str(num_clusters - 1))
    return Level(tuple(f"cluster_{number:0{width}d}" for number in range(num_clusters)), of_all)


def _find(data: LabelledData, recipe: ClusterFitRecipe, *, site: Site, kept: Path) -> dict[str, Tensor] | None:
    """The clusters of both splits in the main process, by features that are kept in a folder; None in the others."""
    source, num_clusters = str(recipe.clusters.of), recipe.clusters.number
    trained = load_trained(source)
    extraction = Extraction(
        trained.model,
        view=trained.view,
        normalize=trained.normalize,
        device=site.device,
        workers=count_workers(recipe, site.device),
        world=site.world,
    )
    parts: list[Embeddings] = []
    for part in (data.train, data.val):
        if len(part) == 0:  # data.val=none
            train = parts[0]
            parts.append(replace(train, vectors=train.vectors[:0], indices=train.indices[:0]))
            continue
        with site.reporter.counting(f"features of {part.split}", total=len(part)) as advance:
            key = f"{extraction.model_key()}-{part.split}-{len(part)}"  # of the run's own images
            parts.append(embed(extraction, part, cache=kept, key=key, advance=advance))
    if not site.world.is_main:
        return None
    train, val = parts
    labels = pseudo_labels(train.vectors, val.vectors, num_clusters=num_clusters, seed=recipe.seed)
    _LOGGER.info("%d clusters of the features of %s are the labels", num_clusters, source)
    found: dict[str, Tensor] = {}
    for part, embeddings, clusters in zip((data.train, data.val), parts, labels, strict=True):
        of_all = torch.full((len(part),), -1, dtype=torch.int64)
        of_all[embeddings.indices] = clusters.cpu()
        found["train" if part is data.train else "val"] = of_all
    return found


def _read(file: Path) -> dict[str, Tensor] | None:
    try:
        return read_tensors(file, label=str(file))[0] if file.is_file() else None
    except ValueError:
        return None


def _write(labels: dict[str, Tensor], file: Path) -> None:
    with replacing(file) as temporary:
        write_tensors(labels, temporary, metadata={})
