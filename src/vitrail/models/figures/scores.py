"""Published figures on other data and by other measures: transfer, coarse to fine, and ImageNet-21k."""

from vitrail.models.figures.record import Score

_TOP1 = "% top-1"
_T24, _T27 = "thesis table 2.4", "thesis table 2.7"
_CURVE = "curve published by the authors"
_OWN_21K = "on the validation split of ImageNet-21k"


def _transfer(source: str, *, method: str = "", **accuracies: float) -> tuple[Score, ...]:
    return tuple(Score(f"{method}fine-tuned on {data}", value, _TOP1, source) for data, value in accuracies.items())


def _coarse_to_fine(
    method: str, *, imagenet: tuple[float, float | None], cifar100: tuple[float, float | None], source: str
) -> tuple[Score, ...]:
    """kNN accuracy and mean average precision on fine classes, after training on coarse labels."""
    return tuple(
        Score(f"{method}, {data}, {measure}", value, unit, source)
        for data, values in (("imagenet", imagenet), ("cifar100", cifar100))
        for measure, unit, value in zip(("kNN", "mAP"), ("% by kNN", "mAP"), values, strict=True)
        if value is not None
    )


SCORES: dict[str, tuple[Score, ...]] = {
    "cait_s36": _transfer(
        "thesis table 3.19", cifar10=99.2, cifar100=92.2, flowers=98.8, cars=93.5, inat18=77.1, inat19=80.6
    ),
    "deit3_small": (Score(f"240 epochs, {_OWN_21K}", 54.1, _TOP1, _CURVE),),
    "deit3_base": (Score(f"240 epochs, {_OWN_21K}", 56.5, _TOP1, _CURVE),),
    "deit3_large": (Score(f"240 epochs, {_OWN_21K}", 57.4, _TOP1, _CURVE),),
    "deit3_huge": (Score(f"90 epochs, {_OWN_21K}", 58.0, _TOP1, _CURVE),),
    "timm/regnety_080": _transfer(
        "thesis table 2.10", method="Grafit, ", flowers=99.1, cars=94.7, food101=93.7, inat18=81.2, inat19=84.1
    ),
    "timm/resnet50": (
        *_transfer("thesis table 2.16", flowers=96.2, cars=90.0, food101=88.2, inat18=65.0, inat19=72.8),
        *_transfer(
            "thesis table 2.16", method="Grafit, ", flowers=97.6, cars=91.4, food101=88.9, inat18=65.6, inat19=74.1
        ),
        *_coarse_to_fine("Baseline", imagenet=(54.7, 22.7), cifar100=(71.8, 42.5), source=_T27),
        *_coarse_to_fine("SNCA", imagenet=(52.8, None), cifar100=(62.3, None), source=_T24),
        *_coarse_to_fine("SNCA+", imagenet=(55.4, 31.8), cifar100=(72.2, 35.9), source=_T27),
        *_coarse_to_fine("ClusterFit+", imagenet=(59.5, 12.7), cifar100=(72.5, 23.0), source=_T24),
        *_coarse_to_fine("Grafit FC", imagenet=(69.1, 44.4), cifar100=(75.6, 55.0), source=_T27),
        *_coarse_to_fine("Grafit", imagenet=(69.1, 42.9), cifar100=(77.7, 55.7), source=_T27),
    ),
}
