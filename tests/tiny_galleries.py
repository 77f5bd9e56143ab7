"""A gallery of plain colours that a random model can tell apart: two warm classes and two cold ones."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from shrunk import randomize

import vitrail
from vitrail.data.augment import EvaluationView
from vitrail.data.blend import Normalize
from vitrail.data.contract import Level
from vitrail.data.stored import ArrayDataset
from vitrail.evaluation.features import Extraction
from vitrail.gallery.building import Choices
from vitrail.gallery.gallery import Gallery
from vitrail.gallery.gallery_manifest import IndexEntry, Manifest
from vitrail.gallery.store import GalleryStore
from vitrail.models.contract import Model

COLOURS = {"red": (200, 30, 30), "orange": (220, 140, 20), "blue": (30, 40, 200), "cyan": (20, 190, 200)}
COARSE = {"red": "warm", "orange": "warm", "blue": "cold", "cyan": "cold"}
SIDE = 16


def tiny_model(seed: int = 0, *, depth: int = 1) -> Model:
    settings = {"image_size": SIDE, "patch_size": 8, "dim": 24, "num_heads": 2, "depth": depth, "num_classes": 3}
    return randomize(vitrail.create_model("deit_tiny", **settings), seed=seed).eval()


def tiny_viewer(seed: int = 0) -> Extraction:
    view = EvaluationView(image_size=SIDE, crop_ratio=1.0)
    return Extraction(tiny_model(seed), view, Normalize(), torch.device("cpu"))


def paint(colour: tuple[int, int, int], *, seed: int) -> np.ndarray:
    """Pixels of about that colour."""
    noise = np.random.default_rng(seed).integers(-15, 16, (SIDE, SIDE, 3))
    return np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)


def colours(*names: str, count: int = 6, split: str = "train", first_seed: int = 0) -> ArrayDataset:
    """`count` pictures of each of these colours, with the labels `label` and `coarse`."""
    names = names or tuple(COLOURS)
    fine = np.repeat(np.arange(len(names)), count)
    images = np.stack([paint(COLOURS[names[label]], seed=first_seed + place) for place, label in enumerate(fine)])
    groups = tuple(dict.fromkeys(COARSE.values()))
    coarse = np.array([groups.index(COARSE[names[label]]) for label in fine])
    levels = {"label": Level(names, fine), "coarse": Level(groups, coarse)}
    return ArrayDataset(name="colours", split=split, images=images, levels=levels)


def colour_gallery(
    folder: Path | str | GalleryStore, *names: str, choices: Choices | None = None, count: int = 6
) -> Gallery:
    """A gallery of these colours whose threshold others of the same colours have set."""
    gallery, unread = Gallery.build(
        tiny_viewer(),
        colours(*names, count=count),
        folder=folder,
        held_out=colours(*names, split="val", first_seed=1000),
        choices=choices,
    )
    assert not unread
    return gallery


def save_colour(path: Path, name: str, *, seed: int) -> Path:
    """A file with a picture of that colour."""
    Image.fromarray(paint(COLOURS[name], seed=seed)).save(path)
    return path


def listed(gallery: Gallery) -> Manifest:
    """What the folder of a gallery lists."""
    assert isinstance(gallery.manifest, Manifest)
    return gallery.manifest


def index_of(gallery: Gallery) -> IndexEntry:
    """The approximate index that the folder of a gallery has."""
    index = listed(gallery).index
    assert index is not None
    return index
