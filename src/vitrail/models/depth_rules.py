"""What changes with the number of blocks: LayerScale's first value and stochastic depth (CaiT sections 2 and 4.1)."""

from collections.abc import Mapping
from typing import Any


def layer_scale_for(depth: int) -> float:
    """LayerScale's first value: 0.1 up to 18 blocks, 1e-5 up to 24, 1e-6 for deeper networks (CaiT section 2)."""
    return 0.1 if depth <= 18 else 1e-5 if depth <= 24 else 1e-6


def drop_path_for(depth: int, *, dim: int = 384) -> float:
    """The uniform rate of stochastic depth of a CaiT: max(0.1 (depth / 12 - 1), 0) for the S models (CaiT 4.1.1).

    CaiT raises it "by a constant" for wider models and lowers it for narrower ones: thesis table 3.16 has 0.1 more at a
    width of 768, and half at 192 and 288.
    """
    rate = max(0.1 * (depth / 12 - 1), 0.0)
    if dim >= 768:
        rate += 0.1
    elif dim < 384:
        rate /= 2
    return round(min(rate, 0.9), 6)


def settings_for_depth(family: str, row: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What a row of the catalogue has instead of its own settings where it is given another depth.

    A CaiT follows both rules, a ResMLP that of LayerScale (thesis 4.3.1); other families have none. Empty at the row's
    own depth.
    """
    depth = given.get("depth", row["depth"])
    if depth == row["depth"] or not isinstance(depth, int) or depth < 1:
        return {}
    if family == "resmlp":
        return {"layer_scale": layer_scale_for(depth)}
    dim = given.get("dim", row["dim"])
    if family == "cait" and isinstance(dim, int):
        return {"layer_scale": layer_scale_for(depth), "drop_path": drop_path_for(depth, dim=dim)}
    return {}
