"""Published figures of DeiT (thesis sections 3.4-3.6; CaiT tables 1, 2, 5 and supplement A)."""

from vitrail.models.figures.record import Figures, Result, Variant

_PLAIN = "ImageNet-1k, 300 epochs"
_DISTILLED = "ImageNet-1k, 300 epochs, distilled"
_LONG = "ImageNet-1k, 1000 epochs, distilled"
_AT_384 = ", fine-tuned at 384"

_T32 = "thesis table 3.2"
_T33 = "thesis table 3.3"
_T35 = "thesis table 3.5"
_T38 = "thesis table 3.8"
_T310 = "thesis table 3.10"
_DEPTH = "thesis tables 3.11 and 3.12"
_GATES = "CaiT supplement table A.1"
_CLASS = "thesis table 3.13"
_HEADS = "thesis table 3.21"


def _and_384(setting: str, top1: float, top1_384: float, source: str) -> tuple[Variant, Variant]:
    """A row of an ablation that has the accuracy after training and that after fine-tuning."""
    return (
        Variant(setting, None, None, top1, None, None, source),
        Variant(setting + _AT_384, None, None, top1_384, None, None, source),
    )


DEIT: dict[str, Figures] = {
    "deit_tiny": Figures(
        source="Three things table 1 (ViT-Ti/16)",
        parameters="5.7",
        flops={224: "1.3"},
        drop_path=0.1,
        results=(Result(224, _PLAIN, 72.2, 80.1, 60.4, _T35),),
        variants=(
            Variant("soft distillation, no token", None, None, 72.2, None, None, _T33),
            Variant("hard distillation, no token", None, None, 74.3, None, None, _T33),
        ),
        contradictions=("Thesis tables 3.1 and 3.5 print 5M parameters, which is 5.7 cut, not rounded.",),
    ),
    "deit_small": Figures(
        source="Three things table 1 (ViT-S/16)",
        parameters="22.1",
        flops={224: "4.6"},
        drop_path=0.1,
        results=(Result(224, _PLAIN, 79.8, 85.7, 68.5, _T35),),
        variants=(
            Variant("soft distillation, no token", None, None, 79.8, None, None, _T33),
            Variant("hard distillation, no token", None, None, 80.9, None, None, _T33),
            Variant("uniform drop path 0.05", None, None, 79.9, None, None, _DEPTH),
            Variant("LayerScale 0.1", None, None, 80.5, None, None, _DEPTH),
            Variant("LayerScale initialised to 0", None, None, 79.7, None, None, _DEPTH),
            Variant("LayerScale initialised in [0, 0.2]", None, None, 80.2, None, None, _DEPTH),
            Variant("LayerScale frozen at trained values", None, None, 80.6, None, None, "CaiT section 4.1.2"),
            Variant("depth 18, LayerScale 0.1", None, None, 81.7, None, None, _DEPTH),
            Variant(
                "depth 18, LayerScale frozen at trained values", None, None, 81.5, None, None, "CaiT section 4.1.2"
            ),
            Variant("ReZero", None, None, 78.3, None, None, _DEPTH),
            Variant("T-Fixup", None, None, 79.4, None, None, _DEPTH),
            Variant("Fixup", None, None, 80.7, None, None, _DEPTH),
            Variant("scalar weight initialised to 0.1", None, None, 80.4, None, None, _DEPTH),
            Variant("exclusive gating", None, None, 79.7, None, None, _GATES),
            Variant("shortcut-only gating", None, None, 80.4, None, None, _GATES),
            Variant("talking heads", None, None, 80.3, None, None, "thesis section 3.7"),
            Variant("DINO, linear classifier", "22", "4.6", 77.0, None, None, "thesis table 4.2"),
            Variant("DINO, nearest neighbours", "22", "4.6", 74.5, None, None, "thesis table 4.2"),
            Variant("talking heads, 8 heads", "22", "4.6", 80.5, None, None, "thesis table 3.20"),
            Variant("1 head", None, "4.6", 76.80, None, None, _HEADS),
            Variant("2 heads", None, "4.6", 78.06, None, None, _HEADS),
            Variant("3 heads", None, "4.6", 79.35, None, None, _HEADS),
            Variant("8 heads", None, "4.6", 80.02, None, None, _HEADS),
            Variant("12 heads", None, "4.6", 80.08, None, None, _HEADS),
            Variant("16 heads", None, "4.6", 80.04, None, None, _HEADS),
            Variant("24 heads", None, "4.6", 79.60, None, None, _HEADS),
            Variant("average pooling", "22", "4.6", 80.3, None, None, _CLASS),
            Variant("class token inserted at layer 2", "22", "4.6", 80.0, None, None, _CLASS),
            Variant("class token inserted at layer 4", "22", "4.6", 80.0, None, None, _CLASS),
            Variant("class token inserted at layer 8", "22", "4.6", 80.0, None, None, _CLASS),
            Variant("class token inserted at layer 10", "22", "4.6", 80.5, None, None, _CLASS),
            Variant("class token inserted at layer 11", "22", "4.6", 80.3, None, None, _CLASS),
            Variant("9 self-attention + 3 class-attention blocks", "22", "3.6", 79.6, None, None, _CLASS),
            Variant("10 self-attention + 2 class-attention blocks", "22", "4.0", 80.3, None, None, _CLASS),
            Variant("11 self-attention + 1 class-attention blocks", "22", "4.3", 80.6, None, None, _CLASS),
            Variant("12 self-attention + 1 class-attention blocks", "24", "4.7", 80.8, None, None, _CLASS),
            Variant("12 self-attention + 2 class-attention blocks", "26", "4.7", 80.8, None, None, _CLASS),
            Variant("12 self-attention + 3 class-attention blocks", "27", "4.8", 80.6, None, None, _CLASS),
            Variant("A2 recipe of ResNet strikes back", None, None, 79.6, None, 68.1, "thesis section 6.3.4"),
            Variant("T2 recipe, tuned for DeiT-S", None, None, 80.4, None, 69.2, "thesis section 6.3.4"),
        ),
        contradictions=(
            "Thesis tables 5.1 and 6.13 print 22.0 million parameters; the count is 22.05, which rounds to 22.1.",
            "CaiT and thesis tables 3.11 to 3.21 print 79.9 top-1 for the DeiT-S they start from, DeiT's own 79.8.",
            "Thesis table 5.1 prints 80.6 top-1 and 69.4 on V2 for DeiT-S, of a training it does not name.",
            "CaiT's section A.2 has all but exclusive gating fail; its table A.1 gives shortcut-only gating 80.4.",
        ),
    ),
    "deit_base": Figures(
        source="thesis tables 6.13 and 3.19 (ViT-B/16)",
        parameters="86.6",
        flops={224: "17.6", 384: "55.5"},
        drop_path=0.1,
        results=(
            Result(224, _PLAIN, 81.8, 86.7, 71.5, _T35),
            Result(160, _PLAIN + ", fine-tuned at 160", 79.9, 84.8, 67.6, _T310),
            Result(320, _PLAIN + ", fine-tuned at 320", 82.7, 87.2, 71.9, _T310),
            Result(384, _PLAIN + _AT_384, 83.1, 87.7, 72.4, _T35),
        ),
        variants=(
            *_and_384("soft distillation, no token", 81.8, 83.2, _T33),
            *_and_384("hard distillation, no token", 83.0, 84.0, _T33),
            *_and_384("SGD", 74.5, 77.3, _T38),
            Variant("AdamW, fine-tuned at 384 with SGD", None, None, 83.1, None, None, _T38),
            *_and_384("no RandAugment", 79.6, 80.4, _T38),
            *_and_384("AutoAugment instead of RandAugment", 81.2, 81.9, _T38),
            *_and_384("no mixup", 78.7, 79.8, _T38),
            *_and_384("no CutMix", 80.0, 80.6, _T38),
            *_and_384("neither mixup nor CutMix", 75.8, 76.7, _T38),
            *_and_384("no repeated augmentation", 76.5, 77.4, _T38),
            *_and_384("dropout", 81.3, 83.1, _T38),
            *_and_384("moving average of the weights", 81.9, 83.1, _T38),
        ),
        contradictions=(
            "Thesis tables 3.1, 3.5 and 3.17 print 86M parameters, which is 86.6 cut, not rounded.",
            "Thesis tables 3.17, 4.1 and 5.1 print 17.5 billion multiply-adds at 224; the count is 17.56.",
            "Thesis table 3.17 prints 55.4 billion multiply-adds at 384; the count is 55.48.",
        ),
    ),
    "deit_tiny_distilled": Figures(
        source=_T35,
        parameters="6",
        drop_path=0.1,
        results=(
            Result(224, _DISTILLED, 74.5, 82.1, 62.9, _T35),
            Result(224, _LONG, 76.6, 83.9, 65.4, _T35),
        ),
        variants=(
            Variant("class token's head only", None, None, 73.9, None, None, _T33),
            Variant("distillation token's head only", None, None, 74.6, None, None, _T33),
        ),
    ),
    "deit_small_distilled": Figures(
        source=_T35,
        parameters="22",
        drop_path=0.1,
        results=(
            Result(224, _DISTILLED, 81.2, 86.8, 70.0, _T35),
            Result(224, _LONG, 82.6, 87.8, 71.7, _T35),
        ),
        variants=(
            Variant("class token's head only", None, None, 80.9, None, None, _T33),
            Variant("distillation token's head only", None, None, 81.1, None, None, _T33),
        ),
    ),
    "deit_base_distilled": Figures(
        source="thesis table 3.17",
        parameters="87",
        flops={384: "55.5"},
        drop_path=0.1,
        results=(
            Result(224, _DISTILLED, 83.4, 88.3, 73.2, _T35),
            Result(224, _LONG, 84.2, 88.7, 73.9, _T35),
            Result(384, _DISTILLED + _AT_384, 84.5, 89.0, 74.8, _T35),
            Result(384, _LONG + _AT_384, 85.2, 89.3, 75.2, _T35),
            Result(384, _LONG + _AT_384 + ", crop ratio 1.0", 85.42, None, None, "thesis section 3.7.2.3"),
        ),
        variants=(
            *_and_384("class token's head only", 83.0, 84.2, _T33),
            *_and_384("distillation token's head only", 83.1, 84.4, _T33),
            *_and_384("taught by DeiT-B", 81.9, 83.1, _T32),
            *_and_384("taught by RegNetY-4GF", 82.7, 83.6, _T32),
            *_and_384("taught by RegNetY-8GF", 82.7, 83.8, _T32),
            *_and_384("taught by RegNetY-12GF", 83.1, 84.1, _T32),
        ),
        contradictions=(
            "Thesis table 3.2 prints 83.1 top-1 for the same teacher, and 84.2 at 384.",
            "Thesis table 3.7 prints 84.4 top-1 for the distilled model fine-tuned at 384.",
        ),
    ),
}
