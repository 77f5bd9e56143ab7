"""What a picture shows, before it is drawn: panels of curves over the blocks of a model or over numbers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from vitrail.inspection.layers import Layer

COLOURS = ("#2f6db5", "#e08a2e", "#3c9a6b", "#9a5fb4", "#c4504d", "#6a7078", "#8c6d31", "#17a2b8")
_KIND_COLOURS = {
    "feed-forward": COLOURS[1],
    "class-attention": COLOURS[2],
    "class aggregation": COLOURS[2],
    "class feed-forward": COLOURS[3],
}
_MOST_TICKS = 24


@dataclass(frozen=True)
class Curve:
    """Points to be joined; None leaves a gap."""

    label: str
    x: Sequence[float]
    y: Sequence[float | None]
    colour: str
    low: Sequence[float] | None = None  # with `high`: a band around it
    high: Sequence[float] | None = None
    is_dotted: bool = False  # points alone, one x may have several
    is_dashed: bool = False


@dataclass(frozen=True)
class Axis:
    """What goes from left to right."""

    label: str
    ticks: Sequence[tuple[float, str]] | None = None  # places and names; None: plain numbers

    @property
    def length(self) -> float:
        """How much room its places want beside another axis."""
        return max(place for place, _ in self.ticks) if self.ticks else 1.0


@dataclass(frozen=True)
class Panel:
    """Curves that share their axes."""

    curves: Sequence[Curve]
    y_label: str
    x: Axis
    title: str = ""
    level: tuple[float, str] | None = None  # a horizontal line to compare with, and what it is
    is_percent: bool = False
    from_zero: bool = True


@dataclass(frozen=True)
class Chart:
    """A picture: rows of panels, each with one legend."""

    rows: Sequence[Sequence[Panel]]


def colour_of(kind: str) -> str:
    """Of a kind of layer, the same in all pictures."""
    return _KIND_COLOURS.get(kind, COLOURS[0])


def shade_of(share: float) -> str:
    """From a light blue at 0 to a dark one at 1."""
    light, dark = (198, 219, 239), (8, 48, 107)
    return "#" + "".join(f"{round(low + (high - low) * share):02x}" for low, high in zip(light, dark, strict=True))


def layer_row(
    layers: Sequence[Layer],
    make_curves: Callable[[Sequence[Layer]], Sequence[Curve]],
    *,
    y_label: str,
    is_percent: bool = False,
    from_zero: bool = True,
    level: tuple[float, str] | None = None,
) -> list[Panel]:
    """A panel for the trunk and, beside it, one for the class stage, whose numbers may be of another size."""
    row: list[Panel] = []
    for in_class_stage in (False, True):
        own = [layer for layer in layers if layer.in_class_stage is in_class_stage]
        curves = make_curves(own) if own else ()
        if curves:
            row.append(
                Panel(
                    curves,
                    "" if row else y_label,
                    _block_axis(own, "class block" if in_class_stage else "block"),
                    level=level,
                    is_percent=is_percent,
                    from_zero=from_zero,
                )
            )
    return row


def curves_by_kind(layers: Sequence[Layer], values: Mapping[str, Mapping[Layer, float | None]]) -> list[Curve]:
    """A curve for each kind of these layers that has any number."""
    curves = []
    for kind, column in values.items():
        own = [layer for layer in layers if column.get(layer) is not None]
        if own:
            curves.append(Curve(kind, numbers_of(own), [column[layer] for layer in own], colour_of(kind)))
    return curves


def numbers_of(layers: Sequence[Layer]) -> list[float]:
    """Of their blocks."""
    return [layer.number for layer in layers]


def _block_axis(layers: Sequence[Layer], label: str) -> Axis:
    """Every block of a shallow model, every few of a deep one."""
    last = max(layer.number for layer in layers)
    step = next(step for step in (1, 2, 4, 6, 12, 24, last) if last <= _MOST_TICKS * step)
    shown = [number for number in range(1, last + 1) if number == 1 or number % step == 0]
    return Axis(label, [(number, str(number)) for number in shown])
