"""The numbers that say how good a classifier is; the first decides which weights are the best."""

from vitrail.tasks.results import Measure

_ACCURACY = "Accuracy on val, %"

MEASURES = (
    Measure("top1", "top-1", chart=_ACCURACY),
    Measure("top5", "top-5"),
    Measure("coarse_top1", "coarse top-1", is_headline=True, chart=_ACCURACY),
    Measure("mean_average_precision", "mean average precision", is_headline=True, chart=_ACCURACY),
    Measure("coarse_summed_top1", "coarse top-1, summed"),
    Measure("class_mean_top1", "macro recall"),
    Measure("macro_precision", "macro precision"),
    Measure("macro_f1", "macro F1"),
    Measure("calibration_error", "calibration error", is_higher_better=False),
    Measure(
        "negative_log_likelihood",
        "negative log-likelihood",
        unit="",
        is_higher_better=False,
        digits=4,
        chart="Loss on val",
    ),
)
