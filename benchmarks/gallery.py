"""Top-20 of a large gallery: its exact search and faiss's against a plain chunked torch top-k, and approximate indexes.

The embeddings are random points around 1,000 centres, of length 1, and the queries more of them. Every side runs in
this process, one after the other in each round; the best round counts. Recall is the share of the exact top-k that an
index finds. Memory is the peak of the whole process after each step.

python benchmarks/gallery.py [--images 1281167] [--dim 256] [--queries 1000] [--top 20] [--rounds 3]
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from measure import machine, peak_memory
from torch import Tensor
from torch.nn import functional

from vitrail.evaluation.knn import find_neighbours
from vitrail.gallery.index import ApproximateIndex, has_faiss, load_faiss, write_index

NUM_CENTRES = 1000
SPREAD = 0.7  # of the points around a centre, beside a centre's own length of 1
BLOCK = 65_536
Search = Callable[[], tuple[Tensor, Tensor]]


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


def exact_searches(queries: Tensor, vectors: Tensor, *, top: int) -> dict[str, Search]:
    """The plain one first."""
    searches: dict[str, Search] = {
        "plain chunked top-k": lambda: search_plainly(queries, vectors, top=top),
        "exact": lambda: find_neighbours(queries, vectors, count=top),
    }
    half = vectors.half()
    searches["exact, half precision"] = lambda: find_neighbours(queries, half, count=top)
    if has_faiss():
        flat = load_faiss().IndexFlatIP(vectors.shape[1])
        flat.add(vectors.numpy())

        def search_flat() -> tuple[Tensor, Tensor]:
            cosines, places = flat.search(queries.numpy(), top)
            return torch.from_numpy(cosines), torch.from_numpy(places)

        searches["faiss flat"] = search_flat
    return searches


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
    print("| search | build s | search s | against plain | recall | peak GB |")
    print("|---|---|---|---|---|---|", flush=True)
    searches = exact_searches(queries, vectors, top=arguments.top)
    builds = dict.fromkeys(searches, 0.0)
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("ivf", "hnsw") if has_faiss() else ():
            path = Path(folder) / f"{kind}.faiss"
            start = time.perf_counter()
            write_index(kind, vectors, path)
            builds[kind] = time.perf_counter() - start
            index = ApproximateIndex(path, count=len(vectors), dim=arguments.dim)
            searches[kind] = lambda index=index: index.search(queries, count=arguments.top)  # type: ignore[misc]
        best = dict.fromkeys(searches, float("inf"))
        places: dict[str, Tensor] = {}
        peaks: dict[str, float] = {}
        for _ in range(arguments.rounds):
            for name, search in searches.items():
                start = time.perf_counter()
                places[name] = search()[1]
                best[name] = min(best[name], time.perf_counter() - start)
                peaks.setdefault(name, peak_memory())
    plain, *_ = searches
    for name, seconds in best.items():
        recall = recall_of(places[name], places[plain])
        ratio = best[plain] / seconds
        print(f"| {name} | {builds[name]:.1f} | {seconds:.2f} | {ratio:.2f} x | {recall:.4f} | {peaks[name]:.2f} |")


if __name__ == "__main__":
    main()
