"""The images of a new gallery, and those that are held out of it, as the words of a command ask for them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vitrail.inference.passes import open_asked

if TYPE_CHECKING:
    from vitrail.data.contract import Dataset

_ALL = "all"  # splits


def open_gallery_data(settings: Mapping[str, Any], share: float) -> "Dataset":
    """The split that is asked for, or all of them; `share` is held out where the data has no val.

    Of images without labels all are taken, unless a split is asked for.
    """
    from vitrail.data.datasets import open_dataset, open_source
    from vitrail.gallery.gallery_images import AllSplits

    split = str(settings.get("split", "train"))
    if split == _ALL:
        return AllSplits(open_source(str(settings["data"]), val_share=share, labels="optional"))
    data = open_dataset(str(settings["data"]), split, val_share=share, labels="optional")
    if not data.levels and "split" not in settings:
        return AllSplits(open_source(str(settings["data"]), val_share=share, labels="optional"))
    return data


def open_held_out(source: str, settings: Mapping[str, Any], data: "Dataset", share: float) -> "Dataset | None":
    """The split that sets the threshold: the one asked for, or val where there is one and it is not in the gallery."""
    from vitrail.data.datasets import open_source
    from vitrail.data.splits import canonical

    split = settings.get("held_out", "val")
    if split in (None, "none"):
        return None
    if "held_out" not in settings:
        if canonical(data.split) in ("val", _ALL):
            return None
        found = open_source(str(settings["data"]), val_share=share, labels="optional")
        if "val" not in {canonical(name) for name in found.splits}:
            return None
    return open_asked([source], str(settings["data"]), str(split), val_share=share, labels="optional")
