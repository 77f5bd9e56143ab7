"""Published figures of semantic segmentation with UperNet on ADE20k: mean intersection over union, size and cost."""

from vitrail.models.figures.record import Score

_MIOU = "% mIoU"
_T46, _T53, _T612 = "thesis table 4.6", "thesis table 5.3", "thesis table 6.12"
UPERNET = "UperNet on ADE20k"


def _scales(source: str, single: float, multi: float, *, start: str = "") -> tuple[Score, ...]:
    return (
        Score(f"{UPERNET}{start}, single scale", single, _MIOU, source),
        Score(f"{UPERNET}{start}, multi-scale", multi, _MIOU, source),
    )


def _size(source: str, parameters: float, operations: float) -> tuple[Score, ...]:
    """Millions of parameters, and 1e9 multiply-adds at 512 x 2048 pixels without the products of self-attention."""
    return (
        Score(f"{UPERNET}, M parameters", parameters, "M parameters", source),
        Score(f"{UPERNET}, G multiply-adds", operations, "G multiply-adds", source),
    )


def _small_crops(value: float) -> Score:
    return Score(f"{UPERNET}, crops of 224", value, _MIOU, _T46)


_21K = " from ImageNet-21k"

SEGMENTATION: dict[str, tuple[Score, ...]] = {
    "deit_small": (_small_crops(40.5),),
    "deit_base": (_small_crops(42.3),),
    "resmlp_s12": (_small_crops(35.9),),
    "resmlp_s24": (_small_crops(39.1),),
    "resmlp_s36": (_small_crops(39.1),),
    "resmlp_b24": (_small_crops(42.5),),
    "patchconvnet_s60": (
        *_size(_T53, 57.1, 952.0),
        *_scales(_T53, 46.0, 46.9),
        *_scales(_T53, 48.4, 49.3, start=_21K),
    ),
    "patchconvnet_b60": (
        *_size(_T53, 140.6, 1258.0),
        *_scales(_T53, 48.1, 48.6),
        *_scales(_T53, 50.5, 51.1, start=_21K),
    ),
    "patchconvnet_b120": (
        *_size(_T53, 229.8, 1550.0),
        *_scales(_T53, 49.4, 50.3),
        *_scales(_T53, 51.9, 52.8, start=_21K),
    ),
    "patchconvnet_l120": (*_size(_T53, 383.7, 2086.0), *_scales(_T53, 52.2, 52.9, start=_21K)),
    "deit3_tiny": (*_size(_T612, 10.9, 148.0), *_scales(_T612, 40.1, 41.8)),
    "deit3_small": (*_size(_T612, 41.7, 588.0), *_scales(_T612, 45.6, 46.8)),
    "deit3_base": (
        *_size(_T612, 127.7, 1283.0),
        *_scales(_T612, 49.3, 50.2),
        *_scales(_T612, 51.8, 52.8, start=_21K),
        *_scales(_T612, 53.4, 54.1, start=f"{_21K} at 384"),
    ),
    "deit3_large": (
        *_size(_T612, 353.6, 2231.0),
        *_scales(_T612, 51.5, 52.0),
        *_scales(_T612, 53.8, 54.7, start=_21K),
        *_scales(_T612, 54.6, 55.6, start=f"{_21K} at 320"),
    ),
}
