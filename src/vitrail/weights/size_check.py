"""Whether the sizes in a config.json can be those of the weights beside it, asked before a model is built."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

_FREE = 4096  # sizes that no memory is lost by; what they are is compared when the model is built
_SIDES = "image_size"  # has a limit of its own


def check_sizes(settings: Mapping[str, Any], state: Mapping[str, Tensor], *, num_tensors: int, label: str) -> None:
    """Refuse more blocks than the weights have tensors, and sizes far beyond the longest side of any of these."""
    longest = max((side for value in state.values() for side in value.shape), default=0)
    for name, value in _numbers(settings):
        key = name.rpartition(".")[2]
        if key == _SIDES:
            continue
        is_depth = "depth" in key
        limit = num_tensors if is_depth else max(longest, _FREE)
        if value > limit:
            has = f"{num_tensors:,} tensors" if is_depth else f"no side longer than {longest:,}"
            raise ValueError(f"{label}: {name} is {value:,} and the weights beside it have {has}: get both anew")


def _numbers(content: Any, name: str = "") -> Iterator[tuple[str, int | float]]:
    """Every number in settings, with its dotted name."""
    if isinstance(content, Mapping):
        for key, value in content.items():
            yield from _numbers(value, f"{name}.{key}" if name else str(key))
    elif isinstance(content, (list, tuple)):
        for value in content:
            yield from _numbers(value, name)
    elif isinstance(content, (int, float)) and not isinstance(content, bool):
        yield name, content
