"""Published figures of models outside the catalogue that the papers train, compare with or learn from."""

from vitrail.models.figures.record import Figures, Result
from vitrail.models.figures.speeds import SPEEDS

# "ResNet strikes back" is Wightman, Touvron and Jegou's paper; A1, A2, A3 and T2 are trainings.
_T212 = "thesis table 2.12"
_S634 = "thesis section 6.3.4"

_DEIT = "ImageNet-1k, 300 epochs, DeiT recipe"
_T35 = "thesis table 3.5"


def _regnet(name: str, parameters: str | None, result: Result) -> Figures:
    return Figures(source=result.source, parameters=parameters, results=(result,), speeds=SPEEDS.get(name, ()))


OTHERS: dict[str, Figures] = {
    "timm/resnet50": Figures(
        source="thesis table 5.1",
        parameters="25.6",
        flops={224: "4.1"},
        results=(
            Result(224, "ImageNet-1k, A1", 80.4, None, 68.7, "thesis table 5.1"),
            Result(224, "ImageNet-1k, A2", 79.9, None, 67.9, _S634),
            Result(224, "ImageNet-1k, A2, mean of 100 seeds", 79.72, None, None, "thesis section 6.3.4, figure 6.7"),
            Result(224, "ImageNet-1k, A3", 78.1, None, None, "ResNet strikes back"),
            Result(224, "ImageNet-1k, T2", 79.2, None, 67.9, _S634),
            Result(224, "ImageNet-1k, SGD, 90 epochs", 76.2, None, None, _T212),
            Result(224, "ImageNet-1k, SGD, 600 epochs", 79.3, None, None, _T212),
        ),
        contradictions=("ResNet strikes back prints 79.8 top-1 for A2, the thesis 79.9.",),
        speeds=SPEEDS["timm/resnet50"],
    ),
    # The RegNetYs that the authors trained with DeiT's procedure, DeiT's teachers; timm has the last one's weights, as
    # regnety_160.deit_in1k.
    "timm/regnety_040": _regnet("timm/regnety_040", "21", Result(224, _DEIT, 80.0, 86.4, 69.4, _T35)),
    "timm/regnety_080": _regnet("timm/regnety_080", "39", Result(224, _DEIT, 81.7, 87.4, 70.8, _T35)),
    "timm/regnety_120": _regnet("timm/regnety_120", None, Result(224, _DEIT, 82.4, None, None, "thesis table 3.2")),
    "timm/regnety_160": _regnet("timm/regnety_160", "84", Result(224, _DEIT, 82.9, 88.1, 72.4, _T35)),
    "vit_b16": Figures(  # as others than the thesis trained it
        source="thesis table 3.17",
        flops={384: "55.4"},
        results=(
            Result(384, "ImageNet-1k, fine-tuned at 384", 77.9, 83.6, None, "thesis table 3.17"),
            Result(224, "ImageNet-21k -> 1k, Steiner et al.", 84.0, None, None, "thesis table 6.8"),
        ),
    ),
}
