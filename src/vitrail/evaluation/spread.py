"""How much of their space features fill: numbers that need no labels, and fall when a model says the same of all."""

import torch
from torch import Tensor
from torch.nn import functional

_LEAST_SHARE = 1e-7  # RankMe's epsilon: a direction without energy has this share


def effective_rank(features: Tensor) -> float:
    """RankMe (Garrido et al. 2023, equation 1): exp of the entropy of the singular values' shares, of [images, dim].

    It is 1 where all features lie on one line through zero, and at most the smaller of images and dim.
    """
    rows = features.double()
    products = rows.T @ rows if rows.shape[0] > rows.shape[1] else rows @ rows.T
    values = torch.linalg.eigvalsh(products).clamp(min=0.0).sqrt()
    total = values.sum()
    if total == 0.0:
        return 1.0  # nothing but zeros: one answer for all
    shares = values / total + _LEAST_SHARE
    return torch.exp(-(shares * shares.log()).sum()).item()


def feature_deviation(features: Tensor) -> float:
    """The standard deviation over images of features [images, dim] at length 1, the mean of all channels.

    It is 0 where all images have one direction, and 1 / sqrt(dim) where directions are spread evenly (SimSiam, 4.1).
    """
    return functional.normalize(features.double(), dim=1).std(dim=0, correction=0).mean().item()
