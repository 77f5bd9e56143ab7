"""The data set `fashion`: 6,000 + 1,000 images of Fashion-MNIST (Zalando, MIT), shipped with the package."""

import functools
from pathlib import Path

import numpy as np
from PIL import Image

from vitrail.data.contract import Dataset, Level, Source
from vitrail.data.draws import Draws
from vitrail.data.stored import ArrayDataset

EMBEDDED = Path(__file__).parents[1] / "embedded"
SIDE = 28  # pixels

# Class -> its coarse class, in Fashion-MNIST's own order of classes.
CLASSES = {
    "t-shirt": "tops",
    "trouser": "trousers",
    "pullover": "tops",
    "dress": "dresses",
    "coat": "tops",
    "sandal": "shoes",
    "shirt": "tops",
    "sneaker": "shoes",
    "bag": "bags",
    "ankle boot": "shoes",
}
COARSE_CLASSES = ("tops", "trousers", "dresses", "shoes", "bags")


class FashionSource(Source):
    """Ten classes of clothing in grey, 28 x 28: 600 images a class to train on, 100 to validate.

    `train` comes from the official training set and `val` from the official test set, chosen at random in each class.
    Each split is one PNG mosaic with the classes one below the other, so that the place of a tile is its label and the
    file can be checked by eye. The order of the samples is a fixed shuffle of the tiles.
    """

    name = "fashion"
    splits = ("train", "val")

    def open(self, split: str) -> Dataset:
        """One of the splits, read from disk only once in a process."""
        return _read_split(split)


def open_fashion() -> Source:
    """The embedded part of Fashion-MNIST, with the levels `label` (ten classes) and `coarse` (five)."""
    return FashionSource()


@functools.cache
def _read_split(split: str) -> Dataset:
    with Image.open(EMBEDDED / f"fashion_{split}.png") as picture:
        mosaic = np.asarray(picture)
    rows, columns = mosaic.shape[0] // SIDE, mosaic.shape[1] // SIDE
    tiles = mosaic.reshape(rows, SIDE, columns, SIDE).swapaxes(1, 2).reshape(-1, SIDE, SIDE)
    tile_labels = np.arange(len(tiles), dtype=np.int64) // (len(tiles) // len(CLASSES))
    order = np.array(Draws("fashion", split, "order").shuffled(range(len(tiles))))
    coarse_of = np.array([COARSE_CLASSES.index(coarse) for coarse in CLASSES.values()], dtype=np.int64)
    images, labels = tiles[order], tile_labels[order]
    coarse = coarse_of[labels]
    for array in (images, labels, coarse):
        array.flags.writeable = False  # every user of this process shares them
    levels = {"label": Level(tuple(CLASSES), labels), "coarse": Level(COARSE_CLASSES, coarse)}
    return ArrayDataset(name="fashion", split=split, images=images, levels=levels)
