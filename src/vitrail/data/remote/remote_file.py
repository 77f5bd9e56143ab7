"""An object that is read like a file: in blocks, through the cache, with those that come next on their way."""

import functools
import io
import os
import queue
import threading
from collections import OrderedDict

from vitrail.data.contract import SourceFailedError
from vitrail.data.remote.block_cache import BLOCK_BYTES, BlockCache, CachedBlock, block_cache
from vitrail.data.remote.objects import ObjectMark, store_of
from vitrail.data.remote.patience import changed, patiently
from vitrail.storage import hash_text

_NUM_FETCHERS = 8  # threads of a process
_BLOCKS_AHEAD = 2
_MAX_REMEMBERED = 4096  # blocks that were asked for ahead


class RemoteFile:
    """The bytes of one object, which must stay what its mark says."""

    def __init__(self, address: str, mark: ObjectMark) -> None:
        self.address, self.mark = address, mark
        self.key = hash_text(f"{address}\n{mark.size}\n{mark.tag}")

    def read(self, size: int, offset: int) -> bytes:
        """Bytes from a place on; fewer where the object ends."""
        stop = min(offset + size, self.mark.size)
        parts = []
        for number in range(offset // BLOCK_BYTES, -(-stop // BLOCK_BYTES)):
            start = number * BLOCK_BYTES
            block = self._block(number)
            parts.append(block.read(max(offset, start) - start, min(stop, start + BLOCK_BYTES) - start))
            for ahead in range(number + 1, number + 1 + _BLOCKS_AHEAD):
                self._ask_ahead(ahead)
        return b"".join(parts)

    def expect(self, size: int, offset: int) -> None:
        """Have bytes fetched that are read soon."""
        for number in range(offset // BLOCK_BYTES, -(-min(offset + size, self.mark.size) // BLOCK_BYTES)):
            self._ask_ahead(number)

    def fetch_ahead(self, number: int, cache: BlockCache) -> None:
        """Have a block on this disk; what goes wrong is told by who reads it."""
        if not cache.has(self.key, number):
            cache.block(self.key, number, lambda: self._fetch(number))

    def _ask_ahead(self, number: int) -> None:
        if number * BLOCK_BYTES < self.mark.size:
            _fetchers(os.getpid()).ask(self, number)

    def _block(self, number: int) -> CachedBlock:
        return block_cache().block(self.key, number, lambda: self._fetch(number))

    def _fetch(self, number: int) -> bytes:
        start = number * BLOCK_BYTES
        stop = min(start + BLOCK_BYTES, self.mark.size)
        store = store_of(self.address)
        try:
            return patiently(self.address, lambda: store.read(self.address, start, stop, mark=self.mark))
        except FileNotFoundError:
            raise changed(self.address) from None


class RemoteStream(io.RawIOBase):
    """A remote file with a position, for those who read from front to back."""

    def __init__(self, file: RemoteFile) -> None:
        self._file, self._position = file, 0

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.mark.size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        """Where it is."""
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill the buffer from here on."""
        data = self._file.read(len(buffer), self._position)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


class _Fetchers:
    """Threads that fetch what is asked for ahead; they end with the process and keep nobody waiting."""

    def __init__(self) -> None:
        self._asked: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._guard = threading.Lock()
        self._queue: queue.Queue[tuple[RemoteFile, int]] = queue.Queue(maxsize=_MAX_REMEMBERED)
        for _ in range(_NUM_FETCHERS):
            threading.Thread(target=self._work, daemon=True, name="vitrail remote").start()

    def ask(self, file: RemoteFile, number: int) -> None:
        """Have a block fetched, unless it was asked for lately."""
        place = (file.key, number)
        with self._guard:
            if place in self._asked:
                return
            self._asked[place] = None
            while len(self._asked) > _MAX_REMEMBERED:
                self._asked.popitem(last=False)
        try:
            self._queue.put_nowait((file, number))
        except queue.Full:
            self._forget(place)

    def _forget(self, place: tuple[str, int]) -> None:
        with self._guard:
            self._asked.pop(place, None)

    def _work(self) -> None:
        while True:
            file, number = self._queue.get()
            try:
                file.fetch_ahead(number, block_cache())
            except (SourceFailedError, OSError, ValueError):
                pass  # told by who reads the block
            finally:
                self._forget((file.key, number))


@functools.lru_cache(maxsize=1)
def _fetchers(process: int) -> _Fetchers:
    return _Fetchers()
