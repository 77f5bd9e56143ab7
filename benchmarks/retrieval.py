"""Exact mean average precision of many queries in a large collection: seconds and peak memory, without an N x N matrix.

The embeddings are random, of length 1, with the labels of 1,000 classes in 100 coarse ones; what they are does not
change the work. The figure of a part of the queries is compared with a plain sort of their rows. The peak is that of
the whole process, torch and the embeddings included. The bound is 2 GB for 50,000 x 50,000 embeddings of 256 numbers.

python benchmarks/retrieval.py [--queries 50000] [--images 50000] [--dim 256]
"""

import argparse
import time

import torch
from measure import machine, peak_memory
from torch import Tensor
from torch.nn import functional

from vitrail.evaluation.ranking import RANKINGS
from vitrail.evaluation.retrieval import Levelled, average_precisions, make_conditioning, mean_average_precision

NUM_CLASSES, NUM_COARSE = 1000, 100
NUM_CHECKED = 200  # queries


def synthesise(count: int, *, dim: int, seed: int) -> Levelled:
    """Random embeddings; class c is of the coarse class c modulo 100."""
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(count, dim, generator=generator)
    functional.normalize(vectors, dim=1, out=vectors)
    labels = torch.randint(NUM_CLASSES, (count,), generator=generator)
    counts = {"fine": NUM_CLASSES, "coarse": NUM_COARSE}
    return Levelled(vectors, {"fine": labels, "coarse": labels % NUM_COARSE}, counts)


def sort_plainly(queries: Levelled, images: Levelled) -> Tensor:
    """Average precisions of the cosine ranking, what one writes without a library."""
    order = (queries.vectors @ images.vectors.T).argsort(dim=1, descending=True)
    is_right = images.labels["fine"][order] == queries.labels["fine"][:, None]
    precisions = is_right.cumsum(dim=1) / torch.arange(1, order.shape[1] + 1)
    return (precisions.double() * is_right).sum(dim=1) / is_right.sum(dim=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, default=50_000)
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--dim", type=int, default=256)
    arguments = parser.parse_args()
    queries = synthesise(arguments.queries, dim=arguments.dim, seed=1)
    images = synthesise(arguments.images, dim=arguments.dim, seed=2)
    print(f"{machine()}\n\n{arguments.queries:,} queries, {arguments.images:,} images of {arguments.dim} numbers\n")
    print("| ranking | mAP | seconds | peak memory |")
    print("|---|---|---|---|")
    print(f"| (embeddings alone) | | | {peak_memory():.2f} GB |")
    found: dict[str, Tensor] = {}
    for ranking in RANKINGS:
        start = time.perf_counter()
        conditioning = make_conditioning(ranking, queries, images, coarse="coarse")
        found[ranking] = average_precisions(
            queries.vectors, queries.labels["fine"], images.vectors, images.labels["fine"], conditioning=conditioning
        )
        seconds, figure = time.perf_counter() - start, mean_average_precision(found[ranking])
        print(f"| {ranking} | {figure:.3f} | {seconds:.1f} | {peak_memory():.2f} GB |", flush=True)
    checked = torch.arange(min(NUM_CHECKED, arguments.queries))
    difference = (found["cosine"][checked] - sort_plainly(queries.choose(checked), images)).abs().nan_to_num().max()
    print(f"\nlargest difference from a plain sort, of {len(checked)} queries: {difference.item():.1e}")


if __name__ == "__main__":
    main()
