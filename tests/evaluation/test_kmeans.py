"""Clusters: k-means by hand, found groups, the same for the same seed, and labels for a second training."""

import importlib.util

import pytest
import torch
from torch import Tensor

from vitrail.evaluation.kmeans import (
    cluster,
    improve_centroids,
    nearest_centroids,
    spread_centroids,
)
from vitrail.tasks.clusterfit.clustering import cluster_level, pseudo_labels

BACKENDS = [
    "torch",
    pytest.param("faiss", marks=pytest.mark.skipif(not importlib.util.find_spec("faiss"), reason="needs faiss")),
]


def groups(num_groups: int = 4, num_each: int = 30) -> tuple[Tensor, Tensor]:
    """Vectors around distant centres, in mixed order, and the group of each."""
    generator = torch.Generator().manual_seed(0)
    owners = torch.arange(num_groups).repeat(num_each)
    centres = 20.0 * torch.eye(num_groups)
    return centres[owners] + torch.randn(len(owners), num_groups, generator=generator), owners


def test_one_iteration_by_hand() -> None:
    vectors = torch.tensor([[0.0], [1.0], [5.0], [9.0]])
    labels, distances = nearest_centroids(vectors, torch.tensor([[0.0], [4.0]]), chunk_size=3)
    assert labels.tolist() == [0, 0, 1, 1]
    assert distances.tolist() == [0.0, 1.0, 1.0, 25.0]
    moved = improve_centroids(vectors, torch.tensor([[0.0], [4.0]]), num_iterations=1, chunk_size=3)
    assert moved.tolist() == [[0.5], [7.0]]


def test_an_empty_cluster_takes_the_farthest_vector() -> None:
    vectors = torch.tensor([[0.0], [1.0], [5.0], [9.0]])
    moved = improve_centroids(vectors, torch.tensor([[0.0], [4.0], [100.0]]), num_iterations=1, chunk_size=10)
    assert moved.tolist() == [[0.5], [7.0], [9.0]]
    settled = improve_centroids(vectors, torch.tensor([[0.0], [4.0], [100.0]]), num_iterations=9, chunk_size=10)
    assert settled.tolist() == [[0.5], [5.0], [9.0]]


def test_the_first_centroids_are_drawn_by_their_squared_distance() -> None:
    # After 0 or 1 the vector at 100 has all but 1 in 10,000 of the probability, and the other way round.
    vectors = torch.tensor([[0.0], [1.0], [100.0]])
    for seed in range(20):
        assert 100.0 in spread_centroids(vectors, 2, seed=seed).flatten().tolist()
    assert sorted(spread_centroids(vectors, 3, seed=0).flatten().tolist()) == [0.0, 1.0, 100.0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_distant_groups_are_found(backend: str) -> None:
    vectors, owners = groups()
    found = cluster(vectors, num_clusters=4, backend=backend)
    pairs = {(owner, label) for owner, label in zip(owners.tolist(), found.labels.tolist(), strict=True)}
    assert len(pairs) == 4
    assert found.backend == backend
    difference = vectors - found.centroids[found.labels]
    assert found.inertia == pytest.approx(difference.square().sum().item(), rel=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_seed_decides(backend: str) -> None:
    vectors = torch.randn(200, 5, generator=torch.Generator().manual_seed(1))
    first, again, other = (cluster(vectors, num_clusters=12, seed=seed, backend=backend) for seed in (3, 3, 4))
    assert torch.equal(first.labels, again.labels)
    assert torch.equal(first.centroids, again.centroids)
    assert not torch.equal(first.labels, other.labels)


def test_chunks_change_nothing() -> None:
    vectors, _ = groups()
    whole = cluster(vectors, num_clusters=9, backend="torch")
    parts = cluster(vectors, num_clusters=9, backend="torch", chunk_size=7)
    assert torch.equal(whole.labels, parts.labels)


def test_more_clusters_than_different_vectors_are_no_error() -> None:
    found = cluster(torch.tensor([[1.0], [1.0], [2.0]]), num_clusters=3, backend="torch")
    assert found.inertia == 0.0


def test_clusters_become_labels_of_the_data() -> None:
    vectors, owners = groups(num_groups=3, num_each=4)
    indices = torch.arange(13)[torch.arange(13) != 5]  # sample 5 could not be read
    # Only the direction counts: the embeddings are compared at length 1.
    stretched = vectors * torch.linspace(1.0, 9.0, 12).unsqueeze(1)
    labels, of_val = pseudo_labels(stretched, 3.0 * vectors[:5], num_clusters=3, backend="torch")
    assert of_val.tolist() == labels[:5].tolist()
    level = cluster_level(labels, indices=indices, num_samples=13, num_clusters=3)
    assert level.classes == ("cluster_0", "cluster_1", "cluster_2")
    assert level.labels.shape == (13,)
    assert level.labels[5] == 0
    assert len(set(zip(owners.tolist(), level.labels[indices.numpy()].tolist(), strict=True))) == 3


def test_errors_say_what_is_wrong() -> None:
    vectors = torch.zeros(3, 2)
    with pytest.raises(ValueError, match="from 1 to the number of vectors, 3, not 4"):
        cluster(vectors, num_clusters=4)
    with pytest.raises(ValueError, match="one of auto, torch, faiss, not 'sklearn'"):
        cluster(vectors, num_clusters=2, backend="sklearn")
    with pytest.raises(ValueError, match="finite numbers"):
        cluster(vectors / 0.0, num_clusters=2)
