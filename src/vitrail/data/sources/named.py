"""Public data sets by name, read through torchvision: the small ones in memory, the large ones as files."""

import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.contract import Dataset, Level, Source
from vitrail.data.sources.cifar import COARSE_CLASSES
from vitrail.data.sources.imagenet import open_imagenet, open_imagenet21k, open_imagenet_real, open_imagenet_v2
from vitrail.data.sources.inaturalist import open_inaturalist
from vitrail.data.sources.official import ReportedSource, first_line
from vitrail.data.stored import ArrayDataset, FileDataset, OpenedSource

_NEEDS_SCIPY = ("flowers102", "stanford_cars")  # their labels are MATLAB files
_CARS_FILES = (
    "cars_train/, cars_test/, cars_test_annos_withlabels.mat, devkit/cars_train_annos.mat and devkit/cars_meta.mat"
)


def default_root() -> Path:
    """Where named data sets are kept: `$VITRAIL_DATA`, else `~/.cache/vitrail/data`."""
    given = os.environ.get("VITRAIL_DATA")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "vitrail" / "data"


def open_named(
    name: str,
    root: Path | None,
    *,
    download: bool,
    val_share: float = 0.1,
    seed: int = 0,
    protocol: str = "paper",
) -> Source:
    """One of the data sets of `names.NAMED`, kept in `root`.

    Without a root it is looked for in `default_root()`: those of torchvision in torchvision's own folders there,
    ImageNet and iNaturalist in a folder of their name.

    Splits are those of the papers (thesis tables 2.3, 3.6, 5.4 and 6.10). CIFAR, Fashion-MNIST, Food-101, Stanford
    Cars and Oxford-IIIT Pet have no val of their own, and papers report their test: that test split is `val` here (and
    `test` opens it as well). Of Flowers-102 the papers train on the official train and val together and report the
    test; with the `protocol` "official" its three splits stay apart. Only where ImageNet or iNaturalist lie there
    without their val is a `val_share` of train set aside, decided by `seed`.
    """
    if protocol != "paper" and (name, protocol) != ("flowers102", "official"):
        raise ValueError(f"{name} has no protocol {protocol!r}: only flowers102 has two, paper and official")
    root = root.expanduser() if root else None
    if name in _READERS:
        return _open_with_torchvision(name, root or default_root(), download=download, protocol=protocol)
    place = root or default_root() / ("imagenet" if name == "imagenet_real" else name)
    if name == "imagenet":
        return open_imagenet(place, download=download, val_share=val_share, seed=seed)
    if name == "imagenet21k":
        return open_imagenet21k(place, val_share=val_share, seed=seed)
    if name == "imagenet_v2":
        return open_imagenet_v2(place)
    if name == "imagenet_real":
        return open_imagenet_real(place, download=download)
    if name in ("inaturalist2018", "inaturalist2019"):
        return open_inaturalist(place, year=int(name[-4:]), val_share=val_share, seed=seed)
    raise ValueError(f"no data set is called {name!r}")


def _open_with_torchvision(name: str, root: Path, *, download: bool, protocol: str) -> Source:
    if name in _NEEDS_SCIPY and importlib.util.find_spec("scipy") is None:
        raise ValueError(f"the labels of {name} are MATLAB files, which scipy reads: pip install 'vitrail[scipy]'")
    if name == "stanford_cars":
        how = f"its web page is gone, so put {_CARS_FILES} into {root / 'stanford_cars'} yourself"
        download = False
    else:
        how = "get it with download=True (on the command line --download)"
    reader = _read_official_flowers if protocol == "official" else _READERS[name]
    try:
        return reader(name, root, download)
    except (RuntimeError, FileNotFoundError) as error:
        if download:
            raise ValueError(f"{name} could not be downloaded to {root}: {first_line(error)}") from error
        raise ValueError(f"{name} is not (or not completely) in {root}: {how}") from error
    except OSError as error:  # no network, no space, no right to write
        raise ValueError(f"{name} could not be read from or downloaded to {root}: {first_line(error)}") from error


def _read_arrays(name: str, root: Path, download: bool) -> Source:
    from torchvision import datasets

    reader = {"cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100, "fashion_mnist": datasets.FashionMNIST}[name]
    parts: list[Dataset] = []
    for split in ("train", "val"):
        stored = reader(root, train=split == "train", download=download)
        images = np.ascontiguousarray(stored.data)
        levels = {"label": Level(tuple(stored.classes), np.asarray(stored.targets, dtype=np.int64))}
        if name == "cifar100":
            levels["coarse"] = _coarse(levels["label"])
        parts.append(ArrayDataset(name=name, split=split, images=images, levels=levels))
    return ReportedSource(parts)


def _coarse(fine: Level) -> Level:
    """The superclasses of CIFAR-100, from the fine labels, which number the fine classes in alphabetical order."""
    coarse = sorted((name, place) for place, names in enumerate(COARSE_CLASSES.values()) for name in names)
    table = np.array([place for _, place in coarse], dtype=np.int64)
    return Level(tuple(COARSE_CLASSES), table[fine.labels])


def _read_flowers(name: str, root: Path, download: bool) -> Source:
    from torchvision.datasets import Flowers102

    official = {"train": ("train", "val"), "val": ("test",)}
    return ReportedSource(_read_files(name, root, download, reader=Flowers102, official=official))


def _read_official_flowers(name: str, root: Path, download: bool) -> Source:
    from torchvision.datasets import Flowers102

    official = {"train": ("train",), "val": ("val",), "test": ("test",)}
    return OpenedSource(_read_files(name, root, download, reader=Flowers102, official=official))


def _read_food(name: str, root: Path, download: bool) -> Source:
    from torchvision.datasets import Food101

    official = {"train": ("train",), "val": ("test",)}
    return ReportedSource(_read_files(name, root, download, reader=Food101, official=official))


def _read_cars(name: str, root: Path, download: bool) -> Source:
    from torchvision.datasets import StanfordCars

    official = {"train": ("train",), "val": ("test",)}
    return ReportedSource(_read_files(name, root, download, reader=StanfordCars, official=official))


def _read_pets(name: str, root: Path, download: bool) -> Source:
    """Breeds, and the level `species`: train and val together to train on, test to report, as Parkhi et al. do."""
    from torchvision.datasets import OxfordIIITPet

    OxfordIIITPet(root, download=download)  # is it there?
    place = Path("oxford-iiit-pet")
    listed = {}
    for split, file in (("train", "trainval.txt"), ("val", "test.txt")):
        lines = (root / place / "annotations" / file).read_text(encoding="utf-8").splitlines()
        listed[split] = [line.split() for line in lines if line.strip() and not line.startswith("#")]
    breeds = {int(breed): image.rpartition("_")[0] for rows in listed.values() for image, breed, *_ in rows}
    parts: list[Dataset] = []
    for split, rows in listed.items():
        labels = np.array([(int(breed), int(species)) for _, breed, species, *_ in rows], dtype=np.int64) - 1
        levels = {
            "label": Level(tuple(breeds[number] for number in sorted(breeds)), labels[:, 0]),
            "species": Level(("cat", "dog"), labels[:, 1]),
        }
        paths = [(place / "images" / f"{image}.jpg").as_posix() for image, *_ in rows]
        parts.append(FileDataset(name=name, split=split, root=root, paths=paths, levels=levels))
    return ReportedSource(parts)


def _read_files(
    name: str, root: Path, download: bool, *, reader: Callable[..., Any], official: Mapping[str, Sequence[str]]
) -> list[Dataset]:
    """The splits of a torchvision data set of files, each of one or more official ones, one behind the other.

    Its loader is asked for the path, so nothing is decoded.
    """
    parts: list[Dataset] = []
    for split, joined in official.items():
        stored = [reader(root, split=one, download=download, loader=os.fspath) for one in joined]
        samples = [one[index] for one in stored for index in range(len(one))]
        paths = [Path(path).relative_to(root).as_posix() for path, _ in samples]
        labels = np.array([label for _, label in samples], dtype=np.int64)
        levels = {"label": Level(tuple(stored[0].classes), labels)}
        parts.append(FileDataset(name=name, split=split, root=root, paths=paths, levels=levels))
    return parts


_READERS: Mapping[str, Callable[[str, Path, bool], Source]] = {
    "cifar10": _read_arrays,
    "cifar100": _read_arrays,
    "fashion_mnist": _read_arrays,
    "flowers102": _read_flowers,
    "stanford_cars": _read_cars,
    "food101": _read_food,
    "oxford_pets": _read_pets,
}
