"""Published training curves, and whether a run keeps to one: DeiT III's, as its authors published them."""

import difflib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from vitrail.storage import parse_json

BAND = 1.0
# Seeds differ by about 0.1 point at the end, but by up to 10 points at a third of the way (thesis 6.3.4, figure 6.9):
# the band is wider by this share of what the curve has still to gain.
WIDENING = 0.2


@dataclass(frozen=True)
class ReferenceCurve:
    """Validation accuracy over a published training."""

    name: str
    model: str
    epochs: int
    image_size: int
    every: int  # epochs between two points; the first point is epoch 0, the last the end
    top1: tuple[float, ...]  # percent

    def at(self, fraction: float) -> float:
        """The published accuracy at a part of the training between 0 and 1, linear between two points."""
        place = min(max(fraction, 0.0), 1.0) * self.epochs / self.every
        left = min(bisect_right(range(len(self.top1)), place) - 1, len(self.top1) - 2)
        share = place - left
        return (1.0 - share) * self.top1[left] + share * self.top1[left + 1]


@dataclass(frozen=True)
class CurveVerdict:
    """One evaluation of a run beside the published curve."""

    epoch: float  # of the run
    top1: float
    published: float
    low: float
    high: float

    @property
    def is_inside(self) -> bool:
        """Whether the run is within the band here."""
        return self.low <= self.top1 <= self.high

    @property
    def side(self) -> str:
        """Where the run is beside the band: inside, below or above."""
        if self.is_inside:
            return "inside"
        return "below" if self.top1 < self.low else "above"

    def as_record(self) -> dict[str, float | str]:
        """The verdict as a part of a line of metrics.jsonl."""
        return {"published": self.published, "low": self.low, "high": self.high, "side": self.side}

    def describe(self) -> str:
        """One line for a log."""
        place = "inside the band" if self.is_inside else f"{self.side} the band"
        return (
            f"epoch {self.epoch:g}: {self.top1:.1f} %, {place} {self.low:.1f} to {self.high:.1f} % "
            f"(published: {self.published:.1f} %)"
        )


def compare(curve: ReferenceCurve, epoch: float, top1: float, *, epochs: float | None = None, band: float = BAND) -> CurveVerdict:
    """An evaluation after `epoch` of the run's `epochs` (None: as many as published) beside the published curve.

    A run of another length is compared at the same part of its way. The band is the published accuracy plus and minus
    `band` points and a fifth of what the curve gains from there to its end, so that it is narrow where a training ends
    (and in all of a fine-tuning), and wide where it climbs.
    """
    if epoch < 0:
        raise ValueError(f"epochs count from 0, there is no epoch {epoch:g}")
    published = curve.at(epoch / (curve.epochs if epochs is None else epochs))
    width = band + WIDENING * max(0.0, curve.top1[-1] - published)
    return CurveVerdict(epoch=epoch, top1=top1, published=published, low=max(0.0, published - width), high=published + width)


def load_curve(name: str) -> ReferenceCurve:
    """The published curve of that name; an unknown one is an error that offers the nearest."""
    curves = load_curves()
    if name in curves:
        return curves[name]
    near: Sequence[str] = difflib.get_close_matches(name, curves, n=3, cutoff=0.4) or list(curves)[:3]
    raise ValueError(f"no published curve is called {name!r}: against may be one of {', '.join(near)} ...")


@cache
def load_curves() -> dict[str, ReferenceCurve]:
    """All published curves by their names."""
    text = resources.files("vitrail.training").joinpath("curves/deit3.json").read_text(encoding="utf-8")
    return {
        name: ReferenceCurve(
            name=name,
            model=facts["model"],
            epochs=facts["epochs"],
            image_size=facts["image_size"],
            every=facts["every"],
            top1=tuple(facts["top1"]),
        )
        for name, facts in parse_json(text).items()
    }
