"""Embeddings on disk: one file of all of them, and the parts that it is made of while they are computed.

A part is a file of its own, which is whole or not there: a pass that was killed goes on with the parts that are there,
and processes that make one together write theirs side by side.
"""

import json
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from vitrail.data.quarantine import Problem
from vitrail.storage import remove, replacing
from vitrail.storage.reading import WRONG_CONTENT, parse_json
from vitrail.storage.tensors import UnreadableFileError, join_tensors, read_tensors, write_tensors

_LOGGER = logging.getLogger(__name__)
_UNREAD_KEY = "unread"
_NAME = re.compile(r"images-(\d+)-(\d+)\.safetensors")  # the first, and the one after the last


@dataclass(frozen=True, eq=False)
class Embeddings:
    """What a model says of every image of a data set that could be read, in the order of the data."""

    vectors: Tensor  # float32 [images, dim]
    indices: Tensor  # int64 [images]: the image's place in the data set
    unread: tuple[Problem, ...] = ()  # images that were left out


def read_embeddings(path: Path) -> Embeddings | None:
    """The embeddings of a file, which stay on the disk until they are looked at.

    None where there is no file, or its content is damaged and has to be made again. A file that the system does not
    give is an error: its content may be good.
    """
    return _read(path)[0]


def keep_if_whole(path: Path) -> bool:
    """Whether a file has embeddings; one of damaged content is removed. Nobody else may be writing it."""
    found, wrong = _read(path)
    if wrong is not None:
        _LOGGER.warning("%s is damaged (%s): the embeddings are computed again", path, wrong)
        remove(path)
    return found is not None


def _read(path: Path) -> tuple[Embeddings | None, Exception | None]:
    """The embeddings of a file, or what is wrong with its content; neither where there is no file."""
    try:
        if not path.is_file():
            return None, None
        with path.open("rb"):  # safetensors says that there is no such file, whatever the reason
            pass
        tensors, metadata = read_tensors(path, label=str(path))
        unread = parse_json(metadata[_UNREAD_KEY])
        return Embeddings(tensors["vectors"], tensors["indices"], tuple(Problem(*row) for row in unread)), None
    except FileNotFoundError:  # it was removed just now
        return None, None
    except OSError as error:
        raise ValueError(f"{path} can't be read ({error.strerror or error}): choose another cache") from None
    except UnreadableFileError as error:
        raise ValueError(f"{error}: choose another cache") from None
    except WRONG_CONTENT as error:
        return None, error


def write_embeddings(embeddings: Embeddings, path: Path) -> None:
    """Write the embeddings to a file, which takes its name only when it is complete."""
    tensors = {"vectors": embeddings.vectors, "indices": embeddings.indices}
    with replacing(path) as temporary:
        write_tensors(tensors, temporary, metadata={_UNREAD_KEY: json.dumps(embeddings.unread)})


class EmbeddingParts:
    """The parts in a folder, each of a range of the images; the folder belongs to one model and one data set."""

    def __init__(self, folder: Path, *, num_images: int) -> None:
        self.folder, self.num_images = folder, num_images

    def write(self, part: range, embeddings: Embeddings) -> None:
        """Keep the embeddings of a range."""
        write_embeddings(embeddings, self._place(part))

    def drop_damaged(self) -> None:
        """Remove what is damaged, or of none of the images, so that it is computed again."""
        for part in list(self._found()):
            if part.stop > self.num_images:
                remove(self._place(part))
            else:
                keep_if_whole(self._place(part))

    def missing(self) -> list[range]:
        """The ranges of images that no part has."""
        gaps, end = [], 0
        for part in self._chosen():
            if part.start > end:
                gaps.append(range(end, part.start))
            end = part.stop
        return [*gaps, range(end, self.num_images)] if end < self.num_images else gaps

    def join(self, path: Path) -> None:
        """Make one file of all parts, of which one at a time is in memory."""
        files = [self._place(part) for part in self._chosen()]
        unread: list[Sequence[str]] = []
        for file in files:
            unread += parse_json(read_tensors(file, label=str(file))[1][_UNREAD_KEY])
        with replacing(path) as temporary:
            join_tensors(files, temporary, metadata={_UNREAD_KEY: json.dumps(unread)})

    def _chosen(self) -> list[range]:
        """Parts that do not overlap: those of a pass with another batch size may."""
        chosen, end = [], 0
        for part in sorted(self._found(), key=lambda part: (part.start, -part.stop)):
            if part.start >= end:
                chosen.append(part)
                end = part.stop
        return chosen

    def _found(self) -> Iterator[range]:
        for file in self.folder.iterdir():
            found = _NAME.fullmatch(file.name)
            if found:
                yield range(int(found[1]), int(found[2]))

    def _place(self, part: range) -> Path:
        return self.folder / f"images-{part.start:010d}-{part.stop:010d}.safetensors"
