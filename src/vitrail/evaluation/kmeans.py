"""k-means of vectors, by torch or by faiss, the same for the same seed."""

import importlib
import importlib.util
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

BACKENDS = ("auto", "torch", "faiss")


@dataclass(frozen=True, eq=False)
class Clusters:
    """Clusters that k-means found."""

    centroids: Tensor  # [clusters, dim]
    labels: Tensor  # int64 [vectors]: the nearest centroid
    inertia: float  # sum of squared distances to it
    backend: str  # what computed it: "torch" or "faiss"


def cluster(
    vectors: Tensor,
    *,
    num_clusters: int,
    seed: int = 0,
    num_iterations: int = 25,
    chunk_size: int = 8192,
    backend: str = "auto",
) -> Clusters:
    """k-means of vectors [vectors, dim], the same for the same seed and backend.

    "auto" is faiss where it is installed. Ours begins with k-means++ and ends early when no vector changes its cluster.
    """
    check_request(vectors, num_clusters=num_clusters, num_iterations=num_iterations, backend=backend)
    vectors = vectors.float()
    if backend == "auto":
        backend = "faiss" if importlib.util.find_spec("faiss") else "torch"
    if backend == "faiss":
        centroids = _centroids_of_faiss(vectors, num_clusters, seed=seed, num_iterations=num_iterations)
    else:
        centroids = spread_centroids(vectors, num_clusters, seed=seed)
        centroids = improve_centroids(vectors, centroids, num_iterations=num_iterations, chunk_size=chunk_size)
    labels, distances = nearest_centroids(vectors, centroids, chunk_size=chunk_size)
    return Clusters(centroids, labels, float(distances.double().sum()), backend)


def check_request(vectors: Tensor, *, num_clusters: int, num_iterations: int, backend: str) -> None:
    """Refuse what can't be clustered."""
    if backend not in BACKENDS:
        raise ValueError(f"the backend of k-means must be one of {', '.join(BACKENDS)}, not {backend!r}")
    if vectors.ndim != 2 or not torch.isfinite(vectors).all():
        raise ValueError("k-means needs vectors [vectors, dim] of finite numbers")
    if not 1 <= num_clusters <= len(vectors):
        raise ValueError(f"num_clusters must be from 1 to the number of vectors, {len(vectors)}, not {num_clusters!r}")
    if num_iterations < 1:
        raise ValueError(f"num_iterations must be at least 1, not {num_iterations!r}")


def spread_centroids(vectors: Tensor, num_clusters: int, *, seed: int) -> Tensor:
    """k-means++: vectors drawn one by one, each with the square of its distance to those before for probability."""
    numbers = torch.rand(num_clusters, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    chosen = [int(numbers[0] * len(vectors))]
    distances = torch.full((len(vectors),), torch.inf, device=vectors.device)
    for number in numbers[1:].tolist():
        distances = torch.minimum(distances, (vectors - vectors[chosen[-1]]).square().sum(dim=1))
        sums = distances.double().cumsum(0)
        if sums[-1] > 0.0:
            place = torch.searchsorted(sums, number * sums[-1], right=True)
            chosen.append(min(int(place), len(vectors) - 1))
        else:  # all that are left are copies of those chosen
            chosen.append(int(number * len(vectors)))
    return vectors[chosen].clone()


def improve_centroids(vectors: Tensor, centroids: Tensor, *, num_iterations: int, chunk_size: int) -> Tensor:
    """Lloyd's algorithm; a cluster that loses all of its vectors takes the one farthest from its centroid."""
    before: Tensor | None = None
    for _ in range(num_iterations):
        labels, distances = nearest_centroids(vectors, centroids, chunk_size=chunk_size)
        if before is not None and torch.equal(labels, before):
            break
        before = labels
        counts = torch.bincount(labels, minlength=len(centroids))
        sums = torch.zeros_like(centroids).index_add_(0, labels, vectors)
        centroids = sums / counts.clamp_min(1).unsqueeze(1)
        empty = torch.nonzero(counts == 0).squeeze(1)
        centroids[empty] = vectors[distances.topk(len(empty)).indices]
    return centroids


def nearest_centroids(vectors: Tensor, centroids: Tensor, *, chunk_size: int) -> tuple[Tensor, Tensor]:
    """The nearest centroid of each vector and the square of its distance, in chunks of vectors."""
    labels = torch.empty(len(vectors), dtype=torch.int64, device=vectors.device)
    distances = torch.empty(len(vectors), device=vectors.device)
    squares = centroids.square().sum(dim=1)
    for first in range(0, len(vectors), chunk_size):
        part = vectors[first : first + chunk_size]
        # |x|^2 is the same for all centroids; the distance itself is taken of the difference, which loses no digits
        nearest = torch.addmm(squares, part, centroids.T, alpha=-2.0).argmin(dim=1)
        labels[first : first + chunk_size] = nearest
        distances[first : first + chunk_size] = (part - centroids[nearest]).square().sum(dim=1)
    return labels, distances


def _centroids_of_faiss(vectors: Tensor, num_clusters: int, *, seed: int, num_iterations: int) -> Tensor:
    try:
        faiss: Any = importlib.import_module("faiss")
    except ImportError:
        raise ValueError("faiss is not installed: pip install faiss-cpu, or use backend torch") from None
    kmeans = faiss.Kmeans(
        vectors.shape[1],
        num_clusters,
        niter=num_iterations,
        seed=seed,
        # It would leave vectors out, or warn that there are few of them, where a cluster has more or less than these.
        min_points_per_centroid=1,
        max_points_per_centroid=len(vectors),
    )
    kmeans.train(np.ascontiguousarray(vectors.cpu().numpy()))
    return torch.from_numpy(kmeans.centroids.copy()).to(vectors.device)
