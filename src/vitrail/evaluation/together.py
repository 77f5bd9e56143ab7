"""Processes that work together, as whoever computes in one of them sees the others."""

from typing import Any, Protocol

from torch import Tensor

from vitrail.data.sampler import Ranks


class Together(Protocol):
    """The processes that train together, or go over data together, as those who compute may see them."""

    @property
    def rank(self) -> int: ...

    @property
    def num_ranks(self) -> int: ...

    @property
    def is_main(self) -> bool: ...

    @property
    def ranks(self) -> Ranks: ...

    def sum(self, tensor: Tensor) -> Tensor: ...

    def any(self, *flags: bool) -> list[bool]: ...

    def share(self, value: Any) -> Any: ...

    def gather(self, value: Any) -> list[Any]: ...


class Alone:
    """A process that works with no others."""

    rank, num_ranks, is_main, ranks = 0, 1, True, Ranks()

    def sum(self, tensor: Tensor) -> Tensor:
        """The tensor itself."""
        return tensor

    def any(self, *flags: bool) -> list[bool]:
        """The flags as they are."""
        return list(flags)

    def share(self, value: Any) -> Any:
        """The value itself."""
        return value

    def gather(self, value: Any) -> list[Any]:
        """The one value."""
        return [value]


def leave_rest_to_main(world: Together) -> None:
    """End every process but the main one, well: what is left to do after the last pass over data is its work alone."""
    if not world.is_main:
        raise SystemExit(0)
