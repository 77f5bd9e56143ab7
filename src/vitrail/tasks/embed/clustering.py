"""Clusters of a model's features in the place of labels: the second training of ClusterFit+ (thesis 2.4.2)."""

import logging
import time
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from vitrail.data.contract import Dataset, Level
from vitrail.data.stored import Relabelled
from vitrail.evaluation.features import Embeddings, Extraction, embed
from vitrail.evaluation.kmeans import cluster_level, pseudo_labels
from vitrail.inference.trained import load_trained
from vitrail.settings.recipe import Recipe
from vitrail.storage import replacing
from vitrail.storage.tensors import write_tensors
from vitrail.training.loop.build import Data, count_workers
from vitrail.training.parallel.distributed import World
from vitrail.training.runs.progress import Progress

_LOGGER = logging.getLogger(__name__)
_POLL_SECONDS = 1.0
LEVEL = "cluster"  # the name of the labels


def cluster_data(
    data: Data, recipe: Recipe, *, file: Path, world: World, device: torch.device, progress: Progress
) -> Data:
    """The data with clusters of its training images for labels, where the recipe asks for them.

    They are found once, by the main process, and kept in a file: a run goes on with the same. The others look for the
    file, for k-means of a large data set takes longer than processes wait for each other.
    """
    settings = recipe.data
    if settings.clusters is None:
        if settings.clusters_of is not None:
            raise ValueError("data.clusters_of is there without a number of clusters: add data.clusters=1500")
        return data
    if settings.clusters_of is None:
        raise ValueError("clusters are of a model's features: add data.clusters_of=RUN, a run or a saved model")
    if settings.clusters > len(data.train):
        raise ValueError(
            f"data.clusters={settings.clusters} is more than the {len(data.train)} images of train: lower it"
        )
    labels = _read(file)
    if labels is None and world.is_main:
        labels = _find(data, recipe, device=device, progress=progress)
        _write(labels, file)
    while labels is None:
        time.sleep(_POLL_SECONDS)
        labels = _read(file)
    return use_clusters(data, labels["train"], labels["val"], num_clusters=settings.clusters)


def use_clusters(data: Data, train: Tensor, val: Tensor, *, num_clusters: int) -> Data:
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
    return Data(sets[0], sets[1], LEVEL, None, None)


def _find(data: Data, recipe: Recipe, *, device: torch.device, progress: Progress) -> dict[str, Tensor]:
    source, num_clusters = str(recipe.data.clusters_of), int(recipe.data.clusters or 0)
    trained = load_trained(source)
    extraction = Extraction(
        trained.model,
        view=trained.view,
        normalize=trained.normalize,
        device=device,
        workers=count_workers(recipe, device),
    )
    parts: list[Embeddings] = []
    for part in (data.train, data.val):
        with progress.counting(f"features of {part.split}", total=len(part)) as advance:
            parts.append(embed(extraction, part, advance=advance))
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
        return load_file(file)
    except (OSError, SafetensorError):
        return None


def _write(labels: dict[str, Tensor], file: Path) -> None:
    with replacing(file) as temporary:
        write_tensors(labels, temporary, metadata={})
