"""Image files with masks in other files: pairs by name, in any of the layouts that people have."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitrail.data.decode import BrokenImageError
from vitrail.data.dense.contract import SegmentationSet
from vitrail.data.dense.faults import FaultList
from vitrail.data.dense.image_files import list_folders, list_images, splits_in
from vitrail.data.dense.mask_files import MaskCode
from vitrail.data.regular_files import read_regular_file
from vitrail.data.sources.marked_folders import MASK_FOLDERS
from vitrail.data.splits import in_order
from vitrail.data.stored import FileDataset, PackedStrings, printable

MASK_ENDING = ".png"
_MASK_ADDITIONS = ("", "_mask", "_masks", "_label", "_labels", "_seg", "_gt", "_L")  # behind the image's name


class MaskPairs(FileDataset, SegmentationSet):
    """Image files below one folder, each with a mask in a PNG file."""

    def __init__(
        self, *, name: str, split: str, root: Path, images: Sequence[str], masks: Sequence[str], code: MaskCode
    ) -> None:
        super().__init__(name=name, split=split, root=root, paths=images, levels={})
        self.mask_paths = PackedStrings(masks)  # relative to the root, or absolute
        self.code = code

    def locate_mask(self, index: int) -> str:
        """The path of the mask, fit for a log."""
        return printable(str(self.root / self.mask_paths[index]))

    def read_stored_mask(self, index: int) -> bytes:
        """The bytes of the mask's file."""
        try:
            return read_regular_file(os.path.join(self.root, self.mask_paths[index]))
        except OSError as error:
            raise OSError(f"its mask {self.locate_mask(index)} can't be read: {error.strerror or error}") from None

    def read_mask(self, index: int) -> np.ndarray:
        """The classes of the image's pixels."""
        data = self.read_stored_mask(index)
        try:
            return self.code.decode(data)
        except BrokenImageError as error:
            raise BrokenImageError(f"its mask {self.locate_mask(index)} {error}") from error


@dataclass(frozen=True)
class PairFolders:
    """Where the images of a split are, and where their masks; relative to the data's folder."""

    images: str
    masks: str


def has_masks(root: Path) -> bool:
    """Whether a folder holds images and masks in image files, in any of the known layouts; PNG or what is none."""
    folders = next(iter(find_pair_folders(root).values()), None)
    return folders is not None and bool(list_images(root / folders.masks))


def find_pair_folders(root: Path) -> dict[str, PairFolders]:
    """The folders of each split; {"": folders} where there are no splits, and nothing where there are no such folders.

    Known are images/ and masks/; both below train/, val/ and test/; train/, val/ and test/ below both; and train/
    beside trainannot/. Masks may also lie in annotations/ or labels/.
    """
    folders = list_folders(root)
    for word in MASK_FOLDERS:
        if {"images", word} <= folders:
            of_images, of_masks = splits_in(root / "images"), splits_in(root / word)
            if of_images and of_masks:
                common = {split for split in of_images if split in of_masks}
                return {
                    split: PairFolders(f"images/{of_images[split]}", f"{word}/{of_masks[split]}")
                    for split in in_order(common)
                }
            return {"": PairFolders("images", word)}
    splits = splits_in(root)
    found: dict[str, PairFolders] = {}
    for split, folder in splits.items():
        inner = list_folders(root / folder)
        for word in MASK_FOLDERS:
            if {"images", word} <= inner:
                found.setdefault(split, PairFolders(f"{folder}/images", f"{folder}/{word}"))
            for joined in (f"{folder}{word}", f"{folder}_{word}"):
                if joined in folders:
                    found.setdefault(split, PairFolders(folder, joined))
    return {split: found[split] for split in in_order(found)}


def open_pair_folders(
    root: Path, folders: PairFolders, split: str, *, name: str, code: MaskCode, faults: FaultList
) -> MaskPairs:
    """The pairs of a split."""
    images, masks = pair_files(root, folders, faults)
    return MaskPairs(name=name, split=split, root=root, images=images, masks=masks, code=code)


def pair_files(root: Path, folders: PairFolders, faults: FaultList) -> tuple[list[str], list[str]]:
    """Images and their masks, relative to the root, in the order of their names; what has no partner is a fault."""
    masks = {os.path.splitext(path)[0]: path for path in list_images(root / folders.masks, (MASK_ENDING,))}
    others = {os.path.splitext(path)[0]: path for path in list_images(root / folders.masks)}
    images, paired, missing, used = [], [], [], set()
    for path in list_images(root / folders.images):
        stem = os.path.splitext(path)[0]
        mask = next((stem + added for added in _MASK_ADDITIONS if stem + added in masks), None)
        if mask is None:
            missing.append((path, others.get(stem)))
            continue
        used.add(mask)
        images.append(f"{folders.images}/{path}")
        paired.append(f"{folders.masks}/{masks[mask]}")
    for path, other in missing:
        place = printable(str(root / folders.images / path))
        if other is None:
            faults.report("image without mask", place, f"no mask of its name in {folders.masks}")
        else:
            faults.report("image without mask", place, f"its mask {folders.masks}/{printable(other)} is no PNG")
    for stem in sorted(set(masks) - used):
        place = printable(str(root / folders.masks / masks[stem]))
        faults.note("mask without image", place, f"no image of its name in {folders.images}")
    if not images and not missing:  # what is missing has been told
        raise ValueError(f"no images with masks in {printable(str(root / folders.images))} and {folders.masks}")
    return images, paired
