"""Published figures of DeiT III, the plain ViTs of thesis chapter 6 (tables 6.2-6.9 and 6.13-6.15)."""

from vitrail.models.figures.record import Figures, Result, Variant

_LAYER_SCALE = 1e-4  # "the same initialization for all our models", thesis section 6.2.1

_T62 = "thesis table 6.2"
_T63 = "thesis table 6.3"
_T64 = "thesis table 6.4"
_T65 = "thesis table 6.5"
_T66 = "thesis table 6.6"
_T67 = "thesis table 6.7"
_T68 = "thesis table 6.8"
_T69 = "thesis table 6.9"
_T615 = "thesis table 6.15"
_FINE_384 = "ImageNet-1k, fine-tuned at 384"


def _epochs(number: int) -> str:
    return f"ImageNet-1k, {number} epochs"


def _from(image_size: int, number: int) -> str:
    return f"ImageNet-1k, {number} epochs at {image_size}, fine-tuned at 224"


def _from_21k(number: int) -> str:
    return f"ImageNet-21k, {number} epochs -> 1k"


def _path_21k(*accuracies: tuple[float, float]) -> tuple[Variant, ...]:
    """A model's first four rows of table 6.5, on val and V2: from 21k as others train on it towards DeiT III."""
    settings = (
        "RandomResizedCrop, no LayerScale, mixup 0.8, RandAugment",
        "no LayerScale, mixup 0.8, RandAugment",
        "mixup 0.8, RandAugment",
        "RandAugment",
    )
    return tuple(
        Variant(f"{_from_21k(90)}, {setting}", None, None, top1, None, v2, _T65)
        for setting, (top1, v2) in zip(settings, accuracies, strict=True)
    )


DEIT3: dict[str, Figures] = {
    "deit3_tiny": Figures(
        source="thesis table 6.14",
        parameters="5.7",
        flops={224: "1.3"},
        drop_path=0.0,
        layer_scale=_LAYER_SCALE,
    ),
    "deit3_small": Figures(
        source="thesis tables 6.7 and 6.14",
        parameters="22.0",
        flops={224: "4.6", 384: "15.5"},
        drop_path=0.0,
        layer_scale=_LAYER_SCALE,
        results=(
            Result(224, _epochs(300), 79.9, 86.1, 68.8, _T615),
            Result(224, _epochs(400), 80.4, 86.1, 69.7, _T615),
            Result(224, _epochs(600), 80.8, 86.7, 69.9, _T615),
            Result(224, _epochs(800), 81.4, 87.0, 70.5, _T615),
            Result(384, _FINE_384, 83.4, None, 73.1, _T67),
            Result(224, _from_21k(90), 82.6, None, 72.6, _T65),
            Result(224, _from_21k(240), 83.1, None, 73.8, _T65),
            Result(384, _from_21k(240), 84.8, None, 75.1, _T65),
        ),
        variants=(
            Variant("RandAugment, 300 epochs", None, None, 80.1, 86.1, 69.1, _T64),
            Variant("RandAugment, 400 epochs", None, None, 80.7, 86.0, 69.3, _T64),
            *_path_21k((81.6, 70.7), (82.1, 71.8), (82.4, 72.4), (82.3, 72.4)),
        ),
        resized_parameters={384: "22.0"},
        contradictions=(
            "Three things table 1 prints 22.1 million parameters for ViT-S/16, with or without LayerScale.",
        ),
        doubts={
            "parameters": "The count is 22.06: 22.0 is cut, not rounded.",
            "parameters 384": "22.0 repeats the figure for 224; with 576 positions the count is 22.2.",
        },
    ),
    "deit3_base": Figures(
        source="thesis tables 6.7 and 6.8",
        parameters="86.6",
        flops={224: "17.6", 384: "55.5"},
        drop_path=0.1,
        layer_scale=_LAYER_SCALE,
        results=(
            Result(224, _epochs(300), 82.8, 87.6, 72.1, _T615),
            Result(224, _epochs(400), 83.1, 87.7, 72.6, _T615),
            Result(224, _epochs(600), 83.2, 87.8, 73.3, _T615),
            Result(224, _epochs(800), 83.7, 88.1, 73.1, _T615),
            Result(224, _from(128, 400), 83.2, 88.1, 73.2, _T66),
            Result(224, _from(160, 400), 83.3, 88.0, 73.4, _T66),
            Result(224, _from(192, 400), 83.5, 88.0, 72.8, _T66),
            Result(224, _from(128, 800), 83.5, 88.3, 73.4, _T66),
            Result(224, _from(160, 800), 83.6, 88.2, 73.5, _T66),
            Result(224, _from(192, 800), 83.8, 88.2, 73.6, _T69),
            Result(384, _FINE_384, 85.0, None, 74.8, _T67),
            Result(224, _from_21k(90), 85.2, 89.4, 76.1, _T69),
            Result(224, _from_21k(240), 85.7, 89.5, 76.5, _T69),
            Result(384, _from_21k(240), 86.7, None, 77.9, _T65),
        ),
        variants=(
            Variant("RandAugment, 300 epochs", None, None, 82.5, 87.5, 71.4, _T64),
            Variant("RandAugment, 400 epochs", None, None, 82.7, 87.4, 72.2, _T64),
            Variant("Auto-Augment, 400 epochs", None, None, 82.8, 87.5, 71.9, _T63),
            Variant("Trivial-Augment, 400 epochs", None, None, 82.3, 87.0, 71.2, _T63),
            Variant("colour jitter alone, 400 epochs", None, None, 81.4, 86.1, 70.3, _T62),
            Variant("grey alone of 3-Augment, 400 epochs", None, None, 81.0, 86.0, 69.7, _T62),
            Variant("grey and blur of 3-Augment, 400 epochs", None, None, 82.7, 87.6, 72.7, _T62),
            Variant("no colour jitter, 400 epochs", None, None, 83.1, 87.7, 72.0, _T62),
            *_path_21k((84.6, 74.7), (84.8, 75.0), (85.0, 75.7), (85.1, 75.6)),
        ),
        resized_parameters={384: "86.9"},
        contradictions=("Thesis tables 6.7 and 6.14 print 17.5 billion multiply-adds at 224; the count is 17.56.",),
    ),
    "deit3_large": Figures(
        source="thesis tables 6.7 and 6.14",
        parameters="304.4",
        flops={224: "61.6", 384: "191.2"},
        drop_path=0.4,
        layer_scale=_LAYER_SCALE,
        results=(
            Result(224, _epochs(300), 84.1, 88.5, 74.1, _T615),
            Result(224, _epochs(400), 84.2, 88.6, 74.3, _T615),
            Result(224, _epochs(600), 84.4, 88.6, 74.6, _T615),
            Result(224, _epochs(800), 84.5, 88.8, 75.0, _T615),
            Result(224, _from(128, 400), 83.9, 88.8, 74.3, _T66),
            Result(224, _from(160, 400), 84.4, 88.8, 74.3, _T66),
            Result(224, _from(192, 400), 84.5, 88.8, 75.1, _T66),
            Result(224, _from(128, 800), 84.5, 88.9, 74.7, _T66),
            Result(224, _from(160, 800), 84.7, 88.9, 75.2, _T66),
            Result(224, _from(192, 800), 84.9, 88.7, 75.1, _T69),
            Result(384, _FINE_384, 85.8, None, 76.7, _T67),
            Result(224, _from_21k(90), 86.8, 89.9, 78.3, _T69),
            Result(224, _from_21k(240), 87.0, 90.0, 78.6, _T69),
            Result(384, _from_21k(240), 87.7, None, 79.1, _T65),
        ),
        variants=(
            Variant("RandAugment, 400 epochs", None, None, 84.0, 88.3, 73.8, _T64),
            Variant("Auto-Augment, 400 epochs", None, None, 84.0, 88.6, 74.0, _T63),
            Variant("Trivial-Augment, 400 epochs", None, None, 83.6, 88.1, 73.7, _T63),
            *_path_21k((86.0, 76.4), (86.3, 76.7), (86.4, 77.4), (86.5, 77.2)),
        ),
        resized_parameters={384: "304.8"},
    ),
    "deit3_huge": Figures(
        source="thesis tables 6.7 and 6.14",
        parameters="632.1",
        flops={224: "167.4"},
        drop_path=0.5,
        layer_scale=_LAYER_SCALE,
        results=(
            Result(224, _epochs(300), 84.6, 89.0, 74.9, _T615),
            Result(224, _epochs(400), 84.8, 89.1, 75.3, _T615),
            Result(224, _from(126, 400), 84.7, 89.2, 75.2, _T66),
            Result(224, _from(154, 400), 85.1, 89.3, 75.3, _T66),
            Result(224, _from(182, 400), 85.1, 89.2, 75.4, _T66),
            Result(224, _from(126, 800), 85.1, 89.2, 75.6, _T66),
            Result(224, _from(154, 800), 85.2, 89.2, 75.9, _T66),
            Result(224, _from(182, 800), 85.1, 88.9, 75.9, _T66),
            Result(224, _epochs(800), 84.9, 89.1, 75.6, _T66),
            Result(224, "ImageNet-21k -> 1k", 87.2, None, 79.2, _T68),
        ),
        contradictions=(
            "Thesis table 6.6 prints the 800 epochs at 182 and 224 below ViT-H-52, whose own row follows them.",
        ),
    ),
    "vit_h52": Figures(
        source="thesis sections 6.3.2.3 (one billion parameters) and 6.5 (drop path)",
        parameters="1e3",
        drop_path=0.5,
        layer_scale=_LAYER_SCALE,
        results=(Result(224, _from(126, 400), 84.9, 89.2, 75.6, _T66),),
    ),
    "vit_h26x2": Figures(
        source="thesis section 6.3.2.3 (one billion parameters)",
        parameters="1e3",
        layer_scale=_LAYER_SCALE,
        results=(Result(224, _from(126, 400), 84.9, 89.1, 75.3, _T66),),
    ),
}
