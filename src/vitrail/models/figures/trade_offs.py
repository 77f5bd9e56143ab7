"""Accuracy against cost, as the papers publish both (thesis figures 3.3, 3.8, 5.2, 5.7 and 6.4)."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from vitrail.models.figures.record import Figures, Result


class Cost(NamedTuple):
    """Something that a model costs, or gives in return."""

    label: str  # with its unit
    read: Callable[[Figures, int], str | None]  # the printed figure at an image size; None: there is none
    is_gain: bool = False  # more of it is better, as of images a second


_SETUP = "a"  # of SETUPS
COSTS = {
    "flops": Cost("FLOPs: billions of multiply-adds", lambda figures, size: figures.flops.get(size)),
    "parameters": Cost(
        "parameters, millions", lambda figures, size: figures.resized_parameters.get(size, figures.parameters)
    ),
    "throughput": Cost(
        "images a second (one V100 of 32 GB, batch 256)",
        lambda figures, size: _measured(figures, size, "throughput"),
        is_gain=True,
    ),
    "memory": Cost(
        "peak memory, MB (one V100 of 32 GB, batch 256)", lambda figures, size: _measured(figures, size, "memory")
    ),
}


def _measured(figures: Figures, image_size: int, what: str) -> str | None:
    """A figure of the setup that most models were measured with: others can't be compared with it."""
    speeds = (speed for speed in figures.speeds if (speed.image_size, speed.setup) == (image_size, _SETUP))
    return next((getattr(speed, what) for speed in speeds), None)


class TradeOff(NamedTuple):
    """One result and what it costs."""

    model: str
    cost: float
    result: Result


def list_trade_offs(published: Mapping[str, Figures], cost: str) -> list[TradeOff]:
    """For each model, image size and kind of data the best published result, where the cost is published too."""
    if cost not in COSTS:
        raise ValueError(f"accuracy is drawn against one of {', '.join(COSTS)}, not {cost!r}")
    found = []
    for model, figures in published.items():
        for result in best_results(figures):
            printed = COSTS[cost].read(figures, result.image_size)
            if printed is not None:
                found.append(TradeOff(model, float(printed), result))
    return found


def best_results(figures: Figures) -> list[Result]:
    """The most accurate result at each image size, without and with ImageNet-21k, from small images to large."""
    best: dict[tuple[int, bool], Result] = {}
    for result in figures.results:
        key = result.image_size, uses_21k(result)
        if key not in best or result.top1 > best[key].top1:
            best[key] = result
    return [best[key] for key in sorted(best)]


def uses_21k(result: Result) -> bool:
    """Whether the training behind a result began with ImageNet-21k."""
    return "21k" in result.training
