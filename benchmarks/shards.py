"""Images a second from tar shards: against the folder they were made of, and against webdataset's own loader.

Three ways to the same JPEG files, in the disk cache, shuffled: our loader on the folder, our loader on the shards, and
webdataset's pipeline (shards and samples shuffled) on the same shards. `bytes` reads and nothing else; `views` decodes
and crops too, with the same code of ours behind each, so that what differs is the way to the bytes.

python benchmarks/shards.py [--images 2000] [--rounds 5] [--workers 0] [--out table.md]
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import webdataset
from loader import synthesise
from measure import machine, publish

from vitrail.data.contract import Dataset
from vitrail.data.datasets import open_source
from vitrail.data.decode import open_image
from vitrail.data.draws import Draws
from vitrail.data.loader import ImageLoader
from vitrail.data.sampler import Sampler
from vitrail.data.shard_making import ShardMaking, make_shards
from vitrail.settings.images import AugmentationSettings

BATCH = 64
NUM_CLASSES = 10
SAMPLES_OF_SHARD = 250
SHUFFLE = 1000  # samples that webdataset shuffles at a time, as its documentation does


def prepare(folder: Path, *, number: int) -> tuple[str, str]:
    """A folder of class folders, and its shards."""
    synthesise(folder / "flat", number=number, scale=1)
    for place, path in enumerate(sorted((folder / "flat").iterdir())):
        target = folder / "images" / "train" / str(place % NUM_CLASSES)
        target.mkdir(parents=True, exist_ok=True)
        path.rename(target / path.name)
    source = open_source(folder / "images", val_share=0.0)
    made = make_shards([source.open("train")], out=str(folder / "shards"), how=ShardMaking(samples=SAMPLES_OF_SHARD))
    print(f"shards made: {made.num_bytes / 1e6:.0f} MB at {made.num_bytes / 1e6 / made.seconds:.0f} MB/s", flush=True)
    return str(folder / "images"), f"shards:{folder}/shards/shards.json"


def read_bytes(dataset: Dataset, epoch: int) -> int:
    """Every sample's bytes, in the order of an epoch of training."""
    sampler = Sampler(len(dataset), batch_size=BATCH, groups=dataset.groups)
    return sum(len(dataset.read(int(index))) for index in sampler.order(epoch))


def load_views(loader: ImageLoader, epoch: int) -> int:
    """Every batch of an epoch."""
    return sum(batch.num_samples for batch in loader.epoch(epoch))


def pipeline(folder: Path, *, view: Callable[[bytes], Any] | None, workers: int) -> Iterator[Any]:
    """webdataset's way: shards in random order, samples through a buffer, batches."""
    names = [str(path) for path in sorted((folder / "shards").glob("*.tar"))]
    data = webdataset.WebDataset(names, shardshuffle=len(names), empty_check=False).shuffle(SHUFFLE)
    data = data.to_tuple("jpg", "cls")
    if view is None:
        return iter(data)
    data = data.map_tuple(view, int).batched(BATCH)
    return iter(webdataset.WebLoader(data, batch_size=None, num_workers=workers))


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        specs = prepare(folder, number=arguments.images)
        folder_set, shard_set = (open_source(spec, val_share=0.0).open("train") for spec in specs)
        crop = AugmentationSettings().build(image_size=224)
        loaders = [
            ImageLoader(
                dataset,
                transform=crop,
                sampler=Sampler(len(dataset), batch_size=BATCH, groups=dataset.groups),
                num_workers=arguments.workers,
            )
            for dataset in (folder_set, shard_set)
        ]

        def view(data: bytes) -> torch.Tensor:
            return crop(open_image(data), Draws(0, 0, 0, 0))

        ways: dict[str, list[tuple[str, Callable[[int], object]]]] = {
            "bytes": [
                ("folder", lambda epoch: read_bytes(folder_set, epoch)),
                ("shards", lambda epoch: read_bytes(shard_set, epoch)),
                ("webdataset", lambda epoch: sum(1 for _ in pipeline(folder, view=None, workers=0))),
            ],
            "views": [
                ("folder", lambda epoch: load_views(loaders[0], epoch)),
                ("shards", lambda epoch: load_views(loaders[1], epoch)),
                ("webdataset", lambda epoch: sum(1 for _ in pipeline(folder, view=view, workers=arguments.workers))),
            ],
        }
        lines = [f"{machine()}, {arguments.images} JPEG files, {arguments.workers} workers", ""]
        lines += ["| images/s | folder | shards | webdataset | shards / folder | shards / webdataset |"]
        lines += ["|---|---|---|---|---|---|"]
        for what, found in ways.items():
            best = {name: float("inf") for name, _ in found}
            for epoch in range(arguments.rounds + 1):  # the first one warms up; then they take turns
                for name, run in found:
                    start = time.perf_counter()
                    run(epoch)
                    seconds = time.perf_counter() - start
                    best[name] = min(best[name], seconds) if epoch else best[name]
            speed = {name: arguments.images / seconds for name, seconds in best.items()}
            lines.append(
                f"| {what} | {speed['folder']:,.0f} | {speed['shards']:,.0f} | {speed['webdataset']:,.0f} | "
                f"{speed['shards'] / speed['folder']:.2f}x | {speed['shards'] / speed['webdataset']:.2f}x |"
            )
    publish(lines, arguments.out)


if __name__ == "__main__":
    main()
