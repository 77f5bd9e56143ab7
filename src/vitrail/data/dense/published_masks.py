"""Published data sets with masks, as they are when unpacked: CamVid, ADE20k, Cityscapes, Pascal VOC."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from vitrail.data.dense.ade20k_classes import ADE20K
from vitrail.data.dense.contract import IGNORED, Colour
from vitrail.data.dense.dense_sources import DenseOpening, SegmentationSource
from vitrail.data.dense.mask_files import MaskCode
from vitrail.data.dense.mask_pairs import MaskPairs, find_pair_folders, open_pair_folders
from vitrail.data.dense.voc_folders import VOC, find_voc, read_voc_lists
from vitrail.data.stored import printable

# The eleven classes that papers report, with the colours of the data set (Brostow et al., 2009).
CAMVID: Mapping[str, Colour] = MappingProxyType(
    {
        "sky": (128, 128, 128),
        "building": (128, 0, 0),
        "pole": (192, 192, 128),
        "road": (128, 64, 128),
        "pavement": (60, 40, 222),
        "tree": (128, 128, 0),
        "sign": (192, 128, 128),
        "fence": (64, 64, 128),
        "car": (64, 0, 128),
        "pedestrian": (64, 64, 0),
        "bicyclist": (0, 128, 192),
    }
)


def open_camvid(root: Path, *, name: str, opening: DenseOpening) -> SegmentationSource:
    """CamVid with train/, trainannot/ and so on; the value 11 is "void"."""
    code = MaskCode({**{place: place for place in range(len(CAMVID))}, len(CAMVID): IGNORED})
    return _open_folders(
        root, name=name, code=code, classes=tuple(CAMVID), colours=tuple(CAMVID.values()), opening=opening
    )


def open_ade20k(root: Path, *, name: str, opening: DenseOpening) -> SegmentationSource:
    """The 150 classes of ADE20k's scene parsing benchmark; in its masks 0 is unlabelled, and classes begin with 1.

    images/training/ with annotations/training/, as it is published, or training/images/ with training/annotations/; in
    the folder itself or in ADEChallengeData2016 inside it.
    """
    inner = root / "ADEChallengeData2016"
    code = MaskCode({0: IGNORED, **{place + 1: place for place in range(len(ADE20K))}})
    place = inner if inner.is_dir() else root
    return _open_folders(place, name=name, code=code, classes=ADE20K, colours=None, opening=opening)


def open_cityscapes(root: Path, *, name: str, opening: DenseOpening) -> SegmentationSource:
    """The 19 classes of Cityscapes' fine labels, in leftImg8bit/SPLIT/CITY/ and gtFine/SPLIT/CITY/."""
    from torchvision.datasets import Cityscapes

    learnt = sorted((row for row in Cityscapes.classes if row.train_id not in (255, -1)), key=lambda row: row.train_id)
    places = {row.id: row.train_id if row in learnt else IGNORED for row in Cityscapes.classes if row.id >= 0}
    faults, sets = opening.make_faults(), []
    for split in ("train", "val"):
        images = sorted((root / "leftImg8bit" / split).glob("*/*_leftImg8bit.png"))
        if not images or not (root / "gtFine" / split).is_dir():
            raise ValueError(
                f"{printable(str(root))} is not Cityscapes: leftImg8bit/{split}/ and gtFine/{split}/ must be in it"
            )
        pairs = [(path, _fine_label(root, path)) for path in images]
        for image, mask in pairs:
            if not mask.is_file():
                faults.report("image without mask", image, f"no mask {mask.name}")
        kept = [(str(image.relative_to(root)), str(mask.relative_to(root))) for image, mask in pairs if mask.is_file()]
        sets.append(
            MaskPairs(
                name=name,
                split=split,
                root=root,
                images=[image for image, _ in kept],
                masks=[mask for _, mask in kept],
                code=MaskCode(places),
            )
        )
    return SegmentationSource(
        sets,
        classes=[row.name for row in learnt],
        colours=[row.color for row in learnt],
        notes=faults.notes,
    )


def _fine_label(root: Path, image: Path) -> Path:
    city, name = image.parent, image.name.removesuffix("_leftImg8bit.png")
    return root / "gtFine" / city.parent.name / city.name / f"{name}_gtFine_labelIds.png"


def open_voc_masks(root: Path, *, name: str, opening: DenseOpening) -> SegmentationSource:
    """Pascal VOC's segmentation: SegmentationClass/, by the lists in ImageSets/Segmentation/."""
    place = find_voc(root)
    lists = read_voc_lists(place / "ImageSets" / "Segmentation")
    code = MaskCode({value: value for value in range(len(VOC) + 1)})
    sets = [
        MaskPairs(
            name=name,
            split=split,
            root=place,
            images=[f"JPEGImages/{item}.jpg" for item in names],
            masks=[f"SegmentationClass/{item}.png" for item in names],
            code=code,
        )
        for split, names in lists.items()
    ]
    return SegmentationSource(
        sets, classes=("background", *VOC), colours=[_voc_colour(place) for place in range(len(VOC) + 1)]
    )


def _voc_colour(value: int) -> Colour:
    """The colour that VOC's masks have for a class: bits of its number, from the highest of each channel on."""
    red, green, blue = (
        sum((value >> (3 * bit + channel) & 1) << (7 - bit) for bit in range(8)) for channel in range(3)
    )
    return red, green, blue


def _open_folders(
    root: Path,
    *,
    name: str,
    code: MaskCode,
    classes: Sequence[str],
    colours: Sequence[Colour] | None,
    opening: DenseOpening,
) -> SegmentationSource:
    """Pairs of files in folders of their splits."""
    folders = find_pair_folders(root)
    if not folders or "" in folders:
        raise ValueError(
            f"{printable(str(root))} is not {name}: no folders of images and masks for train and val in it"
        )
    faults = opening.make_faults()
    sets = [
        open_pair_folders(root, pair, split, name=name, code=code, faults=faults) for split, pair in folders.items()
    ]
    return SegmentationSource(sets, classes=classes, colours=colours, notes=faults.notes)


OPENERS: Mapping[str, Callable[..., SegmentationSource]] = MappingProxyType(
    {"camvid": open_camvid, "ade20k": open_ade20k, "cityscapes": open_cityscapes, "voc": open_voc_masks}
)
