"""Small pictures with what is marked in them: an image beside its mask, or with the boxes of its objects."""

import numpy as np
from PIL import Image, ImageDraw

from vitrail.data.contract import Dataset, Source
from vitrail.data.decode import open_image
from vitrail.data.dense.contract import IGNORED, Colour, DetectionSet, SegmentationSet
from vitrail.data.dense.dense_sources import DetectionSource, SegmentationSource
from vitrail.data.dense.mask_files import UNKNOWN
from vitrail.data.dense.mask_pairs import MaskPairs
from vitrail.data.dense.packed_objects import ObjectFiles
from vitrail.data.dense.palette import make_colours
from vitrail.data.doctor.check_marks import find_faulty_boxes, find_stored
from vitrail.data.doctor.thumbnails import Thumbnails, read_small

_SIDE = 300  # pixels of the longer side of an image
_WEIGHT = 3  # times the bytes of a plain picture
_GAP = 4  # between an image and its mask
_PAPER: Colour = (244, 244, 246)
_WRONG: Colour = (230, 0, 120)  # what is no class, and boxes that are faulty
_NOTHING: Colour = (255, 255, 255)
_MARGIN = 0.2  # of the image's sides, in which boxes outside are seen
_LEAST = 8  # pixels of a box, so that one without area or beyond the margin is seen too


def make_thumbnails(source: Source, *, limit: int) -> Thumbnails:
    """What draws the samples of a source, with masks or boxes where it has some."""
    if isinstance(source, SegmentationSource):
        return MaskThumbnails(source, limit=limit)
    return (
        BoxThumbnails(source, limit=limit) if isinstance(source, DetectionSource) else Thumbnails(source, limit=limit)
    )


class MaskThumbnails(Thumbnails):
    """An image, and beside it its mask in colours: white where nothing is known, magenta what is no class."""

    style = "pictures large"

    def __init__(self, source: SegmentationSource, *, limit: int) -> None:
        super().__init__(source, limit=limit)
        self._table = np.full((256, 3), _NOTHING, dtype=np.uint8)
        self._table[: len(source.colours)] = source.colours
        self._table[UNKNOWN], self._table[IGNORED] = _WRONG, _NOTHING

    def _read(self, dataset: Dataset, index: int) -> Image.Image:
        image = read_small(dataset, index, side=_SIDE)
        mask = self._read_mask(dataset, index)
        if mask is None:
            return image
        mask.thumbnail((_SIDE, _SIDE), Image.Resampling.NEAREST)
        sheet = Image.new("RGB", (image.width + _GAP + mask.width, max(image.height, mask.height)), _PAPER)
        sheet.paste(image, (0, 0))
        sheet.paste(mask, (image.width + _GAP, 0))
        return sheet

    def _read_mask(self, dataset: Dataset, index: int) -> Image.Image | None:
        """The mask in colours; None where there is none to be read."""
        dataset, index = find_stored(dataset, index)
        assert isinstance(dataset, SegmentationSet)
        try:
            if isinstance(dataset, MaskPairs):
                places = dataset.code.look_up(dataset.read_stored_mask(index))[1]
            else:
                places = dataset.read_mask(index)
        except (ValueError, OSError):
            return None
        return Image.fromarray(self._table[places])


class BoxThumbnails(Thumbnails):
    """An image with the boxes of its objects, those outside too; faulty ones in magenta."""

    style = "pictures large"

    def __init__(self, source: DetectionSource, *, limit: int) -> None:
        super().__init__(source, limit=limit)
        self._colours = make_colours(len(source.classes))

    def _read(self, dataset: Dataset, index: int) -> Image.Image:
        dataset, index = find_stored(dataset, index)
        assert isinstance(dataset, DetectionSet)
        opened = open_image(dataset.read(index))
        size = opened.height, opened.width
        image = read_small(dataset, index, side=_SIDE)
        if isinstance(dataset, ObjectFiles):
            numbers = dataset.objects.numbers(index)
            boxes, labels = dataset.objects.scaled_boxes(numbers, size), dataset.objects.labels[numbers]
            is_faulty = np.logical_or.reduce(list(find_faulty_boxes(dataset, index, size).values()))
        else:
            objects = dataset.read_windows(index, size)
            boxes, labels, is_faulty = objects.boxes, objects.labels, np.zeros(len(objects.labels), dtype=bool)
        scale = np.tile((image.width / size[1], image.height / size[0]), 2)
        margin = round(_MARGIN * max(image.size)) if is_faulty.any() else 0
        sheet = Image.new("RGB", (image.width + 2 * margin, image.height + 2 * margin), _PAPER)
        sheet.paste(image, (margin, margin))
        pen = ImageDraw.Draw(sheet)
        for box, label, is_wrong in zip(boxes * scale + margin, labels, is_faulty, strict=True):
            left, right = _clip(box[0], box[2], side=sheet.width)
            top, bottom = _clip(box[1], box[3], side=sheet.height)
            colour = _WRONG if is_wrong else self._colours[int(label)]
            pen.rectangle((left, top, right, bottom), outline=colour, width=3 if is_wrong else 2)
        return sheet


def _clip(first: float, last: float, *, side: int) -> tuple[int, int]:
    """Both edges of a box in order, within a picture and so far apart that they are seen."""
    low, high = sorted(round(float(edge)) for edge in np.clip(np.nan_to_num([first, last]), 0, side - 1))
    low = max(0, min(low, side - 1 - _LEAST))
    return low, min(max(high, low + _LEAST), side - 1)
