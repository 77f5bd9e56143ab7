"""Small versions of images of a data set, written into a page itself."""

from io import BytesIO

from PIL import Image

from vitrail.data.contract import Dataset, Source
from vitrail.data.decode import open_image
from vitrail.data.doctor.findings import Place
from vitrail.pages.pictures import embed_image

_SIDE = 176  # pixels of the longer side: sharp at the size shown, about 7 kB each
_QUALITY = 78


class Thumbnails:
    """Reads pictures anew when they are asked for, up to a limit, so that the page stays small."""

    style = "pictures"  # of the part of the page that holds some

    def __init__(self, source: Source, *, limit: int) -> None:
        self._datasets = {split: source.open(split) for split in source.splits}
        self._left = limit

    def show(self, place: Place) -> str | None:
        """An address for `<img>` that holds the picture itself; None where there is none to show."""
        if place.index is None or self._left <= 0:
            return None
        try:
            small = self._read(self._datasets[place.split], place.index)
        except Exception:  # a file that has gone since it was examined costs its picture, not the report
            return None
        self._left -= 1
        file = BytesIO()
        small.save(file, "JPEG", quality=_QUALITY)
        return embed_image(file.getvalue())

    def _read(self, dataset: Dataset, index: int) -> Image.Image:
        """The picture, made small."""
        return read_small(dataset, index, side=_SIDE)


def read_small(dataset: Dataset, index: int, *, side: int) -> Image.Image:
    """An image of a data set, so small that its longer side is at most `side`."""
    image = open_image(dataset.read(index))
    shrink = next((factor for factor in (8, 4, 2) if max(image.height, image.width) >= 2 * factor * side), 1)
    small = Image.fromarray(image.pixels(shrink=shrink).permute(1, 2, 0).contiguous().numpy())
    small.thumbnail((side, side))
    return small
