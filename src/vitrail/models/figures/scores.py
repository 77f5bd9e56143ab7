"""Published figures on other data and by other measures: transfer, coarse to fine, ImageNet-21k, dense tasks."""

from vitrail.models.figures.grafit import GRAFIT_SCORES
from vitrail.models.figures.record import Score
from vitrail.models.figures.segmentation import SEGMENTATION
from vitrail.models.figures.translation import TRANSLATION_SCORES

_TOP1 = "% top-1"
_T37, _T319, _T44 = "thesis table 3.7", "thesis table 3.19", "thesis table 4.4"
_T55, _T611, _V6 = "thesis table 5.5", "thesis table 6.11", "Three things table 6"
_SIX = ("cifar10", "cifar100", "flowers", "cars", "inat18", "inat19")
_CURVE = "curve published by the authors"
_OWN_21K = "on the validation split of ImageNet-21k"
_ALONE = "trained on cifar10 alone"
_S344 = "thesis section 3.4.4"


def _six(source: str, *accuracies: float, method: str = "") -> tuple[Score, ...]:
    return tuple(
        Score(f"{method}fine-tuned on {data}", value, _TOP1, source)
        for data, value in zip(_SIX, accuracies, strict=True)
    )


# Box AP, at overlaps of 50 and 75 %, and the same of masks; then millions of parameters and 1e9 multiply-adds.
_DETECTION = ("box AP", "box AP50", "box AP75", "mask AP", "mask AP50", "mask AP75", "M parameters", "G multiply-adds")


def _mask_rcnn(*figures: float) -> tuple[Score, ...]:
    return tuple(
        Score(f"Mask R-CNN on COCO, {unit}", value, unit, "thesis table 5.6")
        for unit, value in zip(_DETECTION, figures, strict=True)
    )


_OTHERS: dict[str, tuple[Score, ...]] = {
    "deit_base": (
        *_six(_T37, 99.1, 90.8, 98.4, 92.1, 73.2, 77.7),
        *_six(_T37, 99.1, 90.8, 98.5, 93.3, 79.5, 81.4, method="at 384, "),
        Score(_ALONE, 97.5, _TOP1, _S344),
    ),
    "deit_base_distilled": (
        *_six(_T37, 99.1, 91.3, 98.8, 92.9, 73.7, 78.4),
        *_six(_T37, 99.2, 91.4, 98.9, 93.9, 80.1, 83.0, method="at 384, "),
        Score(_ALONE, 98.5, _TOP1, _S344),
    ),
    "cait_s36": (
        *_six(_T319, 99.2, 92.2, 98.8, 93.5, 77.1, 80.6),
        *_six(_T319, 99.2, 92.2, 99.0, 94.1, 77.0, 81.4, method="distilled, "),
    ),
    "cait_m36": (
        *_six(_T319, 99.3, 93.3, 99.0, 93.5, 76.9, 81.7),
        *_six(_T319, 99.4, 93.1, 99.1, 94.2, 78.0, 81.8, method="distilled, "),
    ),
    "resmlp_s12": _six(_T44, 98.1, 87.0, 97.4, 84.6, 60.2, 71.0),
    "resmlp_s24": _six(_T44, 98.7, 89.5, 97.9, 89.5, 64.3, 72.5),
    "patchconvnet_s60": (
        Score("standard deviation over ten seeds", 0.11, "points of top-1", "thesis section 5.3.4"),
        *_six(_T55, 99.2, 91.4, 98.8, 94.0, 72.9, 78.1),
        *_six(_T55, 99.1, 91.4, 98.9, 94.5, 76.8, 81.4, method="at 320, "),
        *_mask_rcnn(46.4, 67.8, 50.8, 41.3, 64.8, 44.2, 44.9, 264.0),
    ),
    "patchconvnet_s120": _mask_rcnn(47.0, 69.0, 51.4, 41.9, 65.6, 44.7, 67.4, 339.0),
    "patchconvnet_b120": (
        *_six(_T55, 99.2, 91.1, 99.0, 94.4, 74.3, 79.5),
        *_six(_T55, 99.1, 91.2, 99.1, 94.8, 79.6, 82.5, method="at 320, "),
    ),
    "vit_s12": (
        *_six(_V6, 98.9, 90.5, 96.8, 89.7, 68.0, 73.9),
        *_six(_V6, 98.7, 89.1, 96.9, 89.8, 60.6, 68.7, method="attention, "),
        *_six(_V6, 98.9, 90.1, 96.1, 88.3, 64.4, 72.5, method="ffn, "),
    ),
    "vit_b12": (
        *_six(_V6, 99.3, 92.5, 97.8, 92.7, 74.1, 78.2),
        *_six(_V6, 99.2, 91.8, 98.5, 92.8, 71.1, 75.7, method="attention, "),
        *_six(_V6, 99.3, 92.1, 97.5, 88.9, 73.3, 77.3, method="ffn, "),
    ),
    "vit_l24": (
        *_six(_V6, 99.3, 93.2, 98.3, 93.8, 75.9, 79.7),
        *_six(_V6, 99.2, 92.7, 98.4, 93.8, 75.3, 78.7, method="attention, "),
        *_six(_V6, 99.2, 93.0, 97.6, 93.0, 75.4, 79.3, method="ffn, "),
    ),
    "deit3_small": (
        Score(f"240 epochs, {_OWN_21K}", 54.1, _TOP1, _CURVE),
        *_six(_T611, 98.9, 90.6, 96.4, 89.9, 67.1, 72.7),
    ),
    "deit3_base": (
        Score(f"240 epochs, {_OWN_21K}", 56.5, _TOP1, _CURVE),
        *_six(_T611, 99.3, 92.5, 98.6, 93.4, 73.6, 78.0),
    ),
    "deit3_large": (
        Score(f"240 epochs, {_OWN_21K}", 57.4, _TOP1, _CURVE),
        *_six(_T611, 99.3, 93.4, 98.9, 94.5, 75.6, 79.3),
    ),
    "deit3_huge": (Score(f"90 epochs, {_OWN_21K}", 58.0, _TOP1, _CURVE),),
    **GRAFIT_SCORES,
    **TRANSLATION_SCORES,
    "timm/regnety_160": (Score(_ALONE, 98.0, _TOP1, _S344),),
    "timm/resnet50": (
        *(
            Score(f"ResNet strikes back, fine-tuned on {data}", value, _TOP1, _T55)
            for data, value in (
                ("cifar10", 98.3),
                ("cifar100", 86.9),
                ("flowers", 97.9),
                ("cars", 92.7),
                ("inat19", 73.9),
            )
        ),
        *GRAFIT_SCORES["timm/resnet50"],
    ),
}
SCORES = {name: (*_OTHERS.get(name, ()), *SEGMENTATION.get(name, ())) for name in (*_OTHERS, *SEGMENTATION)}
