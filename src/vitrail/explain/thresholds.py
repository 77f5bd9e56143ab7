"""The patches that hold most of a map, as masks: the thresholded maps of DINO, which PatchConvNet's figure 5 uses."""

import torch
from torch import Tensor


def keep_mass(maps: Tensor, share: float) -> Tensor:
    """The fewest cells of each map [..., height, width] whose values make up that share of its sum, as bool masks.

    Values below 0, which speak against a class, count as nothing; a map without any above 0 keeps no cell.
    """
    check_share(share)
    values = maps.detach().clamp(min=0).flatten(-2).double()
    ranked, order = values.sort(dim=-1, descending=True, stable=True)
    before = ranked.cumsum(dim=-1) - ranked  # what the cells ahead of each hold
    is_kept = (before < share * ranked.sum(dim=-1, keepdim=True)) & (ranked > 0)
    return torch.zeros_like(is_kept).scatter(-1, order, is_kept).unflatten(-1, maps.shape[-2:])


def check_share(share: object) -> None:
    """Refuse what is no share of a map."""
    is_number = isinstance(share, (int, float)) and not isinstance(share, bool)
    if not is_number or not 0 < share <= 1:  # type: ignore[operator]
        raise ValueError(f"the share of a map to keep must be above 0 and at most 1, such as 0.6, not {share!r}")
