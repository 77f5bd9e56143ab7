"""Top-20 of a large gallery: its exact search and faiss's against a plain chunked torch top-k, and approximate indexes.

The embeddings are random points around 1,000 centres, of length 1, and the queries more of them. Every side runs in
this process, one after the other in each round; the best round counts. Recall is the share of the plain top-k that is
found. Memory: what a search looks into, and what it takes beside that while it runs, in its first round.

python benchmarks/gallery.py [--images 1281167] [--dim 256] [--queries 1000] [--top 20] [--rounds 3]
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from measure import machine, memory_of
from torch import Tensor
from torch.nn import functional

from vitrail.evaluation.knn import find_neighbours
from vitrail.gallery.index import ApproximateIndex, has_faiss, load_faiss, write_index

NUM_CENTRES = 1000
SPREAD = 0.7  # of the points around a centre, beside a centre's own length of 1
BLOCK = 65_536


class Contender(NamedTuple):
    """One way to search."""

    name: str
    search: Callable[[], tuple[Tensor, Tensor]]  # cosines and places
    build_seconds: float
    size: float  # gigabytes of what it searches in


def synthesise(count: int, *, dim: int, seed: int) -> Tensor:
    """Points of length 1 around the same centres for every seed."""
    centres = functional.normalize(torch.randn(NUM_CENTRES, dim, generator=torch.Generator().manual_seed(0)), dim=1)
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.empty(count, dim)
    for start in range(0, count, BLOCK):
        block = vectors[start : start + BLOCK]
        block.copy_(torch.randn(len(block), dim, generator=generator) * (SPREAD / dim**0.5))
        block += centres[torch.randint(NUM_CENTRES, (len(block),), generator=generator)]
        functional.normalize(block, dim=1, out=block)
    return vectors


def search_plainly(queries: Tensor, vectors: Tensor, *, top: int, chunk: int = 100) -> tuple[Tensor, Tensor]:
    """What one writes without a library: some queries against everything at a time."""
    found = [(queries[start : start + chunk] @ vectors.T).topk(top, dim=1) for start in range(0, len(queries), chunk)]
    return torch.cat([pair.values for pair in found]), torch.cat([pair.indices for pair in found])


def recall_of(places: Tensor, exact: Tensor) -> float:
    """The share of the exact places that were found."""
    return (exact[:, :, None] == places[:, None]).any(dim=2).float().mean().item()


def build_searches(queries: Tensor, vectors: Tensor, *, top: int, folder: Path) -> Iterator[Contender]:
    """Every way to search, the plain one first."""
    size = vectors.nbytes / 1e9
    yield Contender("plain chunked top-k", lambda: search_plainly(queries, vectors, top=top), 0.0, size)
    yield Contender("exact", lambda: find_neighbours(queries, vectors, count=top), 0.0, size)
    half = vectors.half()
    yield Contender("exact, half precision", lambda: find_neighbours(queries, half, count=top), 0.0, size / 2)
    if not has_faiss():
        return
    flat = load_faiss().IndexFlatIP(vectors.shape[1])
    flat.add(vectors.numpy())

    def search_flat() -> tuple[Tensor, Tensor]:
        cosines, places = flat.search(queries.numpy(), top)
        return torch.from_numpy(cosines), torch.from_numpy(places)

    yield Contender("faiss flat", search_flat, 0.0, size)
    for kind in ("ivf", "hnsw"):
        path = folder / f"{kind}.faiss"
        start = time.perf_counter()
        write_index(kind, vectors, path)
        seconds = time.perf_counter() - start
        index = ApproximateIndex(path, count=len(vectors), dim=vectors.shape[1])

        def search(index: ApproximateIndex = index) -> tuple[Tensor, Tensor]:
            return index.search(queries, count=top)

        yield Contender(kind, search, seconds, path.stat().st_size / 1e9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1_281_167)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--top", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    vectors = synthesise(arguments.images, dim=arguments.dim, seed=1)
    queries = synthesise(arguments.queries, dim=arguments.dim, seed=2)
    print(
        f"{machine()}\n{arguments.queries:,} queries, top {arguments.top} of {arguments.images:,} x {arguments.dim}\n"
    )
    print("| search | build s | search s | against plain | recall | holds GB | takes GB beside |")
    print("|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        contenders = list(build_searches(queries, vectors, top=arguments.top, folder=Path(folder)))
        taken = [memory_of(contender.search) for contender in contenders]
        best = [float("inf")] * len(contenders)
        places = [vectors] * len(contenders)
        for _ in range(arguments.rounds):
            for rank, contender in enumerate(contenders):
                start = time.perf_counter()
                places[rank] = contender.search()[1]
                best[rank] = min(best[rank], time.perf_counter() - start)
    for rank, contender in enumerate(contenders):
        recall = recall_of(places[rank], places[0])
        print(
            f"| {contender.name} | {contender.build_seconds:.1f} | {best[rank]:.2f} | {best[0] / best[rank]:.2f} x "
            f"| {recall:.4f} | {contender.size:.2f} | {taken[rank]:.2f} |"
        )


if __name__ == "__main__":
    main()
