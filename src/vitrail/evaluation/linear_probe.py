"""Linear probes: ridge regression in closed form, and multinomial logistic regression by L-BFGS."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from vitrail.evaluation.calibration import calibrate
from vitrail.evaluation.probe_data import Fitted, Labelled, LinearClassifier, Standardization, hold_out, measure_main

# Penalties from strong to weak. Losses are means over images and features have deviation 1, so that the same numbers
# serve data sets of any size.
RIDGE_PENALTIES = tuple(10.0 ** (2.0 - step / 3.0) for step in range(22))
LOGISTIC_PENALTIES = tuple(10.0 ** (1.0 - step / 2.0) for step in range(13))
_PATIENCE = 3  # penalties in a row that are worse than the best, after which weaker ones are not tried
_ROUGH, _EXACT = 1e-4, 1e-6  # the largest entry of the gradient at which a fit ends: in the search, and at its end
_MAX_STEPS = 1000
_MAX_DOUBLES = 50_000_000  # above so many numbers float32 has to do
_CHUNK = 16384


def fit_ridge(train: Labelled, *, penalties: Sequence[float] = RIDGE_PENALTIES) -> Fitted:
    """Least squares from standardised embeddings to targets of 0 and 1: mean squared error + penalty x |weights|^2.

    The penalty is chosen on held-out training images, then everything is fitted again on all. The answers of least
    squares are no logits: they are scaled so that held-out images have the largest likelihood; where an image may have
    several classes, around the half that lies between no and yes.
    """
    fit, held = hold_out(train)
    tried = list(ridge_path(fit, penalties))
    figures = [measure_main(classifier(held.vectors), held.targets) for classifier in tried]
    best = max(range(len(tried)), key=figures.__getitem__)  # the strongest of those that are equally good
    middle = 0.5 if train.is_multiple else 0.0
    calibration = calibrate(tried[best](held.vectors) - middle, held.targets)
    (found,) = ridge_path(train, [penalties[best]])
    classifier = calibration.apply(LinearClassifier(found.weight, found.bias - middle))
    return Fitted(classifier, {"penalty": penalties[best]}, figures[best], classifier)


def ridge_path(data: Labelled, penalties: Sequence[float]) -> Iterator[LinearClassifier]:
    """The solution for every penalty, all of one eigendecomposition of the covariance."""
    standardize = Standardization.of(data.vectors)
    dim = data.vectors.shape[1]
    covariance = data.vectors.new_zeros(dim, dim, dtype=torch.float64)
    moments = data.vectors.new_zeros(dim, data.num_classes, dtype=torch.float64)
    masks = data.masks
    for vectors, targets in zip(data.vectors.split(_CHUNK), masks.split(_CHUNK), strict=True):
        standardized = standardize(vectors)
        covariance.addmm_(standardized.T, standardized, alpha=1.0 / len(data))
        moments.addmm_(standardized.T, targets.double(), alpha=1.0 / len(data))
    values, directions = torch.linalg.eigh(covariance)
    rotated = directions.T @ moments
    bias = masks.double().mean(dim=0)
    for penalty in penalties:
        weight = directions @ (rotated / (values.clamp(min=0.0) + penalty)[:, None])
        yield standardize.absorb(weight.T, bias)


def fit_logistic(train: Labelled, *, penalties: Sequence[float] = LOGISTIC_PENALTIES) -> Fitted:
    """Logistic regression on standardised embeddings: mean cross-entropy + penalty / 2 x |weights|^2.

    The penalty 1 / (C x images) is what scikit-learn calls C. It is chosen on held-out training images, from strong to
    weak and each fit starting from the one before, then everything is fitted again on all. The penalty that answers
    best may be so strong that probabilities say little: logits are scaled to the largest likelihood of held-out images.
    Where an image may have several classes it is one logistic regression a class.
    """
    fit, held = hold_out(train)
    problem = LogisticProblem(fit, dtype=torch.float32)
    best, best_figure, best_start, num_worse = penalties[0], -1.0, problem.start, 0
    parameters = problem.start
    for penalty in penalties:
        parameters = problem.solve(penalty, start=parameters, tolerance=_ROUGH)
        figure = measure_main(problem.classifier(parameters)(held.vectors), held.targets)
        if figure > best_figure:
            best, best_figure, best_start, num_worse = penalty, figure, parameters, 0
            continue
        num_worse += 1
        if num_worse == _PATIENCE:
            break
    whole = LogisticProblem(train, dtype=torch.float64 if train.vectors.numel() <= _MAX_DOUBLES else torch.float32)
    calibration = calibrate(problem.classifier(best_start)(held.vectors), held.targets)
    classifier = calibration.apply(whole.classifier(whole.solve(best, start=best_start, tolerance=_EXACT)))
    return Fitted(classifier, {"penalty": best}, best_figure, classifier)


class LogisticProblem:
    """Logistic regression on one set of embeddings, for any penalty."""

    def __init__(self, data: Labelled, *, dtype: torch.dtype = torch.float64) -> None:
        self.standardize = Standardization.of(data.vectors)
        self.inputs = self.standardize(data.vectors).to(dtype)
        self.targets = data.targets.to(dtype) if data.is_multiple else data.targets
        self.num_classes = data.num_classes

    @property
    def start(self) -> Tensor:
        """Zeros [classes, dim + 1]: the last column is the bias."""
        return self.inputs.new_zeros(self.num_classes, self.inputs.shape[1] + 1)

    def loss(self, parameters: Tensor, penalty: float) -> Tensor:
        """What is minimised; the bias is free."""
        weight, bias = parameters[:, :-1], parameters[:, -1]
        logits = torch.addmm(bias, self.inputs, weight.T)
        if self.targets.ndim == 2:  # the sum over classes: each is a problem of its own
            fitting = functional.binary_cross_entropy_with_logits(logits, self.targets) * self.num_classes
        else:
            fitting = functional.cross_entropy(logits, self.targets)
        return fitting + 0.5 * penalty * weight.square().sum()

    def solve(self, penalty: float, *, start: Tensor, tolerance: float) -> Tensor:
        """The parameters of the smallest loss, found from `start`."""
        parameters = start.to(self.inputs.dtype, copy=True).requires_grad_()
        optimizer = torch.optim.LBFGS(
            [parameters],
            max_iter=_MAX_STEPS,
            history_size=20,
            tolerance_grad=tolerance,
            tolerance_change=1e-10,
            line_search_fn="strong_wolfe",
        )

        def evaluate() -> Tensor:
            optimizer.zero_grad()
            loss = self.loss(parameters, penalty)
            loss.backward()
            return loss

        optimizer.step(evaluate)
        return parameters.detach()

    def classifier(self, parameters: Tensor) -> LinearClassifier:
        """A solution as a linear layer on the embeddings as they are."""
        return self.standardize.absorb(parameters[:, :-1].double(), parameters[:, -1].double())
