"""Samples of a data set that a person names: by number or by file."""

from collections.abc import Sequence

from vitrail.data.contract import Dataset


def find_samples(data: Dataset, wanted: Sequence[int | str]) -> list[int]:
    """The places of samples, each given by its place or by its file: its path, or enough of the path's end."""
    return [_find(data, each) for each in wanted]


def _find(data: Dataset, wanted: int | str) -> int:
    where = f"{data.split} of {data.name}"
    if isinstance(wanted, int) and not isinstance(wanted, bool):
        if not 0 <= wanted < len(data):
            raise ValueError(f"{where} has the images 0 to {len(data) - 1}, not {wanted}")
        return wanted
    if not isinstance(wanted, str) or not wanted:
        raise ValueError(f"an image of {where} is named by its file or its number, not by {wanted!r}")
    name = wanted.replace("\\", "/").removeprefix("./")
    places = {place: data.locate(place).replace("\\", "/") for place in range(len(data))}
    found = [place for place, path in places.items() if path == name]
    found = found or [place for place, path in places.items() if path.endswith((f"/{name}", f"!{name}"))]
    if not found:
        raise ValueError(f"{where} has no file {wanted!r}; its first is {places.get(0, 'none')}")
    if len(found) > 1:
        raise ValueError(f"{where} has {len(found)} files {wanted!r}: write more of the path, as {places[found[0]]}")
    return found[0]
