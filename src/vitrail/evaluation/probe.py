"""Transfer by probes: how well a fixed trunk serves other classes, told by small classifiers on its embeddings."""

import difflib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from vitrail.evaluation.head_probe import fit_fc, fit_mlp
from vitrail.evaluation.knn import fit_neighbours
from vitrail.evaluation.linear_probe import fit_logistic, fit_ridge
from vitrail.evaluation.probe_data import Fitted, Labelled, LinearClassifier, measure

# The one table of probes: name -> what fits it to training images.
METHODS: Mapping[str, Callable[[Labelled], Fitted]] = {
    "linear": fit_logistic,
    "ridge": fit_ridge,
    "knn": fit_neighbours,
    "fc": fit_fc,
    "mlp": fit_mlp,
}
ALL = "all"


@dataclass(frozen=True, eq=False)
class Probe:
    """The result of one probe."""

    method: str
    figures: Mapping[str, float]  # on val, in percent: top1 and top5, or mean_average_precision
    setting: Mapping[str, float]  # what was chosen on training images, or given
    held_out: float | None  # the main figure on the training images that the setting was chosen by
    seconds: float  # of choosing, fitting and measuring
    linear: LinearClassifier | None  # the probe as one linear layer, where it is one


def choose_methods(name: str) -> tuple[str, ...]:
    """The probe of that name, or all of them."""
    if name == ALL:
        return tuple(METHODS)
    if name not in METHODS:
        choices = (ALL, *METHODS)
        near = difflib.get_close_matches(name, choices, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(choices)}"
        raise ValueError(f"unknown method {name!r}; {hint}")
    return (name,)


def run_probe(method: str, train: Labelled, val: Labelled) -> Probe:
    """Fit one probe to `train` and measure it on `val`, which has no part in choosing its setting."""
    if method == ALL:
        raise ValueError(f"run_probe runs one method: {', '.join(METHODS)}")
    (method,) = choose_methods(method)
    check_probe_data(train, val)
    start = time.perf_counter()
    fitted = METHODS[method](train)
    figures = measure(fitted.scores(val.vectors), val.targets)
    seconds = time.perf_counter() - start
    return Probe(method, figures, fitted.setting, fitted.held_out, seconds, fitted.linear)


def check_probe_data(train: Labelled, val: Labelled) -> None:
    """Refuse data with nothing to learn, or nothing to measure."""
    if train.vectors.shape[1] != val.vectors.shape[1] or train.num_classes != val.num_classes:
        raise ValueError("training and val embeddings are of different models or classes")
    if not len(val):
        raise ValueError("val has no image with a label: there is nothing to measure")
    if train.num_classes < 2 or (not train.is_multiple and len(train.targets.unique()) < 2):
        raise ValueError("the training images are all of one class: there is nothing to tell apart")


def best_linear(probes: list[Probe]) -> Probe:
    """The linear probe that did best on held-out training images, not on val; one that held out nothing comes last."""
    linear = [probe for probe in probes if probe.linear is not None]
    if not linear:
        raise ValueError("no linear probe was fitted: use method=linear, ridge, fc or all")
    return max(linear, key=lambda probe: -1.0 if probe.held_out is None else probe.held_out)
