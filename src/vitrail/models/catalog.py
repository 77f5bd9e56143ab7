"""The one table of models: name -> family and settings, with what the papers publish. It does not import torch."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from vitrail.models.depth_rules import settings_for_depth
from vitrail.models.figures import FIGURES, Figures

if TYPE_CHECKING:
    from vitrail.models.contract import Model

TIMM_PREFIX = "timm/"


@dataclass(frozen=True)
class CatalogEntry:
    """One row of the catalogue."""

    name: str
    family: str  # "vit", "cait", "resmlp" or "patchconvnet"
    settings: Mapping[str, Any]  # where the model differs from its family's config
    figures: Figures | None  # what the papers print about it
    crop_ratio: float = 0.875  # of the evaluation its results were measured with

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", MappingProxyType(dict(self.settings)))


WIDTHS: dict[str, dict[str, Any]] = {
    "tiny": {"dim": 192, "num_heads": 3},
    "small": {"dim": 384, "num_heads": 6},
    "medium": {"dim": 512, "num_heads": 8},
    "base": {"dim": 768, "num_heads": 12},
    "large": {"dim": 1024, "num_heads": 16},
    "huge": {"dim": 1280, "num_heads": 16, "patch_size": 14},
}
SHORT_WIDTHS = {"ti": "tiny", "s": "small", "b": "base", "l": "large"}
BLOCK_COUNTS = (12, 24, 36, 48, 60)
# Three things, figure 1: more than two branches were only tried for these.
WIDE_PARALLEL = (("s", 12, 3), ("s", 9, 4), ("s", 20, 3), ("s", 15, 4), ("b", 12, 3), ("b", 9, 4))
STEM_NAMES = {
    "linear_bn": "linear_bn",
    "linear_gelu": "linear_gelu",
    "linear_bn_gelu": "linear_bn_gelu",
    "conv": "conv_bn",
    "conv_ln": "conv_ln",
    "hmlp": "hmlp_bn",
    "hmlp_ln": "hmlp_ln",
}


def _deit() -> dict[str, dict[str, Any]]:
    """DeiT (thesis 3.4): positions for the special tokens too, stochastic depth growing with depth."""
    rows = {}
    for size in ("tiny", "small", "base"):
        for suffix, distilled in (("", False), ("_distilled", True)):
            rows[f"deit_{size}{suffix}"] = {
                **WIDTHS[size],
                "depth": 12,
                "distilled": distilled,
                "drop_path": 0.1,
                "drop_path_schedule": "linear",
            }
    return rows


def _deit3() -> dict[str, dict[str, Any]]:
    """DeiT III (thesis chapter 6): LayerScale, no position for the class token; drop path of table 6.14."""
    drop_path = {"tiny": 0.0, "small": 0.0, "medium": 0.0, "base": 0.1, "large": 0.4, "huge": 0.5}
    depth = {"large": 24, "huge": 32}
    return {
        f"deit3_{size}": {
            **WIDTHS[size],
            "depth": depth.get(size, 12),
            "class_position": False,
            "layer_scale": 1e-4,
            "drop_path": rate,
        }
        for size, rate in drop_path.items()
    }


def _three_things() -> dict[str, dict[str, Any]]:
    """The depth x branches models and the stems of Three things, and the huge ones of thesis table 6.6."""
    drop_path = {"ti": 0.0, "s": 0.05, "b": 0.1, "l": 0.4}  # section 2.2: by width, whatever the depth
    rows = {}

    def add(short: str, depth: int, branches: int, *, suffix: str = "", stem: str = "linear") -> None:
        parallel = f"x{branches}" if branches > 1 else ""
        rows[f"vit_{short}{depth}{parallel}{suffix}"] = {
            **WIDTHS[SHORT_WIDTHS[short]],
            "depth": depth,
            "num_branches": branches,
            "stem": stem,
            "class_position": False,
            "drop_path": drop_path[short],
        }

    for short in SHORT_WIDTHS:
        for blocks in BLOCK_COUNTS:
            add(short, blocks, 1)
            add(short, blocks // 2, 2)
    for short, depth, branches in WIDE_PARALLEL:
        add(short, depth, branches)
    add("s", 18, 1)  # thesis tables 3.11 and 3.12
    add("b", 13, 1)
    for suffix, stem in STEM_NAMES.items():
        add("b", 12, 1, suffix=f"_{suffix}", stem=stem)
    for name, depth, branches in (("vit_h52", 52, 1), ("vit_h26x2", 26, 2)):
        rows[name] = {
            **WIDTHS["huge"],
            "depth": depth,
            "num_branches": branches,
            "class_position": False,
            "layer_scale": 1e-4,
            "drop_path": 0.5,
        }
    return rows


def _cait() -> dict[str, dict[str, Any]]:
    """CaiT (thesis tables 3.15 and 3.16): 48 channels a head; stochastic depth and LayerScale per model.

    XXS-12 is in CaiT's figure 5 only; both follow from the rules.
    """
    table = {
        # name: (dim, depth, drop path, LayerScale)
        "xxs12": (192, 12, 0.0, 0.1),
        "xxs24": (192, 24, 0.05, 1e-5),
        "xxs36": (192, 36, 0.1, 1e-6),
        "xs24": (288, 24, 0.05, 1e-5),
        "xs36": (288, 36, 0.1, 1e-6),
        "s24": (384, 24, 0.1, 1e-5),
        "s36": (384, 36, 0.2, 1e-6),
        "s48": (384, 48, 0.3, 1e-6),
        "m24": (768, 24, 0.2, 1e-5),
        "m36": (768, 36, 0.3, 1e-6),
        "m48": (768, 48, 0.4, 1e-6),
        "b12": (768, 12, 0.1, 1e-4),
    }
    return {
        f"cait_{name}": {
            "dim": dim,
            "depth": depth,
            "num_heads": dim // 48,
            "drop_path": drop_path,
            "layer_scale": layer_scale,
        }
        for name, (dim, depth, drop_path, layer_scale) in table.items()
    }


def _resmlp() -> dict[str, dict[str, Any]]:
    """ResMLP (thesis table 4.3), with patches of 16, 14 and 8 pixels; stochastic depth as its authors name it."""
    table = {
        # name: (dim, depth, LayerScale, drop path)
        "s12": (384, 12, 0.1, 0.05),
        "s24": (384, 24, 1e-5, 0.1),
        "s36": (384, 36, 1e-6, 0.2),
        "b24": (768, 24, 1e-5, 0.1),
    }
    rows = {}
    for name, (dim, depth, layer_scale, drop_path) in table.items():
        for suffix, patch_size in (("", 16), ("_p14", 14), ("_p8", 8)):
            settings = {
                "dim": dim,
                "depth": depth,
                "layer_scale": layer_scale,
                "patch_size": patch_size,
                "drop_path": drop_path,
            }
            rows[f"resmlp_{name}{suffix}"] = settings
    return rows


def _patchconvnet() -> dict[str, dict[str, Any]]:
    """PatchConvNet (thesis 5.2.2): width and depth; stochastic depth of table 5.8; one with a token per class (5.7)."""
    widths = {"s": 384, "b": 768, "l": 1024}
    drop_path = {
        "s20": 0.0,
        "s36": 0.05,
        "s60": 0.15,
        "s120": 0.2,
        "b36": 0.2,
        "b60": 0.3,
        "b120": 0.4,
        "l60": 0.3,
        "l120": 0.4,
    }
    rows = {
        f"patchconvnet_{name}": {
            "dim": widths[name[0]],
            "depth": int(name[1:]),
            "drop_path": rate,
            "qkv_bias": True,  # as the official models have, which no paper prints
            **({"layer_scale": 1e-4} if name in ("s20", "s36", "s60") else {}),  # the official code's default
        }
        for name, rate in drop_path.items()
    }
    rows["patchconvnet_s60_multi"] = {**rows["patchconvnet_s60"], "per_class_tokens": True}
    return rows


def _build_catalog() -> dict[str, CatalogEntry]:
    families = (
        ("vit", 0.875, _deit()),
        ("vit", 1.0, _deit3()),
        ("vit", 0.95, _three_things()),
        ("cait", 1.0, _cait()),
        ("resmlp", 0.9, _resmlp()),
        ("patchconvnet", 1.0, _patchconvnet()),
    )
    return {
        name: CatalogEntry(name, family, settings, FIGURES.get(name), crop_ratio)
        for family, crop_ratio, rows in families
        for name, settings in rows.items()
    }


CATALOG: dict[str, CatalogEntry] = _build_catalog()


def list_models(pattern: str = "*") -> list[str]:
    """Names of the catalogue that match a shell pattern such as "cait_*" in either case, in the catalogue's order."""
    _check_text("the pattern", pattern)
    return [name for name in CATALOG if fnmatch.fnmatchcase(name, pattern.lower())]


def get_entry(name: str) -> CatalogEntry:
    """The row called `name`; a ValueError that offers the nearest names where there is none."""
    _check_text("the name of a model", name)
    if name in CATALOG:
        return CATALOG[name]
    model, sign, weights = name.partition("@")
    if sign and model in CATALOG:
        raise ValueError(f"{name} names weights of {model}: train it with model={model} init=pretrained@{weights}")
    near = difflib.get_close_matches(name.lower(), CATALOG, n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else "`vitrail models` lists them all"
    raise ValueError(f"unknown model {name!r}: {hint}")


def _check_text(what: str, value: object) -> None:
    if not isinstance(value, str):
        raise ValueError(f"{what} must be a string, e.g. 'cait_s24', not {value!r}")


def create_model(name: str, **settings: Any) -> Model:
    """Build a model of the catalogue, `timm/NAME` of timm, or `module:function` of one's own, with initial weights.

    Settings override the model's config: image_size, num_classes, in_channels, dim, depth, num_heads, patch_size,
    stem, drop_path and whatever else the family has; an unknown one is an error. With another depth than its own a CaiT
    takes the LayerScale and stochastic depth, a ResMLP the LayerScale that CaiT's rules give for it, unless these are
    given too (`vitrail.models.depth_rules`).
    """
    from vitrail.models.build import build_model, build_own_model, build_timm_model
    from vitrail.settings.own import is_own

    _check_text("the name of a model", name)
    if name.startswith(TIMM_PREFIX):
        return build_timm_model(name.removeprefix(TIMM_PREFIX), **settings)
    if is_own(name):
        return build_own_model(name, settings)
    entry = get_entry(name)
    merged = {**entry.settings, **settings_for_depth(entry.family, entry.settings, settings), **settings}
    return build_model(entry.family, name=name, settings=merged, crop_ratio=entry.crop_ratio)
