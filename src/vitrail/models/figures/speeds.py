"""Published throughput and peak memory of inference, by the name of the model."""

from vitrail.models.figures.record import Speed

_T31 = "thesis table 3.1"
_T35 = "thesis table 3.5"
_T41 = "thesis table 4.1"
_T51 = "thesis table 5.1"
_T52 = "thesis table 5.2"
_T67 = "thesis table 6.7"
_T310 = "thesis table 3.10"
_C3 = "CaiT table 3"
_V1, _V3, _V4 = "Three things table 1", "Three things table 3", "Three things table 4"
_V13 = "Three things tables 1 and 3"

SPEEDS: dict[str, tuple[Speed, ...]] = {
    "deit_tiny": (
        Speed(224, "2536.5", None, "c", _T35),
        Speed(224, "2536", None, "c", _T31),
    ),
    "deit_small": (
        Speed(224, "1891", "987", "a", _T51),
        Speed(224, "940.4", None, "c", _T35),
        Speed(224, "940.4", "217.2", "d", _T41),
        Speed(224, "940", None, "c", _T31),
    ),
    "deit_base": (
        Speed(224, "831", "2078", "a", _T51),
        Speed(224, "292.3", None, "c", _T35),
        Speed(224, "292.3", "573.7", "d", _T41),
        Speed(224, "292", None, "c", _T31),
        Speed(224, "291.05", None, "e", _T310),
        Speed(160, "609.31", None, "e", _T310),
        Speed(320, "134.13", None, "e", _T310),
        Speed(384, "85.9", None, "c", _T35),
        Speed(384, "85.87", None, "e", _T310),
    ),
    "deit_tiny_distilled": (Speed(224, "2529.5", None, "c", _T35),),
    "deit_small_distilled": (Speed(224, "936.2", None, "c", _T35),),
    "deit_base_distilled": (
        Speed(224, "290.9", None, "c", _T35),
        Speed(384, "85.8", None, "c", _T35),
    ),
    "deit3_small": (
        Speed(224, "1891", "987", "a", _T67),
        Speed(384, "424", "4569", "a", _T67),
    ),
    "deit3_base": (
        Speed(224, "831", "2078", "a", _T67),
        Speed(384, "190", "8956", "a", _T67),
    ),
    "deit3_large": (
        Speed(224, "277", "3789", "a", _T67),
        Speed(384, "67", "12866", "a", _T67),
    ),
    "deit3_huge": (Speed(224, "112", "6984", "a", _T67),),
    "vit_ti12": (Speed(224, "3796", None, "e", _V1),),
    "vit_s12": (Speed(224, "1827", None, "e", _V1),),
    "vit_b12": (Speed(224, "799", "2077", "e", _V13),),
    "vit_l24": (Speed(224, "277", "3788", "e", _V13),),
    "vit_s48": (Speed(224, None, "1361", "e", _V3),),
    "vit_s24x2": (Speed(224, None, "1433", "e", _V3),),
    "vit_b36": (Speed(224, None, "3071", "e", _V3),),
    "vit_b18x2": (
        Speed(224, None, "3217", "e", _V3),
        Speed(224, "61", None, "f", _V4),
        Speed(224, "286", None, "g", _V4),
    ),
    "vit_s18x2": (
        Speed(224, "61", None, "f", _V4),
        Speed(224, "647", None, "g", _V4),
    ),
    "cait_xxs24": (
        Speed(224, "1012.8", "403", "b", _C3),
        Speed(384, "182.3", "2126", "b", _C3),
    ),
    "cait_xxs36": (
        Speed(224, "680.9", "434", "b", _C3),
        Speed(384, "122.0", "2156", "b", _C3),
    ),
    "cait_xs24": (
        Speed(224, "737.6", "614", "b", _C3),
        Speed(384, "134.8", "3130", "b", _C3),
        Speed(224, "447.6", "245.5", "d", _T41),
    ),
    "cait_xs36": (
        Speed(224, "496.7", "682", "b", _C3),
        Speed(384, "90.2", "3198", "b", _C3),
    ),
    "cait_s24": (
        Speed(224, "573.6", "860", "b", _C3),
        Speed(384, "104.1", "4165", "b", _C3),
    ),
    "cait_s36": (
        Speed(224, "386.6", "983", "b", _C3),
        Speed(384, "69.8", "4287", "b", _C3),
    ),
    "cait_s48": (
        Speed(224, "291.5", "1106", "b", _C3),
        Speed(384, "52.5", "4410", "b", _C3),
    ),
    "cait_m24": (
        Speed(224, "262.9", "2165", "b", _C3),
        Speed(384, "38.3", "8634", "b", _C3),
    ),
    "cait_m36": (
        Speed(224, "176.8", "2661", "b", _C3),
        Speed(384, "25.6", "9128", "b", _C3),
    ),
    "cait_m48": (Speed(448, "5.4", "5477.8", "d", _T41),),
    "resmlp_s12": (Speed(224, "1415.1", "179.5", "d", _T41),),
    "resmlp_s24": (
        Speed(224, "1681", "844", "a", _T51),
        Speed(224, "715.4", "235.3", "d", _T41),
    ),
    "resmlp_b24": (
        Speed(224, "1120", "930", "a", _T51),
        Speed(224, "231.3", "663.0", "d", _T41),
    ),
    "patchconvnet_s60": (
        Speed(224, "1125", "1321", "a", _T51),
        Speed(224, "1129", "1322", "a", _T52),
        Speed(288, "692", "2091", "a", _T52),
        Speed(384, "388", "3604", "a", _T52),
        Speed(512, "216", "6296", "a", _T52),
    ),
    "patchconvnet_s120": (Speed(224, "580", "1450", "a", _T51),),
    "patchconvnet_b60": (
        Speed(224, "541", "2790", "a", _T51),
        Speed(224, "547", "2794", "a", _T52),
        Speed(288, "328", "4235", "a", _T52),
        Speed(384, "185", "7067", "a", _T52),
    ),
    "patchconvnet_l60": (
        Speed(224, "394", "3913", "a", _T52),
        Speed(288, "237", "5801", "a", _T52),
        Speed(384, "132", "9506", "a", _T52),
    ),
    "patchconvnet_b120": (
        Speed(224, "280", "3314", "a", _T51),
        Speed(224, "280", "3313", "a", _T52),
        Speed(288, "169", "4752", "a", _T52),
        Speed(384, "96", "7587", "a", _T52),
    ),
    "patchconvnet_l120": (
        Speed(224, "204", "4805", "a", _T52),
        Speed(288, "123", "6693", "a", _T52),
        Speed(384, "68", "10409", "a", _T52),
    ),
    "timm/resnet50": (
        Speed(224, "2587", "2182", "a", _T51),
        Speed(224, "1226.1", None, "c", _T35),
    ),
    "timm/regnety_040": (
        Speed(224, "1779", "3041", "a", _T51),
        Speed(224, "1156.7", None, "c", _T35),
        Speed(224, "861.0", "568.4", "d", _T41),
    ),
    "timm/regnety_080": (
        Speed(224, "1158", "3939", "a", _T51),
        Speed(224, "591.6", None, "c", _T35),
        Speed(224, "534.4", "841.6", "d", _T41),
    ),
    "timm/regnety_160": (
        Speed(224, "714", "5204", "a", _T51),
        Speed(224, "334.7", None, "c", _T35),
        Speed(224, "334.7", "1329.6", "d", _T41),
    ),
    "timm/resnet101": (
        Speed(224, "1586", "2269", "a", _T67),
        Speed(224, "753.6", None, "c", _T35),
    ),
    "timm/resnet152": (
        Speed(224, "1122", "2359", "a", _T67),
        Speed(224, "526.4", None, "c", _T35),
    ),
    "timm/pit_s_224": (Speed(224, "1809", "3293", "a", _T67),),
    "timm/pit_b_224": (Speed(224, "615", "7564", "a", _T67),),
    "timm/swin_small_patch4_window7_224": (Speed(224, "718", "3470", "a", _T67),),
    "timm/swin_base_patch4_window7_224": (Speed(224, "532", "4695", "a", _T67),),
}
