"""The numbers that detection is measured by, and the losses that the report draws."""

from vitrail.tasks.results import Measure

_CHART = "Average precision on val, %"
_WORDS = {
    "ap": "AP",
    "ap50": "AP at an overlap of 50 %",
    "ap75": "AP at an overlap of 75 %",
    "ap_small": "AP of small objects",
    "ap_medium": "AP of medium objects",
    "ap_large": "AP of large objects",
    "ar1": "recall, 1 answer an image",
    "ar10": "recall, 10 answers an image",
    "ar100": "recall, 100 answers an image",
    "ar_small": "recall of small objects",
    "ar_medium": "recall of medium objects",
    "ar_large": "recall of large objects",
}


def _measures(kind: str, names: tuple[str, ...]) -> tuple[Measure, ...]:
    charts = {"ap": _CHART, "ap50": _CHART}
    return tuple(
        Measure(
            f"{kind}_{name}",
            f"{kind} {_WORDS[name]}",
            digits=1,
            is_headline=name == "ap",
            chart=charts.get(name, ""),
        )
        for name in names
    )


_FIRST = ("ap", "ap50")
_OTHERS = tuple(name for name in _WORDS if name not in _FIRST)
MEASURES = tuple(
    measure
    for names in (_FIRST[:1], _FIRST[1:], _OTHERS)
    for kind in ("box", "mask")
    for measure in _measures(kind, names)
)
LOSSES = tuple(
    Measure(name, name, unit="", is_higher_better=False, digits=4, chart="Parts of the loss")
    for name in ("objectness", "proposals", "classes", "boxes", "masks")
)
