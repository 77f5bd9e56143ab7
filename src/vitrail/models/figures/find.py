"""One published figure, found by its model and what was done."""

from typing import NamedTuple

from vitrail.models.figures.catalogue import FIGURES
from vitrail.models.figures.others import OTHERS
from vitrail.models.figures.record import Figures
from vitrail.models.figures.scores import SCORES


class Published(NamedTuple):
    """A figure, whatever kind of row it stands in."""

    value: float
    unit: str
    source: str

    @property
    def digits(self) -> str:
        """The figure as it was printed: with one decimal, or two."""
        return f"{self.value:.1f}" if round(self.value, 1) == self.value else f"{self.value:.2f}"


def find_figure(model: str, what: str, *, image_size: int | None = None) -> Published | None:
    """The first figure of a training, at that size if one is given, of a setting that was changed, or of a score."""
    figures = FIGURES.get(model) or OTHERS.get(model) or Figures(source="")
    for result in figures.results:
        if result.training == what and image_size in (None, result.image_size):
            return Published(result.top1, "% top-1", result.source)
    for variant in figures.variants:
        if variant.setting == what:
            return Published(variant.top1, "% top-1", variant.source)
    for score in SCORES.get(model, ()):
        if score.what == what:
            return Published(score.value, score.unit, score.source)
    return None
