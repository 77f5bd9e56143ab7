"""Every training procedure of the papers by name: one file a paper, and the one table of them all.

Nothing here imports torch. A recipe is data: functions return a frozen `Recipe`, and do nothing else.
"""

import difflib
import fnmatch
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from vitrail.recipes import (
    beit,
    cait,
    deit,
    deit3,
    dino,
    features,
    grafit,
    mask_rcnn,
    patchconvnet,
    resmlp,
    resnet,
    small,
    three_things,
    transfer,
    translation,
    upernet,
    vit,
)
from vitrail.recipes.published import figure_of, fill_in
from vitrail.settings.own import is_own, load_own
from vitrail.settings.recipe import Recipe
from vitrail.settings.text import read_recipe

RECIPE_EXTENSIONS = (".yaml", ".yml")


class Entry(NamedTuple):
    """One row of the table."""

    function: Callable[..., Recipe]
    arguments: tuple[str, ...] = ()

    @property
    def top1(self) -> float | None:
        """What is published, in percent, on the data and at the size the recipe ends with; None: nothing is."""
        figure = figure_of(self.function, self.arguments)
        return None if figure is None else figure.value

    @property
    def summary(self) -> str:
        """The first line of what the function says of itself."""
        return (self.function.__doc__ or "").partition("\n")[0].rstrip(".")

    @property
    def about(self) -> str:
        """What the function says of itself: what it trains, its command, cost, published result and ours."""
        rows = {name: entry for name, entry in RECIPES.items() if entry.function is self.function}
        published = {name: figure_of(entry.function, entry.arguments) for name, entry in rows.items()}
        return fill_in(inspect.cleandoc(self.function.__doc__ or ""), published)


RECIPES: Mapping[str, Entry] = {
    "small": Entry(small.small),
    "small_photos": Entry(small.small_photos),
    "small_photos_scratch": Entry(small.small_photos_scratch),
    "fine_tune": Entry(small.fine_tune),
    # Translation
    "translate_small": Entry(translation.translate_small),
    "resmlp_wmt14_en_de": Entry(translation.resmlp_wmt14, ("de",)),
    "resmlp_wmt14_en_de_12": Entry(translation.resmlp_wmt14, ("de", "12")),
    "resmlp_wmt14_en_fr": Entry(translation.resmlp_wmt14, ("fr",)),
    "resmlp_wmt14_en_fr_12": Entry(translation.resmlp_wmt14, ("fr", "12")),
    "transformer_wmt14_en_de": Entry(translation.transformer_wmt14, ("de",)),
    "transformer_wmt14_en_fr": Entry(translation.transformer_wmt14, ("fr",)),
    # DeiT
    "deit_tiny": Entry(deit.deit, ("tiny",)),
    "deit_small": Entry(deit.deit, ("small",)),
    "deit_base": Entry(deit.deit, ("base",)),
    "deit_base_384": Entry(deit.deit_base_384),
    "deit_tiny_distilled": Entry(deit.deit_distilled, ("tiny",)),
    "deit_tiny_distilled_1000": Entry(deit.deit_distilled, ("tiny", "1000")),
    "deit_small_distilled": Entry(deit.deit_distilled, ("small",)),
    "deit_small_distilled_1000": Entry(deit.deit_distilled, ("small", "1000")),
    "deit_base_distilled": Entry(deit.deit_distilled, ("base",)),
    "deit_base_distilled_1000": Entry(deit.deit_distilled, ("base", "1000")),
    "deit_base_distilled_384": Entry(deit.deit_base_distilled_384),
    "deit_base_distilled_1000_384": Entry(deit.deit_base_distilled_384, ("1000",)),
    "deit_regnety_040": Entry(deit.deit_regnet, ("040",)),
    "deit_regnety_080": Entry(deit.deit_regnet, ("080",)),
    "deit_regnety_120": Entry(deit.deit_regnet, ("120",)),
    "deit_regnety_160": Entry(deit.deit_regnet, ("160",)),
    "deit_s12_layer_scale": Entry(deit.deit_layer_scale, ("12",)),
    "deit_s18_layer_scale": Entry(deit.deit_layer_scale, ("18",)),
    "deit_s24_layer_scale": Entry(deit.deit_layer_scale, ("24",)),
    "deit_s36_layer_scale": Entry(deit.deit_layer_scale, ("36",)),
    "deit_s12_layer_scale_fixed": Entry(deit.deit_layer_scale_fixed, ("12",)),
    "deit_s18_layer_scale_fixed": Entry(deit.deit_layer_scale_fixed, ("18",)),
    "deit_s24_layer_scale_fixed": Entry(deit.deit_layer_scale_fixed, ("24",)),
    "deit_s36_layer_scale_fixed": Entry(deit.deit_layer_scale_fixed, ("36",)),
    # CaiT
    "cait_xxs24": Entry(cait.cait, ("xxs24",)),
    "cait_xxs36": Entry(cait.cait, ("xxs36",)),
    "cait_xs24": Entry(cait.cait, ("xs24",)),
    "cait_xs36": Entry(cait.cait, ("xs36",)),
    "cait_s24": Entry(cait.cait, ("s24",)),
    "cait_s36": Entry(cait.cait, ("s36",)),
    "cait_s48": Entry(cait.cait, ("s48",)),
    "cait_m24": Entry(cait.cait, ("m24",)),
    "cait_m36": Entry(cait.cait, ("m36",)),
    "cait_m48": Entry(cait.cait, ("m48",)),
    "cait_xxs24_384": Entry(cait.cait_384, ("xxs24",)),
    "cait_xxs36_384": Entry(cait.cait_384, ("xxs36",)),
    "cait_xs24_384": Entry(cait.cait_384, ("xs24",)),
    "cait_xs36_384": Entry(cait.cait_384, ("xs36",)),
    "cait_s24_384": Entry(cait.cait_384, ("s24",)),
    "cait_s36_384": Entry(cait.cait_384, ("s36",)),
    "cait_s48_384": Entry(cait.cait_384, ("s48",)),
    "cait_m24_384": Entry(cait.cait_384, ("m24",)),
    "cait_m36_384": Entry(cait.cait_384, ("m36",)),
    "cait_xxs24_distilled": Entry(cait.cait_distilled, ("xxs24",)),
    "cait_xxs36_distilled": Entry(cait.cait_distilled, ("xxs36",)),
    "cait_xs24_distilled": Entry(cait.cait_distilled, ("xs24",)),
    "cait_xs36_distilled": Entry(cait.cait_distilled, ("xs36",)),
    "cait_s24_distilled": Entry(cait.cait_distilled, ("s24",)),
    "cait_s36_distilled": Entry(cait.cait_distilled, ("s36",)),
    "cait_s48_distilled": Entry(cait.cait_distilled, ("s48",)),
    "cait_m24_distilled": Entry(cait.cait_distilled, ("m24",)),
    "cait_m36_distilled": Entry(cait.cait_distilled, ("m36",)),
    "cait_m48_distilled": Entry(cait.cait_distilled, ("m48",)),
    "cait_xxs24_distilled_384": Entry(cait.cait_distilled_fine_tuned, ("xxs24",)),
    "cait_xxs36_distilled_384": Entry(cait.cait_distilled_fine_tuned, ("xxs36",)),
    "cait_xs24_distilled_384": Entry(cait.cait_distilled_fine_tuned, ("xs24",)),
    "cait_xs36_distilled_384": Entry(cait.cait_distilled_fine_tuned, ("xs36",)),
    "cait_s24_distilled_384": Entry(cait.cait_distilled_fine_tuned, ("s24",)),
    "cait_s36_distilled_384": Entry(cait.cait_distilled_fine_tuned, ("s36",)),
    "cait_s48_distilled_384": Entry(cait.cait_distilled_fine_tuned, ("s48",)),
    "cait_m24_distilled_384": Entry(cait.cait_distilled_fine_tuned, ("m24",)),
    "cait_m36_distilled_384": Entry(cait.cait_distilled_fine_tuned, ("m36",)),
    "cait_m36_distilled_448": Entry(cait.cait_distilled_fine_tuned, ("m36", "448")),
    "cait_m48_distilled_448": Entry(cait.cait_distilled_fine_tuned, ("m48", "448")),
    # ResMLP
    "resmlp_s12": Entry(resmlp.resmlp, ("s12",)),
    "resmlp_s24": Entry(resmlp.resmlp, ("s24",)),
    "resmlp_s36": Entry(resmlp.resmlp, ("s36",)),
    "resmlp_b24": Entry(resmlp.resmlp, ("b24",)),
    "resmlp_s12_p14": Entry(resmlp.resmlp, ("s12_p14",)),
    "resmlp_s12_p8": Entry(resmlp.resmlp, ("s12_p8",)),
    "resmlp_b24_p8": Entry(resmlp.resmlp, ("b24_p8",)),
    "resmlp_s12_distilled": Entry(resmlp.resmlp_distilled, ("s12",)),
    "resmlp_s24_distilled": Entry(resmlp.resmlp_distilled, ("s24",)),
    "resmlp_s36_distilled": Entry(resmlp.resmlp_distilled, ("s36",)),
    "resmlp_b24_p8_distilled": Entry(resmlp.resmlp_distilled, ("b24_p8",)),
    "resmlp_b24_p8_21k": Entry(resmlp.resmlp_21k),
    "resmlp_b24_p8_21k_to_1k": Entry(resmlp.resmlp_21k_to_1k),
    "resmlp_s12_layer_norm": Entry(resmlp.resmlp_variant, ("layer_norm",)),
    "resmlp_s12_class_mlp": Entry(resmlp.resmlp_variant, ("class_mlp",)),
    "resmlp_s12_none": Entry(resmlp.resmlp_variant, ("none",)),
    "resmlp_s12_mlp": Entry(resmlp.resmlp_variant, ("mlp",)),
    "resmlp_s12_conv": Entry(resmlp.resmlp_variant, ("conv",)),
    "resmlp_s12_depthwise": Entry(resmlp.resmlp_variant, ("depthwise",)),
    "resmlp_s12_separable": Entry(resmlp.resmlp_variant, ("separable",)),
    # PatchConvNet
    "patchconvnet_s20": Entry(patchconvnet.patchconvnet, ("s20",)),
    "patchconvnet_s36": Entry(patchconvnet.patchconvnet, ("s36",)),
    "patchconvnet_s60": Entry(patchconvnet.patchconvnet, ("s60",)),
    "patchconvnet_s60_multi": Entry(patchconvnet.patchconvnet, ("s60_multi",)),
    "patchconvnet_s120": Entry(patchconvnet.patchconvnet, ("s120",)),
    "patchconvnet_b36": Entry(patchconvnet.patchconvnet, ("b36",)),
    "patchconvnet_b60": Entry(patchconvnet.patchconvnet, ("b60",)),
    "patchconvnet_b120": Entry(patchconvnet.patchconvnet, ("b120",)),
    "patchconvnet_s60_384": Entry(patchconvnet.patchconvnet_384, ("s60",)),
    "patchconvnet_s120_384": Entry(patchconvnet.patchconvnet_384, ("s120",)),
    "patchconvnet_b60_384": Entry(patchconvnet.patchconvnet_384, ("b60",)),
    "patchconvnet_b120_384": Entry(patchconvnet.patchconvnet_384, ("b120",)),
    "patchconvnet_s60_21k": Entry(patchconvnet.patchconvnet_21k, ("s60",)),
    "patchconvnet_b60_21k": Entry(patchconvnet.patchconvnet_21k, ("b60",)),
    "patchconvnet_b120_21k": Entry(patchconvnet.patchconvnet_21k, ("b120",)),
    "patchconvnet_l60_21k": Entry(patchconvnet.patchconvnet_21k, ("l60",)),
    "patchconvnet_l120_21k": Entry(patchconvnet.patchconvnet_21k, ("l120",)),
    "patchconvnet_s60_21k_to_1k": Entry(patchconvnet.patchconvnet_21k_to_1k, ("s60",)),
    "patchconvnet_b60_21k_to_1k": Entry(patchconvnet.patchconvnet_21k_to_1k, ("b60",)),
    "patchconvnet_b120_21k_to_1k": Entry(patchconvnet.patchconvnet_21k_to_1k, ("b120",)),
    "patchconvnet_l60_21k_to_1k": Entry(patchconvnet.patchconvnet_21k_to_1k, ("l60",)),
    "patchconvnet_l120_21k_to_1k": Entry(patchconvnet.patchconvnet_21k_to_1k, ("l120",)),
    "patchconvnet_s60_21k_to_1k_384": Entry(patchconvnet.patchconvnet_21k_to_1k_384, ("s60",)),
    "patchconvnet_b60_21k_to_1k_384": Entry(patchconvnet.patchconvnet_21k_to_1k_384, ("b60",)),
    "patchconvnet_b120_21k_to_1k_384": Entry(patchconvnet.patchconvnet_21k_to_1k_384, ("b120",)),
    "patchconvnet_l60_21k_to_1k_384": Entry(patchconvnet.patchconvnet_21k_to_1k_384, ("l60",)),
    "patchconvnet_l120_21k_to_1k_384": Entry(patchconvnet.patchconvnet_21k_to_1k_384, ("l120",)),
    "patchconvnet_s60_21k_to_1k_288": Entry(
        patchconvnet.patchconvnet_21k_chain,
        (
            "s60",
            "288",
        ),
    ),
    "patchconvnet_b60_21k_to_1k_288": Entry(
        patchconvnet.patchconvnet_21k_chain,
        (
            "b60",
            "288",
        ),
    ),
    "patchconvnet_b120_21k_to_1k_288": Entry(
        patchconvnet.patchconvnet_21k_chain,
        (
            "b120",
            "288",
        ),
    ),
    "patchconvnet_l60_21k_to_1k_288": Entry(
        patchconvnet.patchconvnet_21k_chain,
        (
            "l60",
            "288",
        ),
    ),
    "patchconvnet_l120_21k_to_1k_288": Entry(
        patchconvnet.patchconvnet_21k_chain,
        (
            "l120",
            "288",
        ),
    ),
    "patchconvnet_s60_21k_to_1k_512": Entry(
        patchconvnet.patchconvnet_21k_chain,
        (
            "s60",
            "512",
        ),
    ),
    "patchconvnet_s60_per_class": Entry(patchconvnet.patchconvnet_per_class),
    # Mask R-CNN
    "detect_small": Entry(mask_rcnn.detect_small),
    "mask_rcnn_patchconvnet_s60": Entry(mask_rcnn.mask_rcnn, ("s60",)),
    "mask_rcnn_patchconvnet_s120": Entry(mask_rcnn.mask_rcnn, ("s120",)),
    # ResNet
    "a1": Entry(resnet.a1),
    "a2": Entry(resnet.a2),
    "a3": Entry(resnet.a3),
    "t2": Entry(resnet.t2),
    "resnet_old": Entry(resnet.resnet_old),
    "resnet_strong": Entry(resnet.resnet_strong),
    "resmlp_s12_old": Entry(resnet.resmlp_s12_old),
    # ViT before DeiT III
    "vit_original": Entry(vit.vit_original),
    "steiner": Entry(vit.steiner),
    "three_things_300_ti12": Entry(three_things.three_things_300, ("ti12",)),
    "three_things_300_s12": Entry(three_things.three_things_300, ("s12",)),
    "three_things_300_b12": Entry(three_things.three_things_300, ("b12",)),
    "three_things_300_l24": Entry(three_things.three_things_300, ("l24",)),
    "three_things_300_b36": Entry(three_things.three_things_300, ("b36",)),
    "three_things_300_b18x2": Entry(three_things.three_things_300, ("b18x2",)),
    "three_things_300_s48": Entry(three_things.three_things_300, ("s48",)),
    "three_things_300_s24x2": Entry(three_things.three_things_300, ("s24x2",)),
    "three_things_300_b13": Entry(three_things.three_things_300, ("b13",)),
    "three_things_300_b12_linear_bn": Entry(three_things.three_things_300, ("b12_linear_bn",)),
    "three_things_300_b12_linear_gelu": Entry(three_things.three_things_300, ("b12_linear_gelu",)),
    "three_things_300_b12_linear_bn_gelu": Entry(three_things.three_things_300, ("b12_linear_bn_gelu",)),
    "three_things_300_b12_conv": Entry(three_things.three_things_300, ("b12_conv",)),
    "three_things_300_b12_conv_ln": Entry(three_things.three_things_300, ("b12_conv_ln",)),
    "three_things_300_b12_hmlp": Entry(three_things.three_things_300, ("b12_hmlp",)),
    "three_things_300_b12_hmlp_ln": Entry(three_things.three_things_300, ("b12_hmlp_ln",)),
    "three_things_300_scaled_l24": Entry(three_things.three_things_300_scaled, ("l24",)),
    "three_things_300_scaled_b36": Entry(three_things.three_things_300_scaled, ("b36",)),
    "three_things_300_scaled_b18x2": Entry(three_things.three_things_300_scaled, ("b18x2",)),
    "three_things_400_plain_l24": Entry(three_things.three_things_400_plain, ("l24",)),
    "three_things_400_plain_b36": Entry(three_things.three_things_400_plain, ("b36",)),
    "three_things_400_plain_b18x2": Entry(three_things.three_things_400_plain, ("b18x2",)),
    "three_things_400_ti12": Entry(three_things.three_things_400, ("ti12",)),
    "three_things_400_s12": Entry(three_things.three_things_400, ("s12",)),
    "three_things_400_b12": Entry(three_things.three_things_400, ("b12",)),
    "three_things_400_l24": Entry(three_things.three_things_400, ("l24",)),
    "three_things_400_b36": Entry(three_things.three_things_400, ("b36",)),
    "three_things_400_b18x2": Entry(three_things.three_things_400, ("b18x2",)),
    "three_things_384_s12": Entry(three_things.three_things_384, ("s12", "all")),
    "three_things_384_s12_attention": Entry(three_things.three_things_384, ("s12", "attention")),
    "three_things_384_s12_ffn": Entry(three_things.three_things_384, ("s12", "ffn")),
    "three_things_384_b12": Entry(three_things.three_things_384, ("b12", "all")),
    "three_things_384_b12_attention": Entry(three_things.three_things_384, ("b12", "attention")),
    "three_things_384_b12_ffn": Entry(three_things.three_things_384, ("b12", "ffn")),
    "three_things_384_l24": Entry(three_things.three_things_384, ("l24", "all")),
    "three_things_384_l24_attention": Entry(three_things.three_things_384, ("l24", "attention")),
    "three_things_384_l24_ffn": Entry(three_things.three_things_384, ("l24", "ffn")),
    # Masked images; BeiT with the stems of Three things
    "tokenizer": Entry(beit.tokenizer),
    "masked_small": Entry(beit.masked_small),
    "masked_small_labels": Entry(beit.masked_small_labels),
    "beit_vit_b12": Entry(beit.beit, ("vit_b12",)),
    "beit_vit_b12_linear_bn": Entry(beit.beit, ("vit_b12_linear_bn",)),
    "beit_vit_b12_linear_gelu": Entry(beit.beit, ("vit_b12_linear_gelu",)),
    "beit_vit_b12_linear_bn_gelu": Entry(beit.beit, ("vit_b12_linear_bn_gelu",)),
    "beit_vit_b12_conv": Entry(beit.beit, ("vit_b12_conv",)),
    "beit_vit_b12_conv_ln": Entry(beit.beit, ("vit_b12_conv_ln",)),
    "beit_vit_b12_hmlp": Entry(beit.beit, ("vit_b12_hmlp",)),
    "beit_vit_b12_hmlp_ln": Entry(beit.beit, ("vit_b12_hmlp_ln",)),
    "beit_vit_b13": Entry(beit.beit, ("vit_b13",)),
    "beit_vit_b12_1k": Entry(beit.beit_fine_tuned, ("vit_b12",)),
    "beit_vit_b12_linear_bn_1k": Entry(beit.beit_fine_tuned, ("vit_b12_linear_bn",)),
    "beit_vit_b12_linear_gelu_1k": Entry(beit.beit_fine_tuned, ("vit_b12_linear_gelu",)),
    "beit_vit_b12_linear_bn_gelu_1k": Entry(beit.beit_fine_tuned, ("vit_b12_linear_bn_gelu",)),
    "beit_vit_b12_conv_1k": Entry(beit.beit_fine_tuned, ("vit_b12_conv",)),
    "beit_vit_b12_conv_ln_1k": Entry(beit.beit_fine_tuned, ("vit_b12_conv_ln",)),
    "beit_vit_b12_hmlp_1k": Entry(beit.beit_fine_tuned, ("vit_b12_hmlp",)),
    "beit_vit_b12_hmlp_ln_1k": Entry(beit.beit_fine_tuned, ("vit_b12_hmlp_ln",)),
    "beit_vit_b13_1k": Entry(beit.beit_fine_tuned, ("vit_b13",)),
    # DeiT III
    "deit3_tiny_400": Entry(deit3.deit3_400, ("tiny",)),
    "deit3_small_400": Entry(deit3.deit3_400, ("small",)),
    "deit3_base_400": Entry(deit3.deit3_400, ("base",)),
    "deit3_large_400": Entry(deit3.deit3_400, ("large",)),
    "deit3_huge_400": Entry(deit3.deit3_400, ("huge",)),
    "deit3_small_800": Entry(deit3.deit3_800, ("small",)),
    "deit3_base_800": Entry(deit3.deit3_800, ("base",)),
    "deit3_large_800": Entry(deit3.deit3_800, ("large",)),
    "deit3_huge_800": Entry(deit3.deit3_800, ("huge",)),
    "deit3_small_300": Entry(deit3.deit3_other, ("small", "300")),
    "deit3_base_300": Entry(deit3.deit3_other, ("base", "300")),
    "deit3_large_300": Entry(deit3.deit3_other, ("large", "300")),
    "deit3_small_600": Entry(deit3.deit3_other, ("small", "600")),
    "deit3_base_600": Entry(deit3.deit3_other, ("base", "600")),
    "deit3_large_600": Entry(deit3.deit3_other, ("large", "600")),
    "deit3_huge_300": Entry(deit3.deit3_other, ("huge", "300")),
    "deit3_base_128_400": Entry(deit3.deit3_low, ("base", "128", "400")),
    "deit3_base_160_400": Entry(deit3.deit3_low, ("base", "160", "400")),
    "deit3_base_192_400": Entry(deit3.deit3_low, ("base", "192", "400")),
    "deit3_base_128_800": Entry(deit3.deit3_low, ("base", "128", "800")),
    "deit3_base_160_800": Entry(deit3.deit3_low, ("base", "160", "800")),
    "deit3_base_192_800": Entry(deit3.deit3_low, ("base", "192", "800")),
    "deit3_large_128_400": Entry(deit3.deit3_low, ("large", "128", "400")),
    "deit3_large_160_400": Entry(deit3.deit3_low, ("large", "160", "400")),
    "deit3_large_192_400": Entry(deit3.deit3_low, ("large", "192", "400")),
    "deit3_large_128_800": Entry(deit3.deit3_low, ("large", "128", "800")),
    "deit3_large_160_800": Entry(deit3.deit3_low, ("large", "160", "800")),
    "deit3_large_192_800": Entry(deit3.deit3_low, ("large", "192", "800")),
    "deit3_huge_126_400": Entry(deit3.deit3_low, ("huge", "126", "400")),
    "deit3_huge_154_400": Entry(deit3.deit3_low, ("huge", "154", "400")),
    "deit3_huge_182_400": Entry(deit3.deit3_low, ("huge", "182", "400")),
    "deit3_huge_126_800": Entry(deit3.deit3_low, ("huge", "126", "800")),
    "deit3_huge_154_800": Entry(deit3.deit3_low, ("huge", "154", "800")),
    "deit3_huge_182_800": Entry(
        deit3.deit3_low,
        (
            "huge",
            "182",
            "800",
        ),
    ),
    "deit3_h52_126_400": Entry(deit3.deit3_billion, ("h52",)),
    "deit3_h26x2_126_400": Entry(deit3.deit3_billion, ("h26x2",)),
    "deit3_small_384": Entry(deit3.deit3_384, ("small",)),
    "deit3_base_384": Entry(deit3.deit3_384, ("base",)),
    "deit3_large_384": Entry(deit3.deit3_384, ("large",)),
    "deit3_small_21k_90": Entry(deit3.deit3_21k_90, ("small",)),
    "deit3_base_21k_90": Entry(deit3.deit3_21k_90, ("base",)),
    "deit3_large_21k_90": Entry(deit3.deit3_21k_90, ("large",)),
    "deit3_huge_21k_90": Entry(deit3.deit3_21k_90, ("huge",)),
    "deit3_small_21k_240": Entry(deit3.deit3_21k_240, ("small",)),
    "deit3_base_21k_240": Entry(deit3.deit3_21k_240, ("base",)),
    "deit3_large_21k_240": Entry(deit3.deit3_21k_240, ("large",)),
    "deit3_small_21k_to_1k": Entry(deit3.deit3_21k_to_1k, ("small",)),
    "deit3_base_21k_to_1k": Entry(deit3.deit3_21k_to_1k, ("base",)),
    "deit3_large_21k_to_1k": Entry(deit3.deit3_21k_to_1k, ("large",)),
    "deit3_huge_21k_to_1k": Entry(deit3.deit3_21k_to_1k, ("huge",)),
    "deit3_small_21k_to_1k_384": Entry(deit3.deit3_21k_to_1k_384, ("small",)),
    "deit3_base_21k_to_1k_384": Entry(deit3.deit3_21k_to_1k_384, ("base",)),
    "deit3_large_21k_to_1k_384": Entry(deit3.deit3_21k_to_1k_384, ("large",)),
    "deit3_small_21k_pipeline": Entry(deit3.deit3_21k_pipeline, ("small",)),
    "deit3_base_21k_pipeline": Entry(deit3.deit3_21k_pipeline, ("base",)),
    "deit3_large_21k_pipeline": Entry(deit3.deit3_21k_pipeline, ("large",)),
    "deit3_huge_21k_pipeline": Entry(deit3.deit3_21k_pipeline, ("huge",)),
    "cait_b12": Entry(deit3.cait_b12),
    # Transfer
    "transfer_cifar10": Entry(transfer.transfer, ("cifar10",)),
    "transfer_cifar100": Entry(transfer.transfer, ("cifar100",)),
    "transfer_flowers": Entry(transfer.transfer, ("flowers",)),
    "transfer_cars": Entry(transfer.transfer, ("cars",)),
    "transfer_inat18": Entry(transfer.transfer, ("inat18",)),
    "transfer_inat19": Entry(transfer.transfer, ("inat19",)),
    "transfer_resnet": Entry(transfer.transfer_resnet),
    "transfer_grafit": Entry(transfer.transfer_grafit),
    "transfer_grafit_384_flowers": Entry(transfer.transfer_grafit_384, ("flowers",)),
    "transfer_grafit_384_cars": Entry(transfer.transfer_grafit_384, ("cars",)),
    "transfer_grafit_384_food101": Entry(transfer.transfer_grafit_384, ("food101",)),
    "transfer_grafit_384_inat18": Entry(transfer.transfer_grafit_384, ("inat18",)),
    "transfer_grafit_384_inat19": Entry(transfer.transfer_grafit_384, ("inat19",)),
    # Without labels: features of a teacher, DINO
    "features_small": Entry(features.features_small),
    "features_deit_small": Entry(features.features_deit_small),
    "dino_small": Entry(dino.dino_small),
    "dino_resmlp_s12": Entry(dino.dino_resmlp, ("s12",)),
    "dino_resmlp_s24": Entry(dino.dino_resmlp, ("s24",)),
    "dino_deit_small": Entry(dino.dino_deit_small),
    "dino_resmlp_s12_labels": Entry(dino.dino_resmlp_labels, ("s12",)),
    "dino_resmlp_s24_labels": Entry(dino.dino_resmlp_labels, ("s24",)),
    # Grafit; on CIFAR-100 with _cifar100
    "grafit_baseline": Entry(grafit.baseline),
    "grafit_baseline_cifar100": Entry(grafit.baseline, ("cifar100",)),
    "grafit_snca": Entry(grafit.snca),
    "grafit_snca_cifar100": Entry(grafit.snca, ("cifar100",)),
    "grafit_snca_plus": Entry(grafit.snca_plus),
    "grafit_snca_plus_cifar100": Entry(grafit.snca_plus, ("cifar100",)),
    "grafit_clusterfit_plus": Entry(grafit.clusterfit_plus),
    "grafit_clusterfit_plus_cifar100": Entry(grafit.clusterfit_plus, ("cifar100",)),
    "grafit_fc": Entry(grafit.grafit, ("imagenet", "linear")),
    "grafit_fc_cifar100": Entry(grafit.grafit, ("cifar100", "linear")),
    "grafit": Entry(grafit.grafit),
    "grafit_cifar100": Entry(grafit.grafit, ("cifar100",)),
    "grafit_unsupervised": Entry(grafit.unsupervised),
    "grafit_unsupervised_cifar100": Entry(grafit.unsupervised, ("cifar100",)),
    "grafit_1k_resnet50": Entry(grafit.pretraining, ("resnet50",)),
    "grafit_1k_regnety_080": Entry(grafit.pretraining, ("regnety_080",)),
    "fine_tune_grafit": Entry(grafit.fine_tune_grafit),
    # UperNet on ADE20k
    "segment_small": Entry(upernet.segment_small),
    "segment_small_linear": Entry(upernet.segment_small_linear),
    "upernet_deit3_tiny": Entry(upernet.upernet_deit3, ("tiny",)),
    "upernet_deit3_small": Entry(upernet.upernet_deit3, ("small",)),
    "upernet_deit3_base": Entry(upernet.upernet_deit3, ("base",)),
    "upernet_deit3_large": Entry(upernet.upernet_deit3, ("large",)),
    "upernet_deit3_base_21k": Entry(upernet.upernet_deit3_21k, ("base",)),
    "upernet_deit3_base_21k_384": Entry(upernet.upernet_deit3_21k, ("base", "384")),
    "upernet_deit3_large_21k": Entry(upernet.upernet_deit3_21k, ("large",)),
    "upernet_deit3_large_21k_320": Entry(upernet.upernet_deit3_21k, ("large", "320")),
    "upernet_patchconvnet_s60": Entry(upernet.upernet_patchconvnet, ("s60",)),
    "upernet_patchconvnet_b60": Entry(upernet.upernet_patchconvnet, ("b60",)),
    "upernet_patchconvnet_b120": Entry(upernet.upernet_patchconvnet, ("b120",)),
    "upernet_patchconvnet_s60_21k": Entry(upernet.upernet_patchconvnet_21k, ("s60",)),
    "upernet_patchconvnet_b60_21k": Entry(upernet.upernet_patchconvnet_21k, ("b60",)),
    "upernet_patchconvnet_b120_21k": Entry(upernet.upernet_patchconvnet_21k, ("b120",)),
    "upernet_patchconvnet_l120_21k": Entry(upernet.upernet_patchconvnet_21k, ("l120",)),
    "upernet_deit_small": Entry(upernet.upernet_224, ("deit_small",)),
    "upernet_deit_base": Entry(upernet.upernet_224, ("deit_base",)),
    "upernet_resmlp_s12": Entry(upernet.upernet_224, ("resmlp_s12",)),
    "upernet_resmlp_s24": Entry(upernet.upernet_224, ("resmlp_s24",)),
    "upernet_resmlp_s36": Entry(upernet.upernet_224, ("resmlp_s36",)),
    "upernet_resmlp_b24": Entry(upernet.upernet_224, ("resmlp_b24",)),
}


def list_recipes(pattern: str = "*") -> list[str]:
    """Names that match a shell pattern such as "deit3_*", in the table's order."""
    return [name for name in RECIPES if fnmatch.fnmatchcase(name, pattern.lower())]


def get_recipe(name: str) -> Recipe:
    """The recipe of that name; an unknown one is an error that offers the nearest names."""
    if name not in RECIPES:
        raise ValueError(explain_unknown(name))
    entry = RECIPES[name]
    return entry.function(*entry.arguments)


def find_recipe(name_or_file: str) -> Recipe:
    """The recipe of that name, of a YAML file, or of `module:function`; a name goes before a file called the same."""
    if name_or_file not in RECIPES and (
        name_or_file.lower().endswith(RECIPE_EXTENSIONS) or Path(name_or_file).is_file()
    ):
        return read_recipe(Path(name_or_file))
    if is_own(name_or_file):
        recipe = load_own(name_or_file, what="recipe")()
        if not isinstance(recipe, Recipe):
            raise ValueError(f"the recipe {name_or_file} must return a Recipe, not a {type(recipe).__name__}")
        return recipe
    return get_recipe(name_or_file)


def explain_unknown(name: str) -> str:
    """What to say of a name that is none."""
    if starting := list_recipes(f"{name}*"):
        near = starting[:3]
    else:
        near = difflib.get_close_matches(name.lower(), RECIPES, n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else "`vitrail recipes` lists them all; a file ends in .yaml"
    return f"unknown recipe {name!r}: {hint}"
