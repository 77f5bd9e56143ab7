"""Charts over the blocks of a model."""

from collections.abc import Callable, Mapping, Sequence

from vitrail.inspection.layers import Layer
from vitrail.pages.charts import Axis, Band, Curve, LineChart

_KIND_COLOURS = {"feed-forward": 1, "class-attention": 2, "class aggregation": 2, "class feed-forward": 3}
_MOST_TICKS = 12

Chart = Sequence[Sequence[LineChart]]  # rows of charts


def colour_of_kind(kind: str) -> int:
    """The colour of a kind of layer, the same in all pictures."""
    return _KIND_COLOURS.get(kind, 0)


def layer_row(
    layers: Sequence[Layer],
    make_curves: Callable[[Sequence[Layer]], Sequence[Curve]],
    *,
    title: str,
    make_bands: Callable[[Sequence[Layer]], Sequence[Band]] = lambda _: (),
    from_zero: bool = True,
    level: tuple[float, str] | None = None,
) -> list[LineChart]:
    """A chart for the trunk and, beside it, one for the class stage, whose numbers may be of another size.

    In the title, `{kind}` stands for the kind of a chart's first layer.
    """
    row: list[LineChart] = []
    for in_class_stage in (False, True):
        own = [layer for layer in layers if layer.in_class_stage is in_class_stage]
        curves = make_curves(own) if own else ()
        if curves:
            axis = _block_axis(own, "class block" if in_class_stage else "block")
            said = title.format(kind=own[0].kind.capitalize())
            row.append(LineChart(said, curves, axis, bands=make_bands(own), level=level, from_zero=from_zero))
    return row


def curves_by_kind(layers: Sequence[Layer], values: Mapping[str, Mapping[Layer, float | None]]) -> list[Curve]:
    """A curve for each kind of these layers that has any number."""
    curves = []
    for kind, column in values.items():
        own = [layer for layer in layers if column.get(layer) is not None]
        if own:
            values_of_kind = [column[layer] for layer in own]
            curves.append(Curve(numbers_of(own), values_of_kind, kind, colour_of_kind(kind)))
    return curves


def numbers_of(layers: Sequence[Layer]) -> list[float]:
    """The numbers of the blocks that layers belong to."""
    return [layer.number for layer in layers]


def _block_axis(layers: Sequence[Layer], label: str) -> Axis:
    """An axis with every block of a shallow model, every few of a deep one."""
    last = max(layer.number for layer in layers)
    step = next(step for step in (1, 2, 4, 6, 12, 24, last) if last <= _MOST_TICKS * step)
    shown = [number for number in range(1, last + 1) if number == 1 or number % step == 0]
    return Axis(label, low=0.5, high=last + 0.5, ticks=[(number, str(number)) for number in shown])
