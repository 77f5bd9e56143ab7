"""Images of a manifest that are objects at addresses."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from vitrail.data.contract import Faults, Note
from vitrail.data.remote.addresses import check_address, is_address, join_address
from vitrail.data.remote.objects import is_there

_NUM_LOOKED_FOR = 5  # objects, spread over the manifest, of which at least one must exist


def join_all(paths: Sequence[str], *, base: str | None, manifest: Path) -> list[str]:
    """The addresses of all images; with a base paths start there, without one every path must be an address."""
    if base is not None:
        return [join_address(base, path) for path in paths]
    for path in paths:
        if not is_address(path):
            raise ValueError(
                f"{manifest} lists addresses, and also {path!r}, which is none: keep one kind in a manifest"
            )
    return [check_address(path) for path in paths]


def look_for_some_remote(addresses: Sequence[str], faults: Faults) -> list[Note]:
    """Complain if the addresses seem to lead nowhere. Single objects that are missing are found when they are read."""
    rows = np.unique(np.linspace(0, len(addresses) - 1, num=_NUM_LOOKED_FOR).astype(int))
    with ThreadPoolExecutor(_NUM_LOOKED_FOR) as pool:
        if any(pool.map(is_there, [addresses[row] for row in rows])):
            return []
    detail = f"none of {len(rows)} objects that were looked for exists, the first being {addresses[0]}"
    if faults == "refused":
        raise ValueError(f"{detail}: paths start at the manifest's folder")
    return [Note("paths lead nowhere", addresses[0], detail, is_serious=True)]
