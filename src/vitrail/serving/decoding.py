"""Encoded images to what models take, in worker threads: the event loop never waits for a decoder."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import numpy as np
from PIL import Image
from torch import Tensor

from vitrail.data.augment import EvaluationView
from vitrail.data.decode import BrokenImageError, ImageTooLargeError, OpenedImage, open_image
from vitrail.data.sources.given import GivenImages
from vitrail.evaluation.lanes import keep_threads
from vitrail.explain.canvas import Rectangle
from vitrail.explain.drawing import as_picture, find_seen
from vitrail.gallery.gallery_images import make_thumbnail
from vitrail.serving.refusals import RefusedError

Result = TypeVar("Result")
_SHOWN_SIDE = 640  # pixels of the longer side of a picture that maps are drawn on
_LARGE = 1_000_000  # pixels from which on an image is made smaller before it goes to a gallery
_HUGE = 10_000_000  # pixels from which on few images are decoded at a time: some formats take 16 bytes for each
_HUGE_TURNS = threading.BoundedSemaphore(2)
_THUMBNAIL_SIDE = 96  # pixels of the longer side of a gallery's thumbnails


class ShownPicture(NamedTuple):
    """What a model sees of an image, and the image itself, small enough to draw on."""

    seen: Tensor  # uint8 [3, height, width]
    image: Image.Image
    part: Rectangle  # of the image, that the model sees


class NewImage(NamedTuple):
    """What a gallery keeps of an image beside its embedding."""

    path: str  # a name that only its pixels have
    thumbnail: bytes


class Workers:
    """Threads that read bodies, decode images and draw pictures."""

    def __init__(self, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="worker", initializer=keep_threads, initargs=(1,))

    async def run(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """What the work gives, computed in one of the threads."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)

    async def map(self, work: Callable[..., Result], items: Sequence[Any], *arguments: Any) -> list[Result]:
        """The work for each item, in several threads; the first error is raised when all have ended."""
        found = await asyncio.gather(*(self.run(work, item, *arguments) for item in items), return_exceptions=True)
        results: list[Result] = []
        for place, result in enumerate(found):
            if isinstance(result, RefusedError) and len(found) > 1:
                raise RefusedError(result.status, f"image {place} {str(result).removeprefix('the image ')}")
            if isinstance(result, BaseException):
                raise result
            results.append(result)
        return results

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def open_checked(data: bytes | np.ndarray, max_pixels: int) -> OpenedImage:
    """An image of which the header is sound and not too large."""
    try:
        return open_image(data, max_pixels=max_pixels)
    except ImageTooLargeError as error:
        raise RefusedError(413, f"the image {error}") from None
    except ValueError as error:
        raise RefusedError(422, f"the image {error}") from None


@contextlib.contextmanager
def decoding(image: OpenedImage) -> Iterator[None]:
    """Decode an image in here, a huge one when it is its turn; one that turns out to be broken is refused."""
    turn = _HUGE_TURNS if image.height * image.width > _HUGE else contextlib.nullcontext()
    try:
        with turn:
            yield
    except BrokenImageError as error:
        raise RefusedError(422, f"the image {error}") from None


def make_seen(data: bytes | np.ndarray, view: EvaluationView, max_pixels: int) -> Tensor:
    """What a model sees of an image, uint8 [3, height, width]."""
    image = open_checked(data, max_pixels)
    with decoding(image):
        return view(image)


def make_shown(data: bytes, view: EvaluationView, max_pixels: int) -> ShownPicture:
    """What a model sees of an image, beside the image."""
    image = open_checked(data, max_pixels)
    with decoding(image):
        crop = view.plan((image.height, image.width))
        seen, whole = crop.apply(image), as_picture(image.pixels())
        factor = min(1.0, _SHOWN_SIDE / max(whole.size))
        size = max(1, round(whole.width * factor)), max(1, round(whole.height * factor))
        return ShownPicture(seen, whole.resize(size, Image.Resampling.BICUBIC), find_seen(crop).scaled(factor))


def make_new(data: bytes, view: EvaluationView, max_pixels: int) -> tuple[NewImage, Tensor]:
    """What a gallery keeps of an image, and what the model sees of it; of a large one, by as many pixels as it takes.

    They have at least twice the height and width that the model's picture is cut from, and a thumbnail's.
    """
    image = open_checked(data, max_pixels)
    spare = 1.0
    if image.height * image.width > _LARGE:
        crop = view.plan((image.height, image.width))
        seen = min(crop.source.height / crop.resized[0], crop.source.width / crop.resized[1])
        spare = min(seen, max(image.height, image.width) / _THUMBNAIL_SIDE) / 2
    with decoding(image):
        given = GivenImages([_shrink(image, spare)])
        return NewImage(given.locate(0), make_thumbnail(given, 0)), view(open_image(given.read(0)))


def _shrink(image: OpenedImage, spare: float) -> np.ndarray:
    """Pixels [height, width, 3] of an image of which so many times fewer rows and columns are needed."""
    pixels = image.pixels(shrink=next((shrink for shrink in (8, 4, 2) if shrink <= spare), 1))
    left = int(spare * pixels.shape[1] / image.height)  # formats that are decoded in full have all of it left
    if left > 1:
        return np.asarray(as_picture(pixels).reduce(left))
    return pixels.permute(1, 2, 0).contiguous().numpy()
