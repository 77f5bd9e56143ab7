"""Linear discriminant analysis: a linear classifier of embeddings in closed form, with probabilities that are meant."""

from collections.abc import Iterator, Sequence

import torch

from vitrail.evaluation.calibration import calibrate
from vitrail.evaluation.probe_data import Fitted, Labelled, LinearClassifier, Standardization, hold_out, measure_main

# Shares of the identity in the covariance, from the nearest class mean to what the images say themselves.
SHRINKAGES = (1.0, 0.9, 0.7, 0.5, 0.3, 0.1, 0.03, 0.01)


def fit_discriminant(train: Labelled, *, shrinkages: Sequence[float] = SHRINKAGES) -> Fitted:
    """Classes as normal distributions around their means, all of one covariance, which is shrunk to the identity.

    The shrinkage is the one that gives held-out training images the largest likelihood, with the scale that suits it;
    then everything is fitted again on all. Few images a class are enough: with four the nearest class mean is chosen.
    """
    fit, held = hold_out(train)
    tried = list(discriminant_path(fit, shrinkages))
    chosen = [calibrate(classifier(held.vectors), held.targets) for classifier in tried]
    best = min(range(len(tried)), key=lambda place: chosen[place].loss)
    (found,) = discriminant_path(train, [shrinkages[best]])
    classifier = chosen[best].apply(found)
    figure = measure_main(tried[best](held.vectors), held.targets)
    return Fitted(classifier, {"shrinkage": shrinkages[best]}, figure, classifier)


def discriminant_path(data: Labelled, shrinkages: Sequence[float]) -> Iterator[LinearClassifier]:
    """The classifier for every shrinkage, all of one eigendecomposition of the covariance within classes.

    A class without images gets the bias of the least likely one.
    """
    standardize = Standardization.of(data.vectors)
    inputs, counts = standardize(data.vectors), torch.bincount(data.targets, minlength=data.num_classes)
    means = inputs.new_zeros(data.num_classes, inputs.shape[1]).index_add_(0, data.targets, inputs)
    means /= counts.clamp(min=1)[:, None]
    within = inputs - means[data.targets]
    values, directions = torch.linalg.eigh(within.T @ within / len(inputs))
    rotated = means @ directions
    for share in shrinkages:
        scaled = rotated / ((1.0 - share) * values.clamp(min=0.0) + share)
        bias = -0.5 * (scaled * rotated).sum(dim=1)
        bias = bias.masked_fill(counts == 0, bias.min().item())
        yield standardize.absorb(scaled @ directions.T, bias)
