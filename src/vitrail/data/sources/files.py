"""Image files that a person names one by one, without labels."""

from collections.abc import Sequence
from pathlib import Path

from vitrail.data.stored import FileDataset, printable


class ImageFiles(FileDataset):
    """Files whose classes nobody knows, under the names they are given."""

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__(name="images", split="files", root=Path(), paths=paths, levels={})

    def locate(self, index: int) -> str:
        """The path as it was given."""
        return printable(self.paths[index])
