"""Reading one step ahead, while another is computed."""

from collections.abc import Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class ReadAhead(Generic[Item]):
    """An iterator whose next item can be read before it is asked for; what goes wrong then is told when it is."""

    def __init__(self, items: Iterator[Item]) -> None:
        self._items = items
        self._next: list[Item] = []
        self._error: BaseException | None = None

    def read(self) -> None:
        """Read the next item, unless it is there."""
        if self._next or self._error is not None:
            return
        try:
            self._next.append(next(self._items))
        except Exception as error:  # a StopIteration too
            self._error = error

    def __iter__(self) -> "ReadAhead[Item]":
        return self

    def __next__(self) -> Item:
        self.read()
        if self._next:
            return self._next.pop()
        assert self._error is not None
        raise self._error
