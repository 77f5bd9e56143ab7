"""Published figures of models outside the catalogue that the papers train, compare with or learn from."""

from vitrail.models.figures.record import Figures, Result, Variant
from vitrail.models.figures.speeds import SPEEDS

# "ResNet strikes back" is Wightman, Touvron and Jegou's paper; A1, A2, A3 and T2 are trainings.
_T212 = "thesis table 2.12"
_S634 = "thesis section 6.3.4"
_T63 = "thesis table 6.3"
_T67 = "thesis table 6.7"
_T613 = "thesis table 6.13"
_STRIKES_BACK = "ImageNet-1k, ResNet strikes back"


def _with_deit3_recipe(name: str, parameters: str, flops: str, top1: float, real: float, v2: float) -> Figures:
    """A row of table 6.13: another transformer trained as DeiT III; top-1 on val, ReaL and V2."""
    result = Result(224, "ImageNet-1k, 400 epochs, DeiT III recipe", top1, real, v2, _T613)
    return Figures(
        source=_T613, parameters=parameters, flops={224: flops}, results=(result,), speeds=SPEEDS.get(name, ())
    )


def _strikes_back(name: str, parameters: str, flops: str, top1: float, v2: float) -> Figures:
    """A row of table 6.7 that it takes from ResNet strikes back."""
    result = Result(224, _STRIKES_BACK, top1, None, v2, _T67)
    return Figures(source=_T67, parameters=parameters, flops={224: flops}, results=(result,), speeds=SPEEDS[name])


_DEIT = "ImageNet-1k, 300 epochs, DeiT recipe"
_T35 = "thesis table 3.5"


def _regnet(name: str, parameters: str | None, *results: Result, flops: str | None = None) -> Figures:
    return Figures(
        source=results[-1].source,
        parameters=parameters,
        flops={} if flops is None else {224: flops},
        results=results,
        speeds=SPEEDS.get(name, ()),
    )


OTHERS: dict[str, Figures] = {
    "timm/resnet50": Figures(
        source="thesis table 5.1",
        parameters="25.6",
        flops={224: "4.1"},
        results=(
            Result(224, "ImageNet-1k, A1", 80.4, None, 68.7, "thesis table 5.1"),
            Result(224, "ImageNet-1k, A2", 79.9, 85.45, 67.9, "thesis section 6.3.4, ReaL from figure 6.7"),
            Result(224, "ImageNet-1k, A2, mean of 100 seeds", 79.72, 85.37, 67.99, "thesis section 6.3.4, figure 6.7"),
            Result(224, "ImageNet-1k, A3", 78.1, None, None, "ResNet strikes back"),
            Result(224, "ImageNet-1k, T2", 79.2, None, 67.9, _S634),
            Result(224, "ImageNet-1k, SGD, 90 epochs", 76.2, None, None, _T212),
            Result(224, "ImageNet-1k, SGD, 600 epochs", 79.3, None, None, _T212),
        ),
        variants=(
            Variant("A2, attention pooling", None, "4.6", 80.1, None, None, "thesis section 5.3.4"),
            Variant("Auto-Augment", None, None, 79.7, 85.6, 67.9, _T63),
            Variant("RandAugment", None, None, 79.5, 85.5, 67.6, _T63),
            Variant("Trivial-Augment", None, None, 79.5, 85.4, 67.6, _T63),
            Variant("3-Augment", None, None, 79.4, 85.5, 67.8, _T63),
        ),
        contradictions=(
            "ResNet strikes back prints 79.8 top-1 for A2, as thesis section 5.3.4 implies; section 6.3.4 has 79.9.",
            "Thesis figure 6.7 has 79.85 for the seed of A2.",
        ),
        speeds=SPEEDS["timm/resnet50"],
    ),
    # The RegNetYs that the authors trained with DeiT's procedure, DeiT's teachers; timm has the last one's weights, as
    # regnety_160.deit_in1k.
    "timm/regnety_040": _regnet(
        "timm/regnety_040",
        "20.6",
        Result(224, _DEIT, 80.0, 86.4, 69.4, _T35),
        Result(224, _STRIKES_BACK, 81.5, None, 70.7, _T67),
        flops="4.0",
    ),
    "timm/regnety_080": _regnet(
        "timm/regnety_080",
        "39.2",
        Result(224, _DEIT, 81.7, 87.4, 70.8, _T35),
        Result(224, _STRIKES_BACK, 82.2, None, 71.1, _T67),
        flops="8.0",
    ),
    "timm/regnety_120": _regnet("timm/regnety_120", None, Result(224, _DEIT, 82.4, None, None, "thesis table 3.2")),
    "timm/regnety_160": _regnet(
        "timm/regnety_160",
        "83.6",
        Result(224, _DEIT, 82.9, 88.1, 72.4, _T35),
        Result(224, _DEIT, 82.9, None, 72.4, _T67),
        flops="16.0",
    ),
    "timm/resnet101": _strikes_back("timm/resnet101", "44.5", "7.9", 81.5, 70.3),
    "timm/resnet152": _strikes_back("timm/resnet152", "60.2", "11.6", 82.0, 70.6),
    "timm/pit_s_224": _with_deit3_recipe("timm/pit_s_224", "23.5", "2.9", 80.4, 86.1, 69.2),
    "timm/pit_b_224": _with_deit3_recipe("timm/pit_b_224", "73.8", "12.5", 82.4, 86.8, 72.0),
    "timm/tnt_s_legacy_patch16_224": _with_deit3_recipe(
        "timm/tnt_s_legacy_patch16_224", "23.8", "5.2", 81.4, 87.2, 70.6
    ),
    "timm/convit_small": _with_deit3_recipe("timm/convit_small", "27.8", "5.8", 81.3, 87.0, 70.3),
    "timm/convit_base": _with_deit3_recipe("timm/convit_base", "86.5", "17.5", 82.0, 86.7, 71.3),
    "timm/swin_small_patch4_window7_224": _with_deit3_recipe(
        "timm/swin_small_patch4_window7_224", "49.6", "8.7", 82.1, 86.9, 70.7
    ),
    "timm/swin_base_patch4_window7_224": _with_deit3_recipe(
        "timm/swin_base_patch4_window7_224", "87.8", "15.4", 82.2, 86.7, 70.7
    ),
    "vit_b16": Figures(  # as others than the thesis trained it
        source="thesis table 3.17",
        flops={384: "55.4"},
        results=(
            Result(384, "ImageNet-1k, fine-tuned at 384", 77.9, 83.6, None, "thesis table 3.17"),
            Result(224, "ImageNet-21k -> 1k, Steiner et al.", 84.0, None, None, "thesis table 6.8"),
        ),
    ),
}
