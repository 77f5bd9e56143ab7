"""Published figures of PatchConvNet (thesis tables 5.1, 5.2, 5.5, 5.7 and 5.8, and the authors' page)."""

from vitrail.models.figures.record import Figures, Result, Variant

_PLAIN = "ImageNet-1k, 400 epochs"
_LARGER = "ImageNet-21k -> 1k"
_LONGER = "ImageNet-21k -> 1k, longer training"
_T51 = "thesis table 5.1"
_T52 = "thesis table 5.2"
_T57 = "thesis table 5.7"
_T58 = "thesis table 5.8"
_PAGE = "the authors' page of PatchConvNet"


def _batch_norm(top1: float) -> Variant:
    return Variant("BatchNorm", None, None, top1, None, None, _T58)


PATCHCONVNET: dict[str, Figures] = {
    "patchconvnet_s20": Figures(
        source=_T58 + " (no size, no cost)",
        drop_path=0.0,
        results=(Result(224, _PLAIN, 78.7, None, None, _T58),),
        variants=(_batch_norm(78.8),),
    ),
    "patchconvnet_s36": Figures(
        source=_T58 + " (no size, no cost)",
        drop_path=0.05,
        results=(Result(224, _PLAIN, 80.7, None, None, _T58),),
        variants=(_batch_norm(81.2),),
    ),
    "patchconvnet_s60": Figures(
        source="thesis tables 5.1, 5.2 and 5.5",
        parameters="25.2",
        flops={224: "4.0", 288: "6.6", 320: "8.2", 384: "11.8", 512: "20.9"},
        drop_path=0.15,
        results=(
            Result(224, _PLAIN, 82.1, None, 71.0, _T51),
            Result(224, _LARGER, 82.9, None, None, _T52),
            Result(288, _LARGER, 84.0, None, None, _T52),
            Result(384, _LARGER, 84.6, None, None, _T52),
            Result(512, _LARGER, 85.0, None, None, _T52),
            Result(224, _LONGER, 83.5, None, None, _T52),
            Result(288, _LONGER, 84.4, None, None, _T52),
            Result(384, _LONGER, 84.9, None, None, _T52),
            Result(512, _LONGER, 85.4, None, None, _T52),
        ),
        variants=(
            _batch_norm(82.4),
            Variant("average pooling", None, None, 81.9, None, None, _T57),
            Variant("linear stem", None, None, 80.0, None, None, _T57),
            Variant("several heads in the pooling", None, None, 81.9, None, None, _T57),
            Variant("one class token per class", "25.6", "5.3", 81.1, None, None, _T57),
            Variant("one class token per class, fine-tuned", "25.6", "5.3", 82.0, None, None, _PAGE),
        ),
    ),
    "patchconvnet_s60_multi": Figures(
        source=_PAGE,
        parameters="25.6",
        flops={224: "5.3"},
        drop_path=0.15,
        results=(
            Result(224, _PLAIN, 81.1, None, None, _T57),
            Result(224, "ImageNet-1k, fine-tuned from one token for all classes", 82.0, None, None, _PAGE),
        ),
    ),
    "patchconvnet_s120": Figures(
        source=_T51,
        parameters="47.7",
        flops={224: "7.5"},
        drop_path=0.2,
        results=(Result(224, _PLAIN, 83.2, None, 72.5, _T51),),
        variants=(_batch_norm(83.4),),
    ),
    "patchconvnet_b36": Figures(
        source=_T58 + " (no size, no cost)",
        drop_path=0.2,
        results=(Result(224, _PLAIN, 82.8, None, None, _T58),),
        variants=(_batch_norm(83.5),),
    ),
    "patchconvnet_b60": Figures(
        source="thesis tables 5.1 and 5.2",
        parameters="99.4",
        flops={224: "15.8", 288: "26.1", 384: "46.5"},
        drop_path=0.3,
        results=(
            Result(224, _PLAIN, 83.5, None, 72.6, _T51),
            Result(224, _LARGER, 85.0, None, None, _T52),
            Result(288, _LARGER, 85.7, None, None, _T52),
            Result(384, _LARGER, 86.1, None, None, _T52),
            Result(224, _LONGER, 85.4, None, None, _T52),
            Result(384, _LONGER, 86.5, None, None, _T52),
        ),
        variants=(_batch_norm(83.9),),
    ),
    "patchconvnet_b120": Figures(
        source="thesis tables 5.1, 5.2 and 5.5",
        parameters="188.6",
        flops={224: "29.8", 288: "49.3", 320: "60.9", 384: "87.7"},
        drop_path=0.4,
        results=(
            Result(224, _PLAIN, 84.1, None, 73.9, _T51),
            Result(224, _LARGER, 86.0, None, None, _T52),
            Result(288, _LARGER, 86.6, None, None, _T52),
            Result(384, _LARGER, 86.9, None, None, _T52),
        ),
        variants=(_batch_norm(84.3),),
        contradictions=(
            "Thesis tables 5.1 and 5.5 print 29.9 billion multiply-adds at 224, table 5.2 29.8; the count is 29.78.",
        ),
    ),
    "patchconvnet_l60": Figures(
        source=_T52,
        flops={224: "28.1", 288: "46.4", 384: "82.5"},
        results=(
            Result(224, _LARGER, 85.6, None, None, _T52),
            Result(288, _LARGER, 86.1, None, None, _T52),
            Result(384, _LARGER, 86.4, None, None, _T52),
        ),
    ),
    "patchconvnet_l120": Figures(
        source=_T52,
        flops={224: "53.0", 288: "87.5", 384: "155.5"},
        results=(
            Result(224, _LARGER, 86.1, None, None, _T52),
            Result(288, _LARGER, 86.6, None, None, _T52),
            Result(384, _LARGER, 87.1, None, None, _T52),
        ),
    ),
}
