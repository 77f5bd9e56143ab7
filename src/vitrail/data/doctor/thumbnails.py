"""Small versions of images of a data set, written into a page itself."""

from io import BytesIO

from PIL import Image

from vitrail.data.contract import Source
from vitrail.data.decode import open_image
from vitrail.data.doctor.findings import Place
from vitrail.pages.pictures import embed_image

_SIDE = 176  # pixels of the longer side: sharp at the size shown, about 7 kB each
_QUALITY = 78


class Thumbnails:
    """Reads pictures anew when they are asked for, up to a limit, so that the page stays small."""

    def __init__(self, source: Source, *, limit: int) -> None:
        self._datasets = {split: source.open(split) for split in source.splits}
        self._left = limit

    def show(self, place: Place) -> str | None:
        """An address for `<img>` that holds the picture itself; None where there is none to show."""
        if place.index is None or self._left <= 0:
            return None
        try:
            image = open_image(self._datasets[place.split].read(place.index))
            shrink = next((factor for factor in (8, 4, 2) if max(image.height, image.width) >= 2 * factor * _SIDE), 1)
            pixels = image.pixels(shrink=shrink).permute(1, 2, 0).contiguous().numpy()
        except Exception:  # a file that has gone since it was examined costs its picture, not the report
            return None
        self._left -= 1
        small = Image.fromarray(pixels)
        small.thumbnail((_SIDE, _SIDE))
        file = BytesIO()
        small.save(file, "JPEG", quality=_QUALITY)
        return embed_image(file.getvalue())
