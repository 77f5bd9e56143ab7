"""Where Pascal VOC's files lie, and which of them belong to a split."""

from pathlib import Path

from vitrail.data.splits import in_order
from vitrail.data.stored import printable
from vitrail.storage import read_text

VOC = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)


def find_voc(root: Path) -> Path:
    """The folder that holds JPEGImages: the one given, or VOC2012 or its like inside it or its VOCdevkit."""
    places = [root, *sorted(root.glob("VOC20*"), reverse=True), *sorted(root.glob("VOCdevkit/VOC20*"), reverse=True)]
    for place in places:
        if (place / "JPEGImages").is_dir():
            return place
    raise ValueError(
        f"{printable(str(root))} is not Pascal VOC: no JPEGImages in it, nor in VOC2012 or VOCdevkit/VOC2012"
    )


def read_voc_lists(folder: Path) -> dict[str, list[str]]:
    """The names of each split, of the files train.txt, val.txt and test.txt, or of trainval.txt as train."""
    found = {path.stem: path for path in sorted(folder.glob("*.txt"))}
    if "train" not in found and "trainval" in found:
        found["train"] = found["trainval"]
    lists = {split: _read_names(found[split]) for split in in_order(found) if split in ("train", "val", "test")}
    if "train" not in lists:
        raise ValueError(f"no train.txt in {printable(str(folder))}: it lists the images to train on")
    return lists


def _read_names(path: Path) -> list[str]:
    lines = read_text(path, remedy="it must hold the name of an image a line").splitlines()
    return [line.split()[0] for line in lines if line.strip()]
