"""Published data sets with masks, as they are when unpacked: CamVid, ADE20k, Cityscapes, Pascal VOC."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from vitrail.data.dense.contract import IGNORED, Colour
from vitrail.data.dense.dense_sources import DenseOpening, SegmentationSource
from vitrail.data.dense.mask_files import MaskCode
from vitrail.data.dense.mask_pairs import find_pair_folders, open_pair_folders
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


OPENERS: Mapping[str, Callable[..., SegmentationSource]] = MappingProxyType({"camvid": open_camvid})
