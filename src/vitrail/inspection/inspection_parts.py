"""The parts of an inspection: from what was measured to a sentence, a table and a chart each."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from vitrail.inspection.history import Moment, choose_moments
from vitrail.inspection.inspection_table import InspectionTable, tabulate
from vitrail.inspection.layer_charts import Chart, colour_of_kind, curves_by_kind, layer_row, numbers_of
from vitrail.inspection.layers import Layer
from vitrail.inspection.texts import TEXTS
from vitrail.pages.charts import Axis, Band, Curve, LineChart

Values = Mapping[str, Sequence[float | None]]  # for each kind of layer, from its first block to its last
_FAINTEST = 0.25  # opacity of the first of several epochs
SHARES = (0.5, 0.8, 0.9, 0.95, 0.99)  # of the energy


@dataclass(frozen=True)
class InspectionPart:
    """One measurement, or why there is none."""

    name: str  # one of TEXTS, and of its files
    finding: str = ""  # what came out, in a sentence
    table: InspectionTable | None = None
    chart: Chart | None = None
    more: Mapping[str, InspectionTable] = field(default_factory=dict)  # longer tables, for files alone
    missing: str = ""  # why there is nothing to measure

    @property
    def title(self) -> str:
        """The title for people."""
        return TEXTS[self.name].title

    @property
    def meaning(self) -> str:
        """What is measured, and how to read it."""
        return TEXTS[self.name].meaning

    @property
    def files(self) -> dict[str, InspectionTable]:
        """All tables by the names of their files, without the ending."""
        return ({self.name: self.table} if self.table is not None else {}) | dict(self.more)


def find_part(parts: Sequence[InspectionPart], name: str) -> InspectionPart:
    """The part of that name."""
    for part in parts:
        if part.name == name:
            return part
    raise ValueError(f"there is no part {name!r}: there are {', '.join(part.name for part in parts)}")


def ratios_part(layers: Sequence[Layer], ratios: Values, history: Sequence[Moment]) -> InspectionPart:
    """How much residual branches add (CaiT figure 4, thesis figure 3.6)."""
    columns = _by_layer(layers, ratios)
    if history:
        rows = _history_rows(layers, ratios, choose_moments(history))
    else:
        rows = [layer_row(layers, lambda own: curves_by_kind(own, columns), title="Ratio of norms")]
    return InspectionPart(
        "ratios",
        finding=f"Mean ratio: {_listed(ratios)}.",
        table=tabulate(columns),
        chart=rows,
        more={"ratios_by_epoch": _history_table(history)} if history else {},
    )


def _history_rows(layers: Sequence[Layer], ratios: Values, moments: Sequence[Moment]) -> list[list[LineChart]]:
    """Charts of ratios over the epochs: across patches above, feed-forward below; the later, the stronger."""
    has_stages = len({moment.stage for moment in moments}) > 1
    courses = [
        (
            f"stage {moment.stage + 1}, epoch {moment.epoch:.4g}" if has_stages else f"epoch {moment.epoch:.4g}",
            _FAINTEST + (1 - _FAINTEST) * (place + 1) / len(moments),
            moment.ratios,
        )
        for place, moment in enumerate(moments)
    ]

    def draw_courses(own: Sequence[Layer]) -> list[Curve]:
        kind = own[0].kind
        curves = [
            Curve(numbers_of(own)[: len(values)], values[: len(own)], name, opacity=opacity)
            for name, opacity, course in courses
            if (values := course.get(kind, ()))
        ]
        return [*curves, Curve(numbers_of(own), ratios[kind], "these weights", 1, "dashed")]

    rows = []
    for is_feed_forward in (False, True):
        own = [layer for layer in layers if layer.kind.endswith("feed-forward") is is_feed_forward]
        if own:
            rows.append(layer_row(own, draw_courses, title="{kind}: ratio of norms"))
    return rows


def _history_table(history: Sequence[Moment]) -> InspectionTable:
    rows = tuple(
        (moment.stage + 1, moment.step, moment.epoch, kind, number, value)
        for moment in history
        for kind, values in moment.ratios.items()
        for number, value in enumerate(values, start=1)
    )
    return InspectionTable(("stage", "step", "epoch", "branch", "block", "ratio"), rows)


def parallel_part(layers: Sequence[Layer], errors: Values) -> InspectionPart:
    """How far layers depend on the one before (Three things, section 3.2)."""
    columns = _by_layer(layers, errors)
    found = [(value, layer) for column in columns.values() for layer, value in column.items() if value is not None]
    largest, where = max(found, key=lambda pair: pair[0])
    return InspectionPart(
        "parallel",
        finding=f"Mean error: {_listed(errors)}. The greatest is {_number(largest)}, of {where.kind} in {where.label}.",
        table=tabulate(columns),
        chart=[layer_row(layers, lambda own: curves_by_kind(own, columns), title="Relative error")],
    )


def scales_part(scales: Sequence[tuple[Layer, Tensor]]) -> InspectionPart:
    """The weights of LayerScale (CaiT eq. 4)."""
    weights = dict(scales)
    sizes = {layer: each.abs().mean().item() for layer, each in scales}
    kinds: dict[str, list[Layer]] = {}
    for layer, _ in scales:
        kinds.setdefault(layer.kind, []).append(layer)

    def draw_weights(own: Sequence[Layer]) -> list[Curve]:
        colour = colour_of_kind(own[0].kind)
        return [Curve(numbers_of(own), [sizes[layer] for layer in own], f"{own[0].kind}, mean |λ|", colour)]

    def draw_spans(own: Sequence[Layer]) -> list[Band]:
        low = [weights[layer].min().item() for layer in own]
        high = [weights[layer].max().item() for layer in own]
        return [Band(numbers_of(own), low, high, colour_of_kind(own[0].kind))]

    rows = []
    for is_feed_forward in (False, True):
        row = [layer for layer in weights if layer.kind.endswith("feed-forward") is is_feed_forward]
        if row:
            rows.append(layer_row(row, draw_weights, title="{kind}: weight λ", make_bands=draw_spans, from_zero=False))
    means = {kind: [sizes[layer] for layer in own] for kind, own in kinds.items()}
    return InspectionPart(
        "layer_scale",
        finding=f"Mean |λ|: {_listed(means)}.",
        table=InspectionTable(
            ("layer", "branch", "mean |λ|", "least λ", "greatest λ"),
            tuple(
                (layer.label, layer.kind, sizes[layer], each.min().item(), each.max().item()) for layer, each in scales
            ),
        ),
        chart=rows,
    )


def distance_part(layers: Sequence[Layer], distances: Sequence[Sequence[float]], *, even: float) -> InspectionPart:
    """How far self-attention reaches."""
    own = [layer for layer in layers if layer.kind == "self-attention"]
    means = [_mean(values) or 0.0 for values in distances]
    return InspectionPart(
        "attention_distance",
        finding=f"Heads look {_span(distances)} pixels far; the mean goes from {means[0]:.0f} in the first block to "
        f"{means[-1]:.0f} in the last.",
        table=_table_of_heads(own, distances),
        chart=_chart_of_heads(own, distances, title="Distance in pixels", level=(even, "all patches alike")),
    )


def spread_part(layers: Sequence[Layer], spreads: Sequence[Sequence[float]], *, num_patches: int) -> InspectionPart:
    """How many patches class-attention looks at."""
    own = [layer for layer in layers if layer.kind == "class-attention"]
    level = (float(num_patches), "all patches alike")
    return InspectionPart(
        "class_attention_spread",
        finding=f"Heads look at {_span(spreads)} of {num_patches} patches.",
        table=_table_of_heads(own, spreads),
        chart=_chart_of_heads(own, spreads, title="Patches", level=level),
    )


def _table_of_heads(layers: Sequence[Layer], values: Sequence[Sequence[float]]) -> InspectionTable:
    num_heads = max(map(len, values))
    rows = tuple(
        (layer.label, *own, *([None] * (num_heads - len(own))), _mean(own))
        for layer, own in zip(layers, values, strict=True)
    )
    return InspectionTable(("layer", *(f"head {head}" for head in range(num_heads)), "mean"), rows)


def _chart_of_heads(
    layers: Sequence[Layer], values: Sequence[Sequence[float]], *, title: str, level: tuple[float, str]
) -> Chart:
    dots = [(layer.number, value) for layer, own in zip(layers, values, strict=True) for value in own]
    means = [_mean(own) for own in values]
    curves = [
        Curve([number for number, _ in dots], [value for _, value in dots], "a head", style="dots"),
        Curve(numbers_of(layers), means, "mean"),
    ]
    return [layer_row(layers, lambda _: curves, title=title, level=level)]


def tokens_part(cosines: Sequence[tuple[str, float]]) -> InspectionPart:
    """How alike the class and the distillation token are (thesis 3.3)."""
    values = [value for _, value in cosines]
    ticks = [(place, name.removeprefix("class ").removeprefix("block ")) for place, (name, _) in enumerate(cosines)]
    label = "as learned, after each block" if "class" not in cosines[1][0] else "as learned, after each class block"
    axis = Axis(f"{label}, after the norm", low=-0.5, high=len(values) - 0.5, ticks=ticks)
    chart = LineChart("Cosine", [Curve(list(range(len(values))), values)], axis, from_zero=True)
    return InspectionPart(
        "tokens",
        finding=f"The cosine goes from {values[0]:.2f} as learned to {values[-1]:.2f} after the final norm.",
        table=InspectionTable(("after", "cosine"), tuple(cosines)),
        chart=[[chart]],
    )


def sparsity_part(sparsities: Mapping[str, Mapping[Layer, float]]) -> InspectionPart:
    """How sparse the matrices are (thesis figure 4.3)."""

    def draw_shares(own: Sequence[Layer]) -> list[Curve]:
        curves = []
        for colour, (name, column) in enumerate(sparsities.items()):
            having = [layer for layer in own if layer in column]
            if having:
                curves.append(Curve(numbers_of(having), [100.0 * column[layer] for layer in having], name, colour))
        return curves

    layers = list(dict.fromkeys(layer for column in sparsities.values() for layer in column))
    means = {name: sum(column.values()) / len(column) for name, column in sparsities.items()}
    return InspectionPart(
        "sparsity",
        finding=f"Mean share: {', '.join(f'{name} {mean:.0%}' for name, mean in means.items())}.",
        table=tabulate(sparsities),
        chart=[layer_row(layers, draw_shares, title="Weights below 5 % of the greatest, %")],
    )


def energy_part(energy: Tensor, *, num_images: int, dim: int) -> InspectionPart:
    """How many directions the embeddings use (thesis figure 2.1)."""
    shares = energy.tolist()
    needed = {share: 1 + sum(value < share for value in shares) for share in SHARES}
    curve = Curve(list(range(1, len(shares) + 1)), [100.0 * share for share in shares])
    chart = LineChart(
        "Share of the variance, %", [curve], Axis("components", is_whole=True), from_zero=True, limit=100.0
    )
    return InspectionPart(
        "energy",
        finding=f"{needed[0.9]} of {dim} components hold 90 % of the variance of {num_images} images.",
        table=InspectionTable(
            ("share of the energy", "components"), tuple((f"{share:.0%}", needed[share]) for share in SHARES)
        ),
        chart=[[chart]],
        more={"energy_curve": InspectionTable(("components", "share"), tuple(enumerate(shares, start=1)))},
    )


def _by_layer(layers: Sequence[Layer], values: Values) -> dict[str, dict[Layer, float | None]]:
    """The numbers of each kind with the layers they belong to."""
    return {
        kind: dict(zip((layer for layer in layers if layer.kind == kind), numbers, strict=True))
        for kind, numbers in values.items()
    }


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _listed(values: Values) -> str:
    """The mean of each kind that has any number."""
    means = {kind: _mean(numbers) for kind, numbers in values.items()}
    return ", ".join(f"{kind} {_number(mean)}" for kind, mean in means.items() if mean is not None)


def _number(value: float) -> str:
    return f"{value:.2g}" if abs(value) < 0.1 else f"{value:.2f}"


def _span(values: Sequence[Sequence[float]]) -> str:
    low, high = (f"{extreme(extreme(own) for own in values):.0f}" for extreme in (min, max))
    return low if low == high else f"{low} to {high}"
