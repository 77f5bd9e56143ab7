"""Published figures of ResMLP (thesis tables 4.1-4.3, and the authors' page)."""

from vitrail.models.figures.record import Figures, Result, Variant

# Thesis section 4.3.1 says "as in chapter 3". The authors, asked, name 0.05 for 12 layers, 0.1 for 24 and CaiT's rule
# of depth (issues 106 and 117 of facebookresearch/deit), which gives 0.2 for 36.
_DROP_PATH = {12: 0.05, 24: 0.1, 36: 0.2}

_PLAIN = "ImageNet-1k, 400 epochs"
_DISTILLED = "ImageNet-1k, distilled"
_DINO = "ImageNet-1k, DINO, then labels"
_T42 = "thesis table 4.2"
_T43 = "thesis table 4.3"

RESMLP: dict[str, Figures] = {
    "resmlp_s12": Figures(
        source=_T43,
        parameters="15.4",
        flops={224: "3.0"},
        drop_path=_DROP_PATH[12],
        layer_scale=0.1,
        results=(
            Result(224, _PLAIN, 76.6, 83.3, 64.4, _T43),
            Result(224, _DINO, 76.5, 83.6, 64.5, _T43),
            Result(224, _DISTILLED, 77.8, 84.6, 66.0, _T43),
        ),
        variants=(
            Variant("LayerNorm instead of Aff", "15.4", "3.0", 77.7, 84.1, 65.7, _T43),
            Variant("class-MLP instead of average pooling", "17.7", "3.0", 77.5, 84.0, 66.1, _T43),
            Variant("no communication between patches", "14.9", "2.8", 56.5, 63.4, 43.1, _T43),
            Variant("MLP across patches", "18.6", "4.3", 77.3, 84.0, 65.7, _T43),
            Variant("3x3 convolution across patches", "30.8", "6.0", 77.3, 84.4, 65.7, _T43),
            Variant("3x3 depth-wise convolution across patches", "14.9", "2.8", 76.3, 83.4, 64.6, _T43),
            Variant("3x3 depth-separable convolution across patches", "16.7", "3.2", 77.0, 84.0, 65.5, _T43),
            Variant("old-fashioned training (SGD, 90 epochs)", "15.4", "3.0", 69.2, 76.0, 56.1, _T43),
            Variant("DINO, linear classifier", "15", "3.0", 67.5, None, None, _T42),
            Variant("DINO, nearest neighbours", "15", "3.0", 62.6, None, None, _T42),
        ),
        contradictions=(
            "Thesis table 5.1 calls the depth-separable variant (16.7 million parameters) plainly 'conv3x3'; it prints "
            "3217 images a second and 763 MB for it.",
        ),
    ),
    "resmlp_s12_p14": Figures(
        source=_T43,
        parameters="15.6",
        flops={224: "4.0"},
        drop_path=_DROP_PATH[12],
        layer_scale=0.1,
        results=(Result(224, _PLAIN, 76.9, 83.7, 65.0, _T43),),
    ),
    "resmlp_s12_p8": Figures(
        source=_T43,
        parameters="22.1",
        flops={224: "14.0"},
        drop_path=_DROP_PATH[12],
        layer_scale=0.1,
        results=(Result(224, _PLAIN, 79.1, 85.2, 67.2, _T43),),
    ),
    "resmlp_s24": Figures(
        source=_T43,
        parameters="30.0",
        flops={224: "6.0"},
        drop_path=_DROP_PATH[24],
        layer_scale=1e-5,
        results=(
            Result(224, _PLAIN, 79.4, 85.3, 67.9, _T43),
            Result(224, _DINO, 79.9, 85.9, 68.6, _T43),
            Result(224, _DISTILLED, 80.8, 86.6, 69.8, _T43),
        ),
        variants=(
            Variant("DINO, linear classifier", "30", "6.0", 72.8, None, None, _T42),
            Variant("DINO, nearest neighbours", "30", "6.0", 69.4, None, None, _T42),
        ),
    ),
    "resmlp_s36": Figures(
        source="thesis table 4.6 (segmentation; no size, cost or ImageNet accuracy)",
        drop_path=_DROP_PATH[36],
        layer_scale=1e-6,
        results=(Result(224, _DISTILLED, 81.1, None, None, "the authors' page of ResMLP"),),
        contradictions=("The authors' page prints B24's 116 million parameters and 23 billion multiply-adds for it.",),
    ),
    "resmlp_b24": Figures(
        source=_T43,
        parameters="115.7",
        flops={224: "23.0"},
        drop_path=_DROP_PATH[24],
        layer_scale=1e-5,
        results=(Result(224, _PLAIN, 81.0, 86.1, 69.0, _T43),),
        contradictions=(
            "Thesis tables 5.1 and 6.7 print 116.0 million parameters, a rounded 115.7 with a digit too many.",
        ),
    ),
    "resmlp_b24_p8": Figures(
        source=_T43,
        parameters="129.1",
        flops={224: "100.2"},
        drop_path=_DROP_PATH[24],
        layer_scale=1e-5,
        results=(
            Result(224, _PLAIN, 81.0, 85.7, 68.6, _T43),
            Result(224, _DISTILLED, 83.6, 88.4, 73.4, _T43),
            Result(224, "ImageNet-21k, 60 epochs -> 1k", 84.4, 88.9, 74.2, _T43),
        ),
    ),
}
