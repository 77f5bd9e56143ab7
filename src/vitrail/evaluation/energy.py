"""How many directions embeddings use: the cumulative energy of their principal components (thesis 2.2, figure 2.1)."""

import torch
from torch import Tensor


def cumulative_energy(features: Tensor) -> Tensor:
    """The share of the variance of [n, d] that the first 1, 2, ... principal components hold, float64 [min(n, d)].

    It ends at 1. A lower curve tells of a richer representation, which a few components can't sum up.
    """
    if features.ndim != 2 or 0 in features.shape:
        raise ValueError(f"the energy is that of features [images, dim], not of {list(features.shape)}")
    centred = features.detach().double()
    centred = centred - centred.mean(dim=0)
    # Both products have the same eigenvalues but for zeros; the smaller one is decomposed.
    product = centred @ centred.T if len(centred) < centred.shape[1] else centred.T @ centred
    if not torch.isfinite(product).all():
        raise ValueError("the features are not finite: they have no principal components")
    energies = torch.linalg.eigvalsh(product).flip(0).clamp(min=0)
    cumulative = energies.cumsum(dim=0)
    total = cumulative[-1]
    # Equal features differ from their mean by rounding alone.
    rounding = (8 * torch.finfo(torch.float64).eps * features.detach().abs().max().double()) ** 2
    if total <= features.numel() * rounding:
        raise ValueError(f"all {len(features)} features are the same: they have no principal components")
    return cumulative / total
