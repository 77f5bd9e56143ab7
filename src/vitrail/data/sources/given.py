"""Images that a person names or hands over one by one: files, pixels, pictures of Pillow, tensors."""

import hashlib
import os
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitrail.data.contract import Dataset
from vitrail.data.regular_files import read_regular_file
from vitrail.data.stored import printable

AnyImage = str | os.PathLike[str] | np.ndarray | Image.Image | Tensor


class GivenImages(Dataset):
    """Images that a person names or hands over, without labels."""

    def __init__(self, images: Sequence[AnyImage]) -> None:
        self.name, self.split = "images", "given"
        self.levels = {}
        self.images = images
        for image in images:
            if not isinstance(image, (str, os.PathLike, np.ndarray, Image.Image, Tensor)):
                raise ValueError(
                    f"an image is a path, an array, a picture of Pillow or a tensor, not a {type(image).__name__}"
                )

    def __len__(self) -> int:
        return len(self.images)

    def read(self, index: int) -> bytes | np.ndarray:
        """The file's bytes, or the pixels."""
        image = self.images[index]
        if isinstance(image, Image.Image):
            return np.asarray(image.convert("RGB"))
        if isinstance(image, Tensor):
            return as_pixels(image)
        return image if isinstance(image, np.ndarray) else read_regular_file(os.path.expanduser(image))

    def locate(self, index: int) -> str:
        """The file's full path; for pixels a name that only they have."""
        image = self.images[index]
        if isinstance(image, (np.ndarray, Image.Image, Tensor)):
            pixels = np.asarray(as_pixels(image) if isinstance(image, Tensor) else image)
            return f"pixels/{hashlib.sha256(pixels.tobytes()).hexdigest()[:16]}"
        return printable(os.path.abspath(os.path.expanduser(image)))


class EncodedImages(Dataset):
    """Images that lie in memory as their files would, without labels."""

    def __init__(self, images: Sequence[bytes]) -> None:
        self.name, self.split = "images", "given"
        self.levels = {}
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def read(self, index: int) -> bytes:
        """The bytes of the file."""
        return self.images[index]

    def locate(self, index: int) -> str:
        """The image's place among those given."""
        return f"image {index}"


def as_pixels(image: Tensor) -> np.ndarray:
    """uint8 pixels [height, width, 3] of a tensor [3, height, width] or [height, width] of bytes, or of 0 ... 1."""
    if image.ndim == 2:
        image = image.expand(3, *image.shape)
    if image.ndim != 3 or image.shape[0] not in (1, 3) or image.numel() == 0:
        raise ValueError(f"an image is a tensor [3, height, width], not {list(image.shape)}")
    if image.dtype == torch.bool or not bool(torch.isfinite(image).all()):
        raise ValueError(f"an image is a tensor of bytes or of 0 ... 1, and finite, not of {image.dtype}")
    if image.is_floating_point():
        if image.min() < 0.0 or image.max() > 1.0:
            raise ValueError(
                "an image of floating point has values of 0 ... 1: it is normalised by the model's own rule"
            )
        image = (image * 255.0).round()
    elif image.min() < 0 or image.max() > 255:
        raise ValueError("an image of whole numbers has values of 0 ... 255")
    pixels = image.detach().to("cpu", torch.uint8).expand(3, *image.shape[1:])
    return np.ascontiguousarray(pixels.permute(1, 2, 0).numpy())
