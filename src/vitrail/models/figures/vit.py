"""Published figures of the sequential and parallel ViTs and their stems (Three things, tables 1-3, 5 and 7)."""

from vitrail.models.figures.record import Figures, Result, Variant

_PLAIN = "ImageNet-1k, 300 epochs"
_PLAIN_SCALED = "ImageNet-1k, 300 epochs, LayerScale"
_LONG = "ImageNet-1k, 400 epochs"
_SCALED = "ImageNet-1k, 400 epochs, LayerScale"
_BEIT = "ImageNet-1k, BeiT 300 epochs, fine-tuned 100 epochs"

_T1 = "Three things table 1"
_T2 = "Three things table 2"
_T3 = "Three things table 3"
_T5 = "Three things table 5"
_T7 = "Three things table 7"
_REAL = "Three things table 1, ReaL from thesis table 6.4"
_T64 = "thesis table 6.4"
_DEPTH = "thesis tables 3.11 and 3.12"
_GATED = "thesis table 3.11"
_GATES = "CaiT supplement table A.1"
_FROZEN = "CaiT section 4.1.2"
# Three things, section 2.2: by width, and so the same for sequential and parallel models.
_DROP_PATH = {"ti": 0.0, "s": 0.05, "b": 0.1, "l": 0.4}
_PATH = "thesis table 3.20"


def _at_384(*accuracies: tuple[float, float]) -> tuple[Result, ...]:
    """A row of table 5: all weights, attention only, feed-forward only, first with AdamW, then with SGD."""
    settings = [f"{part}, {optimizer}" for optimizer in ("AdamW", "SGD") for part in ("all", "attention", "ffn")]
    return tuple(
        Result(384, f"{_LONG}, fine-tuned at 384 ({setting})", top1, None, v2, _T5)
        for setting, (top1, v2) in zip(settings, accuracies, strict=True)
    )


def _stem(flops: str, top1: float, v2: float, beit: float) -> Figures:
    """A row of table 7: a ViT-B12 behind another stem."""
    results = (Result(224, _PLAIN, top1, None, v2, _T7), Result(224, _BEIT, beit, None, None, _T7))
    return Figures(source=_T7, flops={224: flops}, drop_path=_DROP_PATH["b"], results=results)


VIT: dict[str, Figures] = {
    "vit_ti12": Figures(
        source=_T1,
        parameters="5.7",
        flops={224: "1.3"},
        drop_path=_DROP_PATH["ti"],
        results=(Result(224, _PLAIN, 72.7, None, 60.3, _T1), Result(224, _SCALED, 73.5, None, 61.4, _T1)),
    ),
    "vit_s12": Figures(
        source=_T1,
        parameters="22.1",
        flops={224: "4.6"},
        drop_path=_DROP_PATH["s"],
        results=(
            Result(224, _PLAIN, 79.7, None, 68.5, _T1),
            Result(224, _PLAIN, 79.8, 85.9, 68.2, _T64),
            Result(224, _SCALED, 80.7, 86.0, 69.3, _REAL),
            *_at_384((82.7, 72.5), (82.5, 72.4), (82.2, 71.6), (82.6, 72.5), (82.3, 72.2), (82.0, 71.1)),
        ),
        variants=(
            Variant("cross-entropy", None, None, 79.8, 85.3, 68.1, _T64),
            Variant("LayerScale", None, None, 80.1, 86.1, 69.1, _T64),
        ),
        contradictions=(
            "The 300-epoch training has 79.7 (V2 68.5) in Three things table 1, 79.8 (V2 68.2) in thesis table 6.4.",
        ),
    ),
    "vit_s18": Figures(
        source=_DEPTH + " (DeiT-S of depth 18)",
        drop_path=_DROP_PATH["s"],
        results=(
            Result(224, "ImageNet-1k, 300 epochs, DeiT recipe, drop path 0.1", 80.7, None, None, _DEPTH),
            Result(224, "ImageNet-1k, 300 epochs, DeiT recipe, LayerScale 0.1", 81.7, None, None, _DEPTH),
        ),
        variants=(
            Variant("drop path as at depth 12", None, None, 80.1, None, None, _DEPTH),
            Variant("LayerScale initialised to 0", None, None, 81.5, None, None, "thesis table 3.12"),
            Variant("LayerScale initialised in [0, 0.2]", None, None, 80.8, None, None, "thesis table 3.12"),
            Variant("LayerScale frozen at trained values", None, None, 81.5, None, None, _FROZEN),
            Variant("ReZero", None, None, 80.1, None, None, _GATED),
            Variant("T-Fixup", None, None, 81.7, None, None, _GATED),
            Variant("Fixup", None, None, 82.0, None, None, _GATED),
            Variant("scalar weight initialised to 0.1", None, None, 81.6, None, None, _GATED),
        ),
    ),
    "vit_s24": Figures(
        source=_DEPTH + " (DeiT-S of depth 24)",
        drop_path=_DROP_PATH["s"],
        results=(
            Result(224, "ImageNet-1k, 300 epochs, DeiT recipe, drop path 0.2", 81.0, None, None, _DEPTH),
            Result(224, "ImageNet-1k, 300 epochs, DeiT recipe, LayerScale 1e-5", 82.4, None, None, _DEPTH),
        ),
        variants=(
            Variant("drop path as at depth 12, training failed", None, None, 78.9, None, None, _DEPTH),
            Variant("LayerScale initialised to 0", None, None, 82.1, None, None, "thesis table 3.12"),
            Variant("LayerScale initialised in [0, 2e-5]", None, None, 82.1, None, None, "thesis table 3.12"),
            Variant("LayerScale frozen at trained values", None, None, 81.2, None, None, _FROZEN),
            Variant("ReZero", None, None, 80.8, None, None, _GATED),
            Variant("T-Fixup", None, None, 81.5, None, None, _GATED),
            Variant("Fixup", None, None, 82.3, None, None, _GATED),
            Variant("scalar weight initialised to 1e-5", None, None, 81.1, None, None, _GATED),
        ),
    ),
    "vit_s36": Figures(
        source=_DEPTH + " (DeiT-S of depth 36)",
        drop_path=_DROP_PATH["s"],
        results=(
            Result(224, "ImageNet-1k, 300 epochs, DeiT recipe, drop path 0.25", 81.9, None, None, _DEPTH),
            Result(224, "ImageNet-1k, 300 epochs, DeiT recipe, LayerScale 1e-6", 82.9, None, None, _DEPTH),
        ),
        variants=(
            Variant("drop path as at depth 12, training failed", None, None, 78.9, None, None, _DEPTH),
            Variant("LayerScale initialised to 0", None, None, 82.7, None, None, "thesis table 3.12"),
            Variant("LayerScale initialised in [0, 2e-6]", None, None, 82.6, None, None, "thesis table 3.12"),
            Variant("LayerScale frozen at trained values", None, None, 81.6, None, None, _FROZEN),
            Variant("ReZero", None, None, 81.6, None, None, _GATED),
            Variant("T-Fixup", None, None, 82.1, None, None, _GATED),
            Variant("Fixup", None, None, 82.4, None, None, _GATED),
            Variant("scalar weight initialised to 1e-6", None, None, 81.6, None, None, _GATED),
            Variant("8 talking heads, training failed", "64", "13.8", 69.9, None, None, _PATH),
            Variant("8 talking heads, LayerScale 1e-6, drop path 0.05", "64", "13.8", 80.5, None, None, _PATH),
            Variant("8 talking heads, LayerScale 1e-6, drop path 0.2", "64", "13.8", 83.0, None, None, _PATH),
        ),
    ),
    "vit_s48": Figures(
        source=_T3,
        parameters="85.9",
        flops={224: "18.3"},
        drop_path=_DROP_PATH["s"],
        results=(
            Result(224, _PLAIN, 82.3, None, 72.0, _T3),
            Result(
                *(224, "ImageNet-1k, 300 epochs, DeiT recipe, drop path 0.3", 80.7, None, None),
                _GATES,
            ),
        ),
        variants=(Variant("drop path as at depth 12, training failed", None, None, 78.4, None, None, _GATES),),
    ),
    "vit_s18x2": Figures(source="Three things table 4 (speed only)", drop_path=_DROP_PATH["s"]),
    "vit_s24x2": Figures(
        source=_T3,
        parameters="85.9",
        flops={224: "18.3"},
        drop_path=_DROP_PATH["s"],
        results=(Result(224, _PLAIN, 82.6, None, 72.3, _T3),),
    ),
    "vit_b12": Figures(
        source="Three things tables 1 and 7",
        parameters="86.6",
        flops={224: "17.58"},
        drop_path=_DROP_PATH["b"],
        results=(
            Result(224, _PLAIN, 82.2, None, 71.2, _T1),
            Result(224, _PLAIN, 82.2, 87.2, 71.4, _T64),
            Result(224, _PLAIN + ", mean of 5 seeds", 82.20, None, 71.0, _T7),
            Result(224, _SCALED, 82.7, 87.4, 72.2, _REAL),
            Result(224, _BEIT, 83.05, None, None, _T7),
            *_at_384((84.3, 73.7), (84.3, 74.0), (84.1, 73.6), (84.3, 74.0), (84.2, 73.9), (84.0, 73.7)),
        ),
        variants=(
            Variant("cross-entropy", None, None, 80.9, 85.5, 68.5, _T64),
            Variant("LayerScale", None, None, 82.5, 87.5, 71.4, _T64),
        ),
        contradictions=("The 300-epoch training has 71.2 on V2 in Three things table 1, 71.4 in thesis table 6.4.",),
    ),
    "vit_b12_linear_bn": _stem("17.58", 82.31, 71.0, 82.98),
    "vit_b12_linear_gelu": _stem("17.58", 81.55, 70.5, 83.09),
    "vit_b12_linear_bn_gelu": _stem("17.58", 82.38, 70.7, 82.99),
    "vit_b12_conv": _stem("19.07", 82.57, 71.0, 83.04),
    "vit_b12_conv_ln": _stem("19.07", 82.50, 70.9, 83.06),
    "vit_b12_hmlp": _stem("17.73", 82.54, 71.5, 83.43),
    "vit_b12_hmlp_ln": _stem("17.73", 82.50, 71.0, 83.24),
    "vit_b13": Figures(
        source=_T7,
        flops={224: "19.04"},
        drop_path=_DROP_PATH["b"],
        results=(Result(224, _PLAIN, 82.35, None, 71.3, _T7), Result(224, _BEIT, 83.26, None, None, _T7)),
    ),
    "vit_b36": Figures(
        source=_T3,
        parameters="256.7",
        flops={224: "52.5"},
        drop_path=_DROP_PATH["b"],
        results=(
            Result(224, _PLAIN, 82.9, None, 72.2, _T2),
            Result(224, _PLAIN_SCALED, 83.9, None, 73.2, _T2),
            Result(224, _LONG, 83.4, None, 72.5, _T2),
            Result(224, _SCALED, 84.1, None, 73.9, _T2),
        ),
    ),
    "vit_b18x2": Figures(
        source=_T3,
        parameters="256.7",
        flops={224: "52.5"},
        drop_path=_DROP_PATH["b"],
        results=(
            Result(224, _PLAIN, 83.3, None, 72.4, _T2),
            Result(224, _PLAIN_SCALED, 83.8, None, 73.3, _T2),
            Result(224, _LONG, 83.4, None, 73.1, _T2),
            Result(224, _SCALED, 84.1, None, 73.5, _T2),
        ),
    ),
    "vit_l24": Figures(
        source=_T1,
        parameters="304.4",
        flops={224: "61.6"},
        drop_path=_DROP_PATH["l"],
        results=(
            Result(224, _PLAIN, 83.0, 87.9, 72.4, _REAL),
            Result(224, _PLAIN_SCALED, 83.4, None, 73.3, _T3),
            Result(224, _LONG, 83.3, 87.7, 72.5, _T64),
            Result(224, _SCALED, 84.0, 88.3, 73.7, _REAL),
            *_at_384((85.5, 75.5), (85.5, 75.4), (85.2, 75.2), (85.4, 75.6), (85.3, 75.1), (85.1, 75.0)),
        ),
        contradictions=("Thesis table 6.4 prints 73.8 on V2 for the 400-epoch training with LayerScale.",),
        doubts={"parameters": "304.4 is the count with LayerScale; without it the count is 304.33."},
    ),
}
