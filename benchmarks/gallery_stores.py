"""What a gallery costs in each store: bytes of an image, seconds to build, milliseconds of a query, recall.

The embeddings are random points around 1,000 centres, of length 1; labels are 1,000 fine and 20 coarse classes; there
are no thumbnails, whose bytes are told apart. Every store and index is built in a folder of its own, opened again, and
asked one query at a time, as a service would be, and all at once; the best round counts. Recall is the share of the
exact top that is found. Milvus is milvus-lite in this process, which is written in Python, or with --server
milvus://HOST:PORT a server that runs already; its bytes on the disk are then not known here and left out.

python benchmarks/gallery_stores.py [--images 10000 100000 1000000] [--dim 256] [--queries 100] [--top 10] [--rounds 3]
    [--stores folder:exact folder:hnsw milvus:exact milvus:hnsw ...] [--server milvus://HOST:PORT] [--json FILE]
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from gallery import recall_of, synthesise
from measure import machine
from torch import Tensor

from vitrail.gallery.gallery import Gallery
from vitrail.gallery.gallery_manifest import GalleryFacts, ModelEntry, Threshold
from vitrail.gallery.image_rows import Rows
from vitrail.gallery.index import has_faiss
from vitrail.gallery.store import GalleryStore
from vitrail.gallery.stores import open_store

NUM_FINE, NUM_COARSE = 1000, 20
PAGE = 20_000  # images that are handed over at a time
PATH = "data/train/class_{label:04d}/image_{number:09d}.jpg"


@dataclass(frozen=True)
class Cost:
    """What one store costs."""

    store: str
    images: int
    dim: int
    build_seconds: float
    bytes_per_image: float | None  # on the disk, embedding included
    open_seconds: float
    one_query_ms: float  # the median of single searches
    many_queries_ms: float  # a query of a search with all of them
    conditional_ms: float
    classify_ms: float
    add_ms: float  # one image, acknowledged
    recall: float


def make_rows(vectors: Tensor, *, first: int) -> Rows:
    """Images with labels that depend on their number alone."""
    numbers = torch.arange(first, first + len(vectors))
    fine = (numbers * 7919) % NUM_FINE
    labels = torch.stack([fine, fine % NUM_COARSE], dim=1).int()
    pairs = zip(numbers.tolist(), fine.tolist(), strict=True)
    paths = tuple(PATH.format(label=label, number=number) for number, label in pairs)
    return Rows(vectors, labels, paths, (b"",) * len(vectors))


def build(store: GalleryStore, vectors: Tensor, *, index: str) -> float:
    """Seconds until the gallery is complete."""
    facts = GalleryFacts(
        generation=1,
        model=ModelEntry(source=None, name="none", key="none", image_size=224, crop_ratio=0.875),
        dim=vectors.shape[1],
        levels={
            "fine": tuple(f"fine {number}" for number in range(NUM_FINE)),
            "coarse": tuple(f"coarse {number}" for number in range(NUM_COARSE)),
        },
        coarse="coarse",
        neighbours=20,
        threshold=Threshold(cosine=0.1, false_reject=0.05, num_held_out=1, held_out="nothing"),
        wanted_index=store.choose_index(index, num_images=len(vectors)),
    )
    start = time.perf_counter()
    with store.building(facts) as builder:
        for first in range(0, len(vectors), PAGE):
            part = vectors[first : first + PAGE]
            builder.add(make_rows(part, first=first), last_row=first + len(part) - 1)
        builder.finish()
    return time.perf_counter() - start


def best_ms(ask: Callable[[], object], *, rounds: int, share: int = 1) -> float:
    """Milliseconds of the best of some rounds, after one that warms up, divided by the queries of a round."""
    times = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        ask()
        times.append(time.perf_counter() - start)
    return 1000.0 * min(times[1:]) / share


def measure(name: str, vectors: Tensor, queries: Tensor, *, place: str, folder: Path, top: int, rounds: int) -> Cost:
    """Build, open and ask one store."""
    index = name.partition(":")[2]
    store = open_store(place)
    seconds = build(store, vectors, index=index)
    store.close()
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) or None
    start = time.perf_counter()
    gallery = Gallery(place)
    gallery.search_vectors(queries[:1], top=top)
    opened = time.perf_counter() - start
    exact = torch.cat([(part @ vectors.T).topk(top, dim=1).indices for part in queries.split(100)])
    found = gallery.search_vectors(queries, top=top)
    places = torch.tensor([[hit.row for hit in hits] for hits in found])
    singles = sorted(
        best_ms(lambda query=query: gallery.search_vectors(query, top=top), rounds=1)  # type: ignore[misc]
        for query in queries[:20].split(1)
    )

    def add() -> None:
        with gallery.store.writing() as writer:
            writer.change(more=make_rows(queries[:1], first=len(vectors)))

    cost = Cost(
        store=name,
        images=len(vectors),
        dim=vectors.shape[1],
        build_seconds=seconds,
        bytes_per_image=None if size is None else size / len(vectors),
        open_seconds=opened,
        one_query_ms=singles[len(singles) // 2],
        many_queries_ms=best_ms(lambda: gallery.search_vectors(queries, top=top), rounds=rounds, share=len(queries)),
        conditional_ms=best_ms(
            lambda: gallery.search_vectors(queries[:5], top=top, rank="conditional"), rounds=rounds, share=5
        ),
        classify_ms=best_ms(lambda: gallery.classify_vectors(queries[:20]), rounds=rounds, share=20),
        add_ms=best_ms(add, rounds=rounds),
        recall=recall_of(places, exact),
    )
    gallery.close()
    return cost


def measure_all(arguments: argparse.Namespace) -> Iterator[Cost]:
    for count in arguments.images:
        vectors = synthesise(count, dim=arguments.dim, seed=1)
        queries = synthesise(arguments.queries, dim=arguments.dim, seed=2)
        for name in arguments.stores:
            if name in ("folder:ivf", "folder:hnsw") and not has_faiss():
                continue
            with tempfile.TemporaryDirectory() as place:
                folder = Path(place)
                address = str(folder / "gallery")
                if name.startswith("milvus:"):
                    address = f"milvus:{folder / 'gallery.db'}"
                    if arguments.server:
                        address = f"{arguments.server}/benchmark_{name.partition(':')[2]}_{count}"
                yield measure(
                    name, vectors, queries, place=address, folder=folder, top=arguments.top, rounds=arguments.rounds
                )
                if arguments.server and name.startswith("milvus:"):
                    open_store(address).remove()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--top", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    stores = ["folder:exact", "folder:ivf", "folder:hnsw", "milvus:exact", "milvus:ivf", "milvus:hnsw"]
    parser.add_argument("--stores", nargs="+", default=stores)
    parser.add_argument("--server", help="milvus://HOST:PORT instead of milvus-lite")
    parser.add_argument("--json", type=Path, help="a file for the numbers")
    arguments = parser.parse_args()
    print(f"{machine()}\n{arguments.queries:,} queries, top {arguments.top}, {arguments.dim} numbers an image\n")
    print(
        "| store | images | build s | bytes an image | open s | one query ms | of many ms | conditional ms "
        "| classify ms | add one ms | recall |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|", flush=True)
    costs = []
    for cost in measure_all(arguments):
        costs.append(cost)
        size = "-" if cost.bytes_per_image is None else f"{cost.bytes_per_image:,.0f}"
        print(
            f"| {cost.store} | {cost.images:,} | {cost.build_seconds:.1f} | {size} | {cost.open_seconds:.2f} "
            f"| {cost.one_query_ms:.2f} | {cost.many_queries_ms:.3f} | {cost.conditional_ms:.1f} "
            f"| {cost.classify_ms:.2f} | {cost.add_ms:.0f} | {cost.recall:.4f} |",
            flush=True,
        )
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(cost) for cost in costs], indent=1) + "\n")


if __name__ == "__main__":
    main()
