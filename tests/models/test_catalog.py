"""The catalogue against what the papers print, and its errors."""

import math
from collections.abc import Iterable
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import vitrail
from vitrail.models.cait import CaiT
from vitrail.models.catalog import CATALOG, get_entry
from vitrail.models.complexity import Complexity
from vitrail.models.depth_rules import drop_path_for, layer_scale_for
from vitrail.models.figures import OTHERS

WITH_FIGURES = [name for name, entry in CATALOG.items() if entry.figures is not None]


def printed_unit(figure: str) -> float:
    """The value of one unit of a printed number's last digit."""
    exponent = Decimal(figure).as_tuple().exponent
    assert isinstance(exponent, int)
    return 10.0**exponent


def agrees(count: float, printed: str) -> bool:
    """Whether a count is the printed figure within 2 % or its rounding: what we ask of multiply-adds."""
    return abs(count - float(printed)) <= max(0.02 * float(printed), 0.5 * printed_unit(printed))


def rounds_to(count: float, printed: str) -> bool:
    """Whether a count is the printed figure to its last digit: what we ask of parameters."""
    return abs(count - float(printed)) <= 0.5 * printed_unit(printed)


def count(name: str, **settings: Any) -> Complexity:
    """A model's size from models of one and two blocks: every further block costs what the second does."""
    [size] = count_at(name, [None], **settings)
    return size


def count_at(name: str, image_sizes: Iterable[int | None], **settings: Any) -> list[Complexity]:
    depth = settings.pop("depth", CATALOG[name].settings["depth"])
    with torch.device("meta"):
        models = [vitrail.create_model(name, depth=blocks, **settings) for blocks in (1, 2)]
    sizes = [[np.array(vitrail.complexity(model, image_size=size)) for model in models] for size in image_sizes]
    return [Complexity(*(one + (depth - 1) * (two - one)).tolist()) for one, two in sizes]


def count_parameters(name: str, **settings: Any) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in vitrail.create_model(name, **settings).parameters())


@pytest.mark.parametrize("name", ["vit_s12x3", "cait_xxs12", "resmlp_s12", "patchconvnet_s20"])
def test_every_block_of_a_model_costs_the_same(name: str) -> None:
    with torch.device("meta"):
        assert vitrail.complexity(vitrail.create_model(name)) == count(name)


@pytest.mark.parametrize("name", WITH_FIGURES)
def test_counts_equal_the_published_figures(name: str) -> None:
    """Parameters and multiply-adds, at every printed size; a figure in doubt must really be off."""
    figures = CATALOG[name].figures
    assert figures is not None
    parameters = count_parameters(name) / 1e6
    if figures.parameters is not None:
        assert rounds_to(parameters, figures.parameters) != ("parameters" in figures.doubts), parameters
    sizes = count_at(name, figures.flops)
    for (image_size, printed), size in zip(figures.flops.items(), sizes, strict=True):
        multiply_adds = size.multiply_adds / 1e9
        assert agrees(multiply_adds, printed), f"{multiply_adds:.2f} at {image_size}, printed {printed}"
    for image_size, printed in figures.resized_parameters.items():
        parameters = count_parameters(name, image_size=image_size) / 1e6
        assert rounds_to(parameters, printed) != (f"parameters {image_size}" in figures.doubts), parameters


@pytest.mark.parametrize("name", [name for name in OTHERS if name.startswith("timm/") and OTHERS[name].parameters])
def test_models_of_timm_have_the_size_the_papers_print(name: str) -> None:
    with torch.device("meta"):
        model = vitrail.create_model(name)
    parameters = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    printed = OTHERS[name].parameters
    assert printed is not None
    assert rounds_to(parameters, printed), parameters


@pytest.mark.parametrize(
    ("settings", "parameters", "flops"),
    [  # thesis table 4.3
        ({"norm": "layer"}, "15.4", "3.0"),
        ({"pool": "class_mlp"}, "17.7", "3.0"),
        ({"communication": "none"}, "14.9", "2.8"),
        ({"communication": "mlp"}, "18.6", "4.3"),
        ({"communication": "conv"}, "30.8", "6.0"),
        ({"communication": "depthwise"}, "14.9", "2.8"),
        ({"communication": "separable"}, "16.7", "3.2"),
    ],
)
def test_ablations_of_resmlp_have_the_published_size(settings: dict[str, str], parameters: str, flops: str) -> None:
    size = count("resmlp_s12", **settings)
    assert rounds_to(size.parameters / 1e6, parameters)
    assert agrees(size.multiply_adds / 1e9, flops)


@pytest.mark.parametrize(
    ("depth", "class_depth", "parameters", "flops"),
    [
        (9, 3, "22", "3.6"),
        (10, 2, "22", "4.0"),
        (11, 1, "22", "4.3"),
        (12, 1, "24", "4.7"),
        (12, 2, "26", "4.7"),
        (12, 3, "27", "4.8"),
    ],
)
def test_class_attention_stages_have_the_published_size(
    depth: int, class_depth: int, parameters: str, flops: str
) -> None:
    """CaiT table 2: DeiT-S with class-attention stages."""
    size = count("cait_s24", depth=depth, class_depth=class_depth, num_heads=6, talking_heads=False, layer_scale=None)
    assert rounds_to(size.parameters / 1e6, parameters)
    assert agrees(size.multiply_adds / 1e9, flops)


@pytest.mark.parametrize(
    ("name", "settings", "parameters", "flops"),
    [
        ("deit_small", {"num_heads": 8}, "22", "4.6"),
        ("deit_small", {"num_heads": 8, "talking_heads": True}, "22", "4.6"),
        ("deit_small", {"num_heads": 8, "talking_heads": True, "depth": 36}, "64", "13.8"),
        ("deit_small", {"num_heads": 8, "talking_heads": True, "depth": 36, "layer_scale": 1e-6}, "64", "13.8"),
        ("cait_s36", {}, "68", "13.9"),
        ("cait_s36", {"image_size": 256}, "68", "18.6"),
    ],
)
def test_the_path_from_deit_to_cait_has_the_published_sizes(
    name: str, settings: dict[str, Any], parameters: str, flops: str
) -> None:
    """CaiT table 4, whose millions of parameters are cut, not rounded: the 36 blocks count 64.6."""
    size = count(name, **settings)
    assert size.parameters // 1_000_000 == int(parameters)
    assert agrees(size.multiply_adds / 1e9, flops)


def test_attention_pooling_costs_a_resnet_what_the_thesis_says() -> None:
    """Thesis 5.3.4: 4.6B against 4.1B."""
    with torch.device("meta"):
        plain = vitrail.complexity(vitrail.create_model("timm/resnet50"), image_size=224)
        pooled = vitrail.complexity(vitrail.create_model("timm/resnet50", pool="attention"), image_size=224)
    assert agrees(plain.multiply_adds / 1e9, "4.1")
    assert agrees(pooled.multiply_adds / 1e9, "4.6")


@pytest.mark.parametrize("name", WITH_FIGURES)
def test_settings_are_the_published_ones(name: str) -> None:
    entry = CATALOG[name]
    assert entry.figures is not None
    if entry.figures.drop_path is not None:
        assert entry.settings["drop_path"] == entry.figures.drop_path
    if entry.figures.layer_scale is not None and "layer_scale" in entry.settings:
        assert entry.settings["layer_scale"] == entry.figures.layer_scale


def test_doubted_figures_are_told_in_the_docs() -> None:
    from pathlib import Path

    page = (Path(__file__).parents[2] / "docs" / "catalogue.md").read_text(encoding="utf-8")
    for name in WITH_FIGURES:
        figures = CATALOG[name].figures
        assert figures is not None
        assert not figures.doubts or f"`{name}`" in page, f"docs/catalogue.md does not tell of {name}"


def test_every_variant_asked_for_is_there() -> None:
    names = set(vitrail.list_models())
    expected = ["vit_s18x2", "vit_b18x2", "vit_s24x2", "vit_l12x2", "vit_b13", "vit_b12_hmlp", "vit_h52", "vit_h26x2"]
    expected += [f"vit_{size}{blocks}" for size in ("ti", "s", "b", "l") for blocks in (12, 24, 36, 48, 60)]
    expected += [f"vit_{size}{blocks // 2}x2" for size in ("ti", "s", "b", "l") for blocks in (12, 24, 36, 48, 60)]
    expected += [
        "vit_s18",
        "cait_xxs12",
        "patchconvnet_s60_multi",
        "vit_s12x3",
        "vit_s9x4",
        "vit_b12x3",
        "vit_b9x4",
        "cait_b12",
        "cait_m48",
        "deit3_medium",
    ]
    expected += [f"resmlp_{size}{patch}" for size in ("s12", "s24", "s36", "b24") for patch in ("", "_p14", "_p8")]
    assert names.issuperset(expected)


def test_patterns() -> None:
    assert vitrail.list_models("cait_xxs*") == ["cait_xxs12", "cait_xxs24", "cait_xxs36"]
    assert vitrail.list_models("CaiT_XXS*") == ["cait_xxs12", "cait_xxs24", "cait_xxs36"]
    assert vitrail.list_models("nothing*") == []


def test_names_and_patterns_are_strings() -> None:
    not_a_string: Any
    for not_a_string in (None, 5, ["deit_small"]):
        for function in (vitrail.create_model, vitrail.list_models, get_entry):
            with pytest.raises(ValueError, match=r"must be a string, e\.g\. 'cait_s24', not") as caught:
                function(not_a_string)
            assert "\n" not in str(caught.value)


def test_the_catalogue_can_not_be_changed_by_accident() -> None:
    settings: Any = CATALOG["deit_small"].settings
    with pytest.raises(TypeError):
        settings["depth"] = 3


# Three things, section 2.2.
@pytest.mark.parametrize(("width", "rate"), [("ti", 0.0), ("s", 0.05), ("b", 0.1), ("l", 0.4)])
def test_sequential_and_parallel_models_of_a_width_drop_alike(width: str, rate: float) -> None:
    rates = {name: CATALOG[name].settings["drop_path"] for name in vitrail.list_models(f"vit_{width}[0-9]*")}
    assert len(rates) >= 10
    assert set(rates.values()) == {rate}


def test_an_unknown_model_offers_the_nearest_names() -> None:
    with pytest.raises(ValueError, match=r"unknown model 'cait_xs25': did you mean cait_xs24"):
        vitrail.create_model("cait_xs25")


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("deit_small", {"num_heads": 7}, r"num_heads 7 does not divide dim 384: try 4, 6, 8"),
        ("deit_small", {"image_size": 225}, r"225x225 can't be cut into patches of 16: resize it, e.g. to 224x224"),
        ("deit_small", {"class_depth": 1}, r"deit_small has no setting 'class_depth': did you mean .*class_layer"),
        ("resmlp_s12", {"num_heads": 3}, r"resmlp_s12 has no setting 'num_heads'"),
        ("cait_s24", {"residual": "rezero"}, r"pass layer_scale=None"),
        (
            "cait_s24",
            {"residual_norm": False},
            r"residual_norm=False is for residual rezero.*'pre_norm' needs its norm",
        ),
        ("cait_s24", {"depth": 0}, r"depth must be a whole number of at least 1, not 0"),
        ("cait_s24", {"drop_path": 1.5}, r"drop_path must be in \[0, 1\)"),
        ("deit_small", {"stem": "convolution"}, r"unknown stem 'convolution': choose one of linear"),
        ("deit_small", {"stem": "hmlp_bn", "patch_size": 14}, r"hMLP stem is made for patches of 4, 8 or 16"),
        ("patchconvnet_s20", {"pool": "class"}, r"pool must be one of attention, average"),
        ("patchconvnet_s20", {"per_class_tokens": True, "distilled": True}, r"can't be combined"),
        ("deit_small", {"pool": "average", "distilled": True}, r"no class token"),
        ("deit_small", {"class_layer": 12}, r"class_layer 12 must be one of the 12 blocks"),
        *[
            ("deit_small", {"image_size": size}, r"image_size must be a whole number or \(height, width\), not ")
            for size in (None, 224.0, "224", True, (224,), (64, 64, 64), ("64", "64"), (64.0, 64))
        ],
        ("deit_small", {"image_size": (0, 64)}, r"at least one patch of 16 pixels"),
        *[
            (name, {flag: value}, rf"{flag} must be True or False, not {value!r}")
            for name, flag, value in (
                ("deit_small", "distilled", 2),
                ("deit_small", "class_position", None),
                ("deit_small", "talking_heads", "no"),
                ("cait_s24", "layer_scale_frozen", 1),
                ("cait_s24", "class_in_keys", 0),
                ("cait_s24", "class_layer_scale", 1e-5),
                ("cait_s24", "distilled", "yes"),
                ("patchconvnet_s20", "per_class_tokens", 1),
                ("patchconvnet_s20", "distilled", 1),
            )
        ],
        *[
            (name, {"layer_scale": value}, r"layer_scale must be a finite number of at least 0")
            for name in ("cait_s24", "resmlp_s12", "patchconvnet_s20")
            for value in ("1e-5", True, -1.0, math.nan, math.inf)
        ],
        ("resmlp_s12", {"layer_scale": None}, r"layer_scale must be a finite number of at least 0, not None"),
        *[
            (name, {"mlp_ratio": value}, message)
            for name in ("deit_small", "resmlp_s12")
            for value, message in (("4", r"mlp_ratio must be a finite number"), (1e-3, r"leaves no hidden channel"))
        ],
        ("deit_small", {"drop_path": True}, r"drop_path must be in \[0, 1\), not True"),
        ("deit_small", {"stem": "hmlp_bn", "dim": 54}, r"dim must be a multiple of 4, not 54"),
        ("resmlp_s12", {"class_depth": 3}, r"class_depth is a setting of pool='class_mlp'"),
        ("deit_small", {"classifier": "fc"}, r"classifier must be one of linear, mlp"),
        *[
            (name, {"classifier": "mlp", setting: True}, rf"classifier='mlp' reads one token: .* with {setting}")
            for name, setting in (
                ("deit_small", "distilled"),
                ("patchconvnet_s20", "per_class_tokens"),
                ("timm/resnet18", "distilled"),
            )
        ],
        ("resmlp_s12", {"activation": "tanh"}, r"activation must be one of gelu, relu, silu, hardswish"),
        ("resmlp_s12", {"norm": "batch", "pool": "class_mlp"}, r"norm='batch' can't normalise one class token"),
        ("cait_s24", {"class_depth": 0, "class_in_keys": False}, r"class_depth=0 has no class-attention"),
        ("cait_s24", {"class_depth": 0, "class_layer_scale": False}, r"class_depth=0 has no class-attention"),
        ("cait_s24", {"residual": "scalar", "layer_scale_init": "uniform"}, r"has one weight a branch"),
        ("cait_s24", {"residual": "scalar", "layer_scale_frozen": True}, r"has one weight a branch"),
        ("timm/resnet5", {}, r"timm has no model 'resnet5': did you mean timm/resnet"),
        ("timm/resnet18", {"pool": "max"}, r"pool must be average or attention"),
    ],
)
def test_bad_settings_are_told_in_a_line(name: str, settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        vitrail.create_model(name, **settings)
    assert len(str(caught.value).splitlines()) <= 2


CAITS = [name for name in CATALOG if name.startswith("cait_") and name != "cait_b12"]  # b12 is of another training


@pytest.mark.parametrize("name", CAITS)
def test_cait_of_another_depth_is_the_model_that_is_printed_with_that_depth(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thesis table 3.16 from CaiT's rules: LayerScale and stochastic depth follow the depth, width by width."""
    monkeypatch.setattr(CaiT, "made", lambda config: SimpleNamespace(config=config))  # no weights are looked at
    width, depth = CATALOG[name].settings["dim"], CATALOG[name].settings["depth"]
    expected = vitrail.create_model(name).config
    for other in CAITS:
        if CATALOG[other].settings["dim"] == width:
            assert vitrail.create_model(other, depth=depth).config == expected


def test_what_is_given_stands_over_the_rules_of_depth() -> None:
    with torch.device("meta"):
        config: Any = vitrail.create_model("cait_s24", depth=48, drop_path=0.4).config
        assert (config.drop_path, config.layer_scale) == (0.4, 1e-6)
        config = vitrail.create_model("cait_s24", depth=12, layer_scale=None, residual="rezero").config
        assert (config.drop_path, config.layer_scale) == (0.0, None)
        config = vitrail.create_model("resmlp_s24", depth=36).config
        assert (config.drop_path, config.layer_scale) == (0.1, 1e-6)
        config = vitrail.create_model("deit_small", depth=36).config
        assert (config.drop_path, config.layer_scale) == (0.1, None)


@pytest.mark.parametrize(
    ("depth", "scale", "rates"),
    [
        (6, 0.1, (0.0, 0.0, 0.1)),
        (18, 0.1, (0.025, 0.05, 0.15)),
        (20, 1e-5, None),
        (24, 1e-5, (0.05, 0.1, 0.2)),
        (36, 1e-6, (0.1, 0.2, 0.3)),
        (48, 1e-6, (0.15, 0.3, 0.4)),
    ],
)
def test_rules_of_depth(depth: int, scale: float, rates: tuple[float, ...] | None) -> None:
    assert layer_scale_for(depth) == scale
    assert rates is None or rates == tuple(drop_path_for(depth, dim=dim) for dim in (192, 384, 768))
