"""Published figures of Grafit and what it is compared with (thesis chapter 2, but for table 2.14)."""

from vitrail.models.figures.record import Score

_TOP1, _KNN, _MAP = "% top-1", "% by kNN", "mAP"
_T21, _T22, _T24, _T25, _T26, _T27, _T28 = (f"thesis table 2.{number}" for number in (1, 2, 4, 5, 6, 7, 8))
_T210, _T211, _T213, _T215, _T216 = (f"thesis table 2.{number}" for number in (10, 11, 13, 15, 16))
_FIVE = ("flowers", "cars", "food101", "inat18", "inat19")
_MLP = "MLP classifier, "
_RANKS = ("kingdom", "phylum", "class", "order", "family", "genus", "species")


def _transfer(source: str, method: str, *accuracies: float) -> tuple[Score, ...]:
    return tuple(
        Score(f"{method}fine-tuned on {data}", value, _TOP1, source)
        for data, value in zip(_FIVE, accuracies, strict=True)
    )


def _coarse_to_fine(
    method: str,
    *,
    imagenet: tuple[float | None, float | None],
    cifar100: tuple[float | None, float | None],
    source: str,
) -> tuple[Score, ...]:
    """kNN accuracy and mean average precision on fine classes, after training on coarse labels."""
    return tuple(
        Score(f"{method}, {data}, {measure}", value, unit, source)
        for data, values in (("imagenet", imagenet), ("cifar100", cifar100))
        for measure, unit, value in zip(("kNN", "mAP"), (_KNN, _MAP), values, strict=True)
        if value is not None
    )


def _between_levels(method: str, data: str, test: str, *accuracies: float) -> tuple[Score, ...]:
    """A row of table 2.13: kNN and a fine-tuned linear classifier after coarse labels, then both after fine ones."""
    columns = [(train, measure) for train in ("coarse", "fine") for measure in ("kNN", "fine-tuned")]
    return tuple(
        Score(
            f"{method}, {data}, {train} to {test}, {measure}", value, _KNN if measure == "kNN" else _TOP1, source=_T213
        )
        for (train, measure), value in zip(columns, accuracies, strict=True)
    )


def _weighted(weight: str, precision: float, accuracy: float) -> tuple[Score, ...]:
    """A column of table 2.11, on CIFAR-100."""
    what = f"Grafit, instance loss times {weight}, cifar100, not conditioned"
    return Score(f"{what}, mAP", precision, _MAP, _T211), Score(f"{what}, kNN", accuracy, _KNN, _T211)


def _in_halves(loss: str, plain: float, conditioned: float | None = None) -> tuple[Score, ...]:
    """A row of table 2.1: random halves of CIFAR-100's coarse classes, told apart on the training images."""
    what = f"{loss}, halves of coarse classes of cifar100"
    rows = [Score(what, plain, _TOP1, _T21)]
    return (*rows, *([] if conditioned is None else [Score(f"{what}, conditioned", conditioned, _TOP1, _T21)]))


def _on_fine(loss: str, *accuracies: float) -> tuple[Score, ...]:
    """A row of table 2.2: a linear classifier of CIFAR-100's fine classes, after coarse and after fine labels."""
    return tuple(
        Score(f"{loss}, cifar100, {train} to fine, linear classifier", value, _TOP1, _T22)
        for train, value in zip(("coarse", "fine"), accuracies, strict=True)
    )


def _by_rank(method: str, measure: str, source: str, *rows: tuple[float, ...]) -> tuple[Score, ...]:
    """A part of table 2.5 or 2.6: rows are levels of the test, columns those of training, the first may be none."""
    trained = ("no labels", *_RANKS)[-len(rows[0]) :]
    return tuple(
        Score(f"{method}, inat18, {train} to {test}, {measure}", value, _KNN if measure == "kNN" else _MAP, source)
        for test, values in zip(_RANKS, rows, strict=True)
        for train, value in zip(trained, values, strict=True)
    )


GRAFIT_SCORES: dict[str, tuple[Score, ...]] = {
    "timm/resnet18": (
        *_in_halves("cross-entropy", 53.7, 54.5),
        *_in_halves("triplet loss", 26.4),
        *_in_halves("cross-entropy and triplet loss", 57.1, 58.5),
        *_in_halves("random network", 8.7),
        *_on_fine("cross-entropy", 80.4, 80.6),
        *_on_fine("triplet loss", 76.5, 76.5),
        *_on_fine("cross-entropy and triplet loss", 80.9, 81.3),
    ),
    "timm/resnet50": (
        *_transfer(_T216, "", 96.2, 90.0, 88.2, 65.0, 72.8),
        *_transfer(_T216, _MLP, 95.7, 89.8, 88.9, 68.4, 73.7),
        *_transfer(_T216, "SNCA+, ", 94.3, 91.6, 88.7, 64.7, 73.1),
        *_transfer(_T216, f"SNCA+, {_MLP}", 98.2, 92.5, 88.8, 69.2, 74.5),
        *_transfer(_T216, "ClusterFit+, ", 96.2, 89.4, 88.5, 64.2, 71.8),
        *_transfer(_T216, f"ClusterFit+, {_MLP}", 96.1, 89.3, 88.9, 67.5, 73.8),
        *_transfer(_T216, "Grafit, ", 97.6, 91.4, 88.9, 65.6, 74.1),
        *_transfer(_T216, f"Grafit, {_MLP}", 98.2, 92.5, 89.5, 69.8, 75.9),
        *_transfer(_T216, "Grafit FC, ", 94.3, 91.4, 88.5, 65.2, 73.9),
        *_transfer(_T216, f"Grafit FC, {_MLP}", 97.6, 92.7, 88.7, 68.5, 74.6),
        *_coarse_to_fine("Baseline of Wu et al.", imagenet=(48.1, None), cifar100=(54.2, None), source=_T24),
        *_coarse_to_fine("SNCA", imagenet=(52.8, None), cifar100=(62.3, None), source=_T24),
        *_coarse_to_fine("ClusterFit+", imagenet=(59.5, 12.7), cifar100=(72.5, 23.0), source=_T24),
        *_coarse_to_fine("Baseline", imagenet=(54.7, 22.7), cifar100=(71.8, 42.5), source=_T27),
        *_coarse_to_fine("Baseline, conditioned", imagenet=(None, 24.4), cifar100=(None, 43.1), source=_T27),
        *_coarse_to_fine("instance loss", imagenet=(41.7, 3.47), cifar100=(54.3, 14.3), source=_T27),
        *_coarse_to_fine("cross-entropy and instance loss", imagenet=(65.0, 26.0), cifar100=(76.9, 51.0), source=_T27),
        *_coarse_to_fine("neighbour loss, linear projector", imagenet=(57.8, 30.7), cifar100=(70.0, 39.7), source=_T27),
        *_coarse_to_fine("Grafit FC, not conditioned", imagenet=(None, 41.7), cifar100=(None, 53.6), source=_T27),
        *_coarse_to_fine("Grafit FC", imagenet=(69.1, 44.4), cifar100=(75.6, 55.0), source=_T27),
        *_coarse_to_fine("SNCA+", imagenet=(55.4, 31.8), cifar100=(72.2, 35.9), source=_T27),
        *_coarse_to_fine("SNCA+, conditioned", imagenet=(None, 32.9), cifar100=(None, 41.4), source=_T27),
        *_coarse_to_fine("Grafit, not conditioned", imagenet=(None, 39.4), cifar100=(None, 52.9), source=_T27),
        *_coarse_to_fine("Grafit", imagenet=(69.1, 42.9), cifar100=(77.7, 55.7), source=_T27),
        *_coarse_to_fine("Grafit, oracle", imagenet=(None, 47.2), cifar100=(None, 59.3), source=_T27),
        Score("Baseline, imagenet, fine to fine, mAP", 51.5, _MAP, _T28),
        Score("SNCA+, imagenet, fine to fine, mAP", 72.0, _MAP, _T28),
        Score("Grafit FC, imagenet, fine to fine, mAP", 72.4, _MAP, _T28),
        Score("Grafit FC, imagenet, fine to fine, kNN", 79.2, _KNN, _T28),
        Score("Grafit FC, imagenet, fine to fine, fine-tuned", 78.5, _TOP1, _T28),
        Score("Grafit FC, imagenet, coarse to fine, fine-tuned", 78.3, _TOP1, _T28),
        Score("Grafit, imagenet, fine to fine, mAP", 71.2, _MAP, _T28),
        *_weighted("0.0", 35.9, 72.2),
        *_weighted("0.2", 46.3, 70.0),
        *_weighted("0.4", 49.6, 73.2),
        *_weighted("0.6", 51.4, 74.8),
        *_weighted("0.8", 52.4, 75.8),
        *_weighted("1.0", 52.9, 77.7),
        *_weighted("1.2", 52.8, 77.4),
        *_weighted("1.4", 52.4, 77.7),
        *_between_levels("Baseline", "cifar100", "coarse", 89.3, 89.4, 90.3, 90.5),
        *_between_levels("SNCA+", "cifar100", "coarse", 88.4, 88.9, 88.8, 90.2),
        *_between_levels("Grafit", "cifar100", "coarse", 90.6, 90.6, 90.6, 90.9),
        *_between_levels("Baseline", "cifar100", "fine", 71.8, 82.3, 82.7, 82.7),
        *_between_levels("SNCA+", "cifar100", "fine", 72.2, 82.0, 81.7, 82.9),
        *_between_levels("Grafit", "cifar100", "fine", 77.7, 83.7, 83.2, 83.7),
        *_between_levels("Baseline", "imagenet", "coarse", 87.0, 87.6, 87.4, 87.9),
        *_between_levels("SNCA+", "imagenet", "coarse", 87.7, 87.5, 88.9, 87.2),
        *_between_levels("Grafit", "imagenet", "coarse", 88.4, 87.3, 89.2, 87.7),
        *_between_levels("Baseline", "imagenet", "fine", 54.7, 78.1, 78.0, 79.3),
        *_between_levels("SNCA+", "imagenet", "fine", 55.4, 77.9, 79.1, 77.4),
        *_between_levels("Grafit", "imagenet", "fine", 69.1, 77.9, 79.6, 78.0),
        *_by_rank(
            "ClusterFit+",
            "kNN",
            _T25,
            (70.9, 94.7, 95.0, 95.3, 95.6, 96.2, 96.3, 96.1),
            (48.8, 87.4, 90.3, 90.7, 91.1, 92.6, 92.6, 92.2),
            (40.4, 80.2, 83.8, 85.7, 86.7, 88.8, 88.8, 88.2),
            (17.1, 54.5, 59.0, 61.4, 70.8, 73.9, 74.3, 72.3),
            (5.6, 38.3, 42.1, 44.4, 54.3, 63.0, 64.2, 61.9),
            (0.9, 26.7, 29.5, 31.5, 40.1, 49.4, 53.9, 51.7),
            (0.3, 21.8, 23.7, 25.2, 32.7, 40.3, 44.7, 43.4),
        ),
        *_by_rank(
            "Grafit",
            "kNN",
            _T25,
            (95.5, 98.1, 98.2, 98.2, 98.2, 98.2, 98.4, 98.3),
            (90.0, 94.1, 96.6, 96.7, 96.8, 96.7, 96.9, 96.7),
            (82.2, 87.5, 90.9, 94.5, 94.9, 94.9, 95.0, 95.0),
            (54.0, 61.7, 66.9, 72.7, 87.1, 87.5, 87.6, 87.3),
            (33.7, 42.1, 48.7, 55.1, 70.9, 81.8, 82.4, 82.1),
            (20.5, 27.0, 33.5, 39.5, 54.2, 64.6, 75.6, 75.5),
            (15.9, 20.4, 25.5, 30.8, 42.7, 51.2, 61.9, 67.7),
        ),
        *_by_rank(
            "SNCA+",
            "mAP",
            _T26,
            (97.6, 83.3, 75.9, 59.2, 56.0, 54.9, 55.0),
            (59.8, 91.7, 79.4, 49.1, 35.0, 32.3, 32.2),
            (41.3, 73.1, 89.9, 49.2, 28.1, 23.6, 23.0),
            (9.09, 24.9, 35.7, 77.9, 35.3, 18.0, 15.0),
            (2.24, 6.43, 11.2, 35.7, 68.4, 29.1, 21.7),
            (0.39, 2.47, 5.03, 18.1, 36.6, 60.5, 46.0),
            (0.19, 1.86, 3.8, 12.8, 26.4, 46.0, 54.9),
        ),
        *_by_rank(
            "Grafit",
            "mAP",
            _T26,
            (98.6, 88.3, 79.7, 60.8, 58.0, 55.9, 55.5),
            (67.8, 97.2, 82.1, 50.9, 38.9, 34.2, 33.0),
            (50.1, 74.9, 95.4, 51.2, 32.3, 25.9, 24.1),
            (17.7, 30.7, 42.7, 88.3, 42.3, 21.1, 16.2),
            (8.7, 13.2, 18.0, 43.9, 83.1, 34.8, 24.2),
            (6.78, 9.72, 13.5, 29.0, 46.9, 77.2, 53.9),
            (6.45, 9.02, 12.1, 23.6, 35.6, 55.4, 70.0),
        ),
    ),
    "timm/resnext50_32x4d": (
        *_transfer(_T215, "Grafit, ", 95.5, 91.6, 89.6, 67.7, 75.3),
        *_transfer(_T215, f"Grafit, {_MLP}", 98.3, 92.9, 89.9, 71.2, 76.3),
    ),
    "timm/resnext50d_32x4d": (
        *_transfer(_T215, "Grafit, ", 95.9, 88.7, 90.2, 68.9, 75.8),
        *_transfer(_T215, f"Grafit, {_MLP}", 98.6, 93.3, 90.3, 72.4, 77.6),
    ),
    "timm/regnety_040": (
        *_transfer(_T215, "Grafit, ", 98.1, 93.3, 91.2, 73.8, 78.1),
        *_transfer(_T215, f"Grafit, {_MLP}", 98.6, 92.7, 91.3, 74.2, 77.9),
    ),
    "timm/regnety_080": (
        *_transfer(_T210, "Grafit, ", 99.1, 94.7, 93.7, 81.2, 84.1),
        *_transfer(_T215, "Grafit, at 224, ", 99.0, 94.0, 92.1, 76.4, 79.8),
        *_transfer(_T215, f"Grafit, at 224, {_MLP}", 98.8, 93.4, 92.4, 76.8, 80.0),
    ),
}
