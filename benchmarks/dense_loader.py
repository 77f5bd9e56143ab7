"""From JPEG files with masks or objects to uint8 batches, against a plain pipeline of torchvision's v2 transforms.

torchvision's side decodes with its own decoders to tensors, resizes, crops, flips and distorts `tv_tensors`, and pads a
batch of objects; polygons are made masks by pycocotools. Ours is the loader itself, which also tries up to ten crops
until none of the classes fills one. One thread, no workers, files in the disk cache; the processor's time counts.

python benchmarks/dense_loader.py [--rounds 3] [--processes 3] [--only objects] [--clock wall]
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
from measure import CLOCKS, best_times, in_fresh_process, machine, summarize
from PIL import Image
from pycocotools import mask as coco_mask
from torchvision import tv_tensors
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2

from vitrail.data.dense.opening import open_detection, open_segmentation
from vitrail.data.dense.samples import MaskSamples, ObjectSamples
from vitrail.data.loader import Loader
from vitrail.data.sampler import Sampler
from vitrail.settings.data import DataSettings
from vitrail.settings.dense import DetectAugmentationSettings, SegmentAugmentationSettings

BATCH = 8
NUM_IMAGES = 16
NUM_OBJECTS = 8
NUM_CLASSES = 12
SHORT_SIDES = tuple(range(480, 801, 32))
MAX_SIDE = 1333
CASES: list[tuple[str, str, tuple[int, int], int]] = [
    # name, kind, height and width of the files, size of the training picture
    ("masks, 240 x 180, crops of 176", "masks", (180, 240), 176),
    ("masks, 960 x 720, crops of 512", "masks", (720, 960), 512),
    ("masks, 1333 x 1000, crops of 512", "masks", (1000, 1333), 512),
    ("masks, 1333 x 1000, crops of 224", "masks", (1000, 1333), 224),
    ("objects, 640 x 480, short side 480-800", "objects", (480, 640), 0),
    ("objects, 1333 x 1000, short side 480-800", "objects", (1000, 1333), 0),
]


def paint(random: np.random.RandomState, size: tuple[int, int]) -> np.ndarray:
    """A textured picture: noise of every size, as photographs have it."""
    height, width = size
    total = np.zeros((height, width, 3), dtype=np.float32)
    for octave in range(1, 8):
        shape = (height * 2**octave // 512 + 2, width * 2**octave // 512 + 2, 3)
        noise = Image.fromarray(random.randint(0, 256, shape).astype(np.uint8))
        total += np.asarray(noise.resize((width, height), Image.Resampling.BICUBIC), dtype=np.float32) / 1.6**octave
    total = (total - total.mean()) * (50 / total.std()) + 120
    return total.clip(0, 255).astype(np.uint8)


def write_pictures(folder: Path, size: tuple[int, int]) -> None:
    """JPEGs of one picture, each begun at another place."""
    folder.mkdir(parents=True)
    painted = paint(np.random.RandomState(0), size)
    for index in range(NUM_IMAGES):
        moved = np.roll(painted, (37 * index, 53 * index), axis=(0, 1))
        Image.fromarray(moved).save(folder / f"{index:03}.jpg", quality=92)


def write_masks(root: Path, size: tuple[int, int]) -> None:
    """Pictures, and masks of blobs as large as those of street scenes."""
    random = np.random.RandomState(0)
    write_pictures(root / "images", size)
    (root / "masks").mkdir()
    for index in range(NUM_IMAGES):
        coarse = Image.fromarray(random.randint(0, NUM_CLASSES, (18, 24)).astype(np.uint8))
        coarse.resize((size[1], size[0]), Image.Resampling.NEAREST).save(root / f"masks/{index:03}.png")
    (root / "classes.txt").write_text("\n".join(f"class {number}" for number in range(NUM_CLASSES)))


def write_objects(root: Path, size: tuple[int, int]) -> None:
    """Pictures, and round polygons of 40 corners in a file of COCO's form."""
    random = np.random.RandomState(0)
    height, width = size
    turn = np.linspace(0, 2 * np.pi, 40, endpoint=False)
    write_pictures(root / "images", size)
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for index in range(NUM_IMAGES):
        images.append({"id": index, "file_name": f"{index:03}.jpg", "height": height, "width": width})
        for _ in range(NUM_OBJECTS):
            radius = random.uniform(0.05, 0.25) * height
            x, y = random.uniform(radius, width - radius), random.uniform(radius, height - radius)
            reach = radius * random.uniform(0.7, 1.0, 40)
            corners = np.stack([x + reach * np.cos(turn), y + reach * np.sin(turn)], axis=1)
            low, high = corners.min(axis=0), corners.max(axis=0)
            annotations.append(
                {
                    "id": len(annotations),
                    "image_id": index,
                    "category_id": 1,
                    "iscrowd": 0,
                    "bbox": [*low.tolist(), *(high - low).tolist()],
                    "area": float((high - low).prod()),
                    "segmentation": [corners.reshape(-1).tolist()],
                }
            )
    content = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "round"}]}
    (root / "annotations.json").write_text(json.dumps(content))


class PlainMasks(torch.utils.data.Dataset):
    """Images and masks by torchvision alone."""

    def __init__(self, root: Path, crop: int) -> None:
        self.images = sorted((root / "images").glob("*.jpg"))
        self.transform = v2.Compose(
            [
                v2.RandomResize(min_size=crop // 2, max_size=2 * crop + 1, antialias=True),
                v2.RandomCrop(crop, pad_if_needed=True, fill={tv_tensors.Image: 0, tv_tensors.Mask: 255}),
                v2.RandomHorizontalFlip(),
                v2.RandomPhotometricDistort(p=0.5),
            ]
        )

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        path = self.images[index]
        image = tv_tensors.Image(decode_image(str(path), ImageReadMode.RGB))
        mask = path.parents[1] / "masks" / f"{path.stem}.png"
        return self.transform(image, tv_tensors.Mask(decode_image(str(mask), ImageReadMode.UNCHANGED)[0]))


class PlainObjects(torch.utils.data.Dataset):
    """Images, boxes and masks by torchvision and pycocotools."""

    def __init__(self, root: Path) -> None:
        self.root = root / "images"
        content = json.loads((root / "annotations.json").read_text())
        self.images = content["images"]
        self.rows: dict[int, list[Any]] = {image["id"]: [] for image in self.images}
        for row in content["annotations"]:
            self.rows[row["image_id"]].append(row)
        self.transform = v2.Compose(
            [
                v2.RandomShortestSize(min_size=SHORT_SIDES, max_size=MAX_SIDE),
                v2.RandomHorizontalFlip(),
                v2.SanitizeBoundingBoxes(),
            ]
        )

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        image = self.images[index]
        rows, size = self.rows[image["id"]], (image["height"], image["width"])
        masks = [coco_mask.decode(coco_mask.merge(coco_mask.frPyObjects(row["segmentation"], *size))) for row in rows]
        boxes = tv_tensors.BoundingBoxes([row["bbox"] for row in rows], format="XYWH", canvas_size=size)
        target = {
            "boxes": v2.functional.convert_bounding_box_format(boxes, new_format="XYXY"),
            "masks": tv_tensors.Mask(np.stack(masks)),
            "labels": torch.tensor([row["category_id"] for row in rows]),
        }
        pixels = tv_tensors.Image(decode_image(str(self.root / image["file_name"]), ImageReadMode.RGB))
        return self.transform(pixels, target)


def pad_batch(made: Sequence[Any]) -> Any:
    """One tensor of the images, as torchvision's detectors make it, and the objects."""
    height, width = (-(-max(item[0].shape[side] for item in made) // 32) * 32 for side in (1, 2))
    batch = torch.zeros(len(made), 3, height, width, dtype=torch.uint8)
    for row, (image, _) in zip(batch, made, strict=True):
        row[:, : image.shape[1], : image.shape[2]] = image
    return batch, [target for _, target in made]


def load_plainly(root: Path, kind: str, crop: int) -> Callable[[], None]:
    """An epoch of torchvision's batches."""
    dataset = PlainMasks(root, crop) if kind == "masks" else PlainObjects(root)
    collate = None if kind == "masks" else pad_batch
    loader = torch.utils.data.DataLoader(dataset, batch_size=BATCH, shuffle=True, collate_fn=collate)

    def load() -> None:
        for images, _ in loader:
            assert images.dtype == torch.uint8

    return load


def load_with_vitrail(root: Path, kind: str, crop: int) -> Callable[[], None]:
    """An epoch of ours, each time the next one."""
    settings = DataSettings(spec=str(root), val="none")
    loader: Loader[Any]
    sampler = Sampler(NUM_IMAGES, batch_size=BATCH)
    if kind == "masks":
        view = SegmentAugmentationSettings().build(image_size=crop)
        loader = Loader(open_segmentation(settings).train, make=MaskSamples(view), sampler=sampler)
    else:
        settings = DataSettings(spec=f"coco:{root}", val="none")
        plain = DetectAugmentationSettings(short_sides=SHORT_SIDES, max_side=MAX_SIDE, crop=0.0).build()
        loader = Loader(open_detection(settings).train, make=ObjectSamples(plain), sampler=sampler)
    epochs: Iterator[int] = iter(range(1_000_000))

    def load() -> None:
        for batch in loader.epoch(next(epochs)):
            assert batch.images.dtype == torch.uint8

    return load


def compare(case: int, root: Path, *, rounds: int, clock: str) -> tuple[float, float]:
    """Best seconds per image of torchvision and of ours."""
    torch.set_num_threads(1)
    _, kind, _, crop = CASES[case]
    plain, ours = load_plainly(root, kind, crop), load_with_vitrail(root, kind, crop)
    first, second = best_times(plain, ours, rounds=rounds, clock=clock)
    return first / NUM_IMAGES, second / NUM_IMAGES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="alternating epochs in a process; the best counts")
    parser.add_argument("--processes", type=int, default=3, help="fresh processes; the median counts")
    parser.add_argument("--only", default="", help="only cases whose name starts so")
    parser.add_argument("--clock", choices=tuple(CLOCKS), default="cpu", help="time of the process or of the wall")
    parser.add_argument("--case", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case is not None:
        print(json.dumps(compare(arguments.case, arguments.data, rounds=arguments.rounds, clock=arguments.clock)))
        return

    torch.set_num_threads(1)
    print(f"{machine()}; torchvision {torchvision.__version__}; {arguments.clock} time\n")
    print("| case | torchvision img/s | vitrail img/s | ratio (range) |")
    print("|---|---|---|---|")
    for case, (name, kind, size, _) in enumerate(CASES):
        if not name.startswith(arguments.only):
            continue
        with tempfile.TemporaryDirectory() as made:
            root = Path(made) / "data"
            (write_masks if kind == "masks" else write_objects)(root, size)
            options = ["--case", str(case), "--data", str(root), "--rounds", str(arguments.rounds)]
            options += ["--clock", arguments.clock]
            times = [in_fresh_process(__file__, *options) for _ in range(arguments.processes)]
        theirs, ours, ratio = summarize(times)
        print(f"| {name} | {1 / theirs:.1f} | {1 / ours:.1f} | {ratio} |", flush=True)


if __name__ == "__main__":
    main()
