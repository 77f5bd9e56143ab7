"""Memory for what a backward pass needs again, used anew in every step, up to a share of the machine's."""

import os
import threading

import torch
from torch import Tensor

_SHARE = 8  # up to one part in so many of the machine's memory, and no more than _MOST
_MOST = 4 << 30  # bytes


class KeptMemory:
    """Buffers that are taken in a forward pass and given back after the backward pass.

    Fresh memory has to be cleared page by page, which takes as long as computing what would be kept in it. So free
    buffers are used again, and are given up when others of another size are wanted beyond the limit.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit  # bytes
        self.held = 0  # bytes, in use or free
        self._free: dict[tuple[int, torch.dtype], list[Tensor]] = {}
        self._lock = threading.Lock()

    def take(self, count: int, dtype: torch.dtype) -> Tensor | None:
        """A buffer for that many numbers, on a CPU; None where it would pass the limit."""
        size = count * dtype.itemsize
        with self._lock:
            if free := self._free.get((count, dtype)):
                return free.pop()
            if self.held + size > self.limit:
                self._give_up()
            if self.held + size > self.limit:
                return None
            self.held += size
        return torch.empty(count, dtype=dtype)

    def give_back(self, buffer: Tensor) -> None:
        """Let others use a buffer."""
        with self._lock:
            self._free.setdefault((len(buffer), buffer.dtype), []).append(buffer)

    def _give_up(self) -> None:
        for (count, dtype), buffers in self._free.items():
            self.held -= count * dtype.itemsize * len(buffers)
        self._free.clear()


def machine_limit() -> int:
    """Bytes that may be kept on this machine; none where it does not tell how much it has."""
    return min(_MOST, (memory_of_machine() or 0) // _SHARE)


def memory_of_machine() -> int | None:
    """Bytes of memory that the machine has; None where it does not tell, as on Windows."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
