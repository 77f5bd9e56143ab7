"""Small folders of images with masks and objects, in the layouts that people have."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

HEIGHT, WIDTH = 12, 16


def write_image(path: Path, *, seed: int = 0, size: tuple[int, int] = (HEIGHT, WIDTH)) -> None:
    """A JPEG or a PNG of smooth noise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse = np.random.RandomState(seed).randint(0, 256, (4, 4, 3), dtype=np.uint8)
    Image.fromarray(coarse).resize((size[1], size[0]), Image.Resampling.BILINEAR).save(path)


def make_mask(num_values: int, *, size: tuple[int, int] = (HEIGHT, WIDTH)) -> np.ndarray:
    """Columns of 0, 1, 2 ... by turns."""
    return np.tile(np.arange(size[1], dtype=np.uint8) % num_values, (size[0], 1))


def write_mask(path: Path, values: np.ndarray) -> None:
    """A PNG of values or of colours."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(path)


def write_coco(
    path: Path,
    names: Sequence[str],
    annotations: Sequence[Mapping[str, Any]],
    *,
    categories: Mapping[int, str] | None = None,
) -> None:
    """A file of COCO's form; the images are numbered from 1."""
    categories = {3: "cat", 7: "dog"} if categories is None else categories
    images = [
        {"id": number, "file_name": name, "height": HEIGHT, "width": WIDTH} for number, name in enumerate(names, 1)
    ]
    content = {
        "images": images,
        "annotations": [{"id": number, "iscrowd": 0, **row} for number, row in enumerate(annotations, 1)],
        "categories": [{"id": number, "name": name} for number, name in categories.items()],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def box_row(image: int, category: int, box: Sequence[float], **more: Any) -> dict[str, Any]:
    """An annotation with a box x, y, width, height and a polygon along it."""
    x, y, width, height = box
    ring = [x, y, x + width, y, x + width, y + height, x, y + height]
    row = {
        "image_id": image,
        "category_id": category,
        "bbox": list(box),
        "area": width * height,
        "segmentation": [ring],
    }
    return {**row, **more}


def voc_xml(objects: Sequence[tuple[str, Sequence[int]]], *, size: tuple[int, int] = (HEIGHT, WIDTH)) -> str:
    """An annotation of Pascal VOC's form, with edges from 1."""
    found = "".join(
        f"<object><name>{name}</name><difficult>0</difficult><bndbox><xmin>{box[0]}</xmin><ymin>{box[1]}</ymin>"
        f"<xmax>{box[2]}</xmax><ymax>{box[3]}</ymax></bndbox></object>"
        for name, box in objects
    )
    return f"<annotation><size><width>{size[1]}</width><height>{size[0]}</height></size>{found}</annotation>"
