"""Images of a gallery as they come and go: embeddings, labels, paths and thumbnails."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Rows:
    """Images of a gallery."""

    vectors: Tensor  # float32 or float16 [images, dim], of length 1
    labels: Tensor  # int32 [images, levels]; -1 without a label
    paths: tuple[str, ...]
    thumbnails: tuple[bytes, ...]  # JPEG; empty where there is none

    def __len__(self) -> int:
        return len(self.vectors)

    def choose(self, places: Sequence[int]) -> "Rows":
        """Some of the images."""
        at = torch.tensor(places, dtype=torch.int64)
        return Rows(
            self.vectors[at],
            self.labels[at],
            tuple(self.paths[place] for place in places),
            tuple(self.thumbnails[place] for place in places),
        )

    @classmethod
    def joined(cls, several: "Sequence[Rows]") -> "Rows":
        """The images of several, one after the other."""
        return cls(
            torch.cat([rows.vectors for rows in several]),
            torch.cat([rows.labels for rows in several]),
            tuple(path for rows in several for path in rows.paths),
            tuple(picture for rows in several for picture in rows.thumbnails),
        )
