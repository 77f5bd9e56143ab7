"""save_model and load_model: the same model back, whole files or none, and bad folders."""

import dataclasses
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from interrupted import interrupt
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from shrunk import images_for, randomize, small_model

import vitrail
from vitrail import create_model, load_model, save_model, to_timm
from vitrail.heads.embed import EmbeddingModel, EmbeddingSettings
from vitrail.models.catalog import CATALOG
from vitrail.models.contract import Preprocessing
from vitrail.models.vit import VisionTransformer, ViTConfig

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("deit_tiny", {"image_size": (32, 80), "pool": "average"}),
    ("deit_small", {"residual": "fixup", "drop_path": 0.3, "drop_path_schedule": "linear"}),
    ("cait_s24", {"class_depth": 3, "distilled": True, "layer_scale_frozen": True}),
    ("cait_s24", {"residual": "exclusive_gating", "layer_scale": None}),
    ("resmlp_s12", {"pool": "class_mlp", "communication": "mlp", "norm": "layer"}),
    ("resmlp_s12", {"distilled": True}),
    ("patchconvnet_s20", {"per_class_tokens": True, "norm": "batch"}),
    ("vit_b12_hmlp", {"num_classes": 0, "in_channels": 4}),
]
ONE_PER_FAMILY: list[tuple[str, dict[str, Any]]] = [
    (name, {}) for name in ("deit_tiny_distilled", "cait_xxs24", "resmlp_b24_p8", "patchconvnet_s60")
]


@pytest.mark.parametrize(("name", "settings"), [*ONE_PER_FAMILY, *VARIANTS])
def test_the_same_model_comes_back(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    model = randomize(small_model(name, **settings)).eval()
    model.preprocessing = Preprocessing(0.9, "bilinear", (0.5, 0.5, 0.5), (0.1, 0.2, 0.3))
    save_model(model, tmp_path / "new" / "folder")
    loaded = load_model(tmp_path / "new" / "folder")
    assert (loaded.name, loaded.family) == (name, CATALOG[name].family)
    assert loaded.config == model.config
    assert loaded.preprocessing == model.preprocessing
    assert not loaded.training
    images = images_for(model)
    assert torch.equal(loaded(images), model(images))
    frozen, frozen_before = (
        [name for name, parameter in part.named_parameters() if not parameter.requires_grad] for part in (loaded, model)
    )
    assert frozen == frozen_before


def test_the_files_have_the_rights_that_the_umask_gives(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        save_model(small_model("deit_tiny"), tmp_path / "model")
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "model").iterdir()}
    assert modes == {"model.safetensors": 0o640, "config.json": 0o640}


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_file_that_cannot_be_written_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name / "in the way").mkdir(parents=True)
    with pytest.raises(OSError, match=name) as error:
        save_model(small_model("deit_tiny"), tmp_path)
    assert error.value.filename == str(tmp_path / name)


@pytest.mark.parametrize("pool", ["average", "attention"])
def test_a_timm_backbone_comes_back(pool: str, tmp_path: Path) -> None:
    model = create_model("timm/resnet18", num_classes=3, pool=pool).eval()
    save_model(model, tmp_path)
    loaded = load_model(tmp_path)
    assert (loaded.name, loaded.family, loaded.config) == ("timm/resnet18", "timm", model.config)
    assert loaded.preprocessing == model.preprocessing
    images = torch.randn(2, 3, 64, 64)
    assert torch.equal(loaded(images), model(images))


def test_what_the_files_hold(tmp_path: Path) -> None:
    model = small_model("deit3_small")
    save_model(model, str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    content = json.loads((tmp_path / "config.json").read_text())
    assert content["vitrail"] == vitrail.__version__
    assert (content["family"], content["name"]) == ("vit", "deit3_small")
    assert content["settings"] == dataclasses.asdict(model.config)
    assert content["preprocessing"]["crop_ratio"] == 1.0
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        assert set(file.keys()) == set(model.state_dict())
        assert file.metadata()["grid"] == "4x4"


def test_half_precision_is_kept_in_the_file_and_read_as_float32(tmp_path: Path) -> None:
    model = randomize(small_model("deit_tiny"))
    save_model(model.bfloat16(), tmp_path)
    assert {value.dtype for value in load_file(tmp_path / "model.safetensors").values()} == {torch.bfloat16}
    loaded = load_model(tmp_path)
    for name, value in loaded.state_dict().items():
        assert value.dtype == torch.float32
        assert torch.equal(value, model.state_dict()[name].float())


def test_saving_over_a_model_replaces_it(tmp_path: Path) -> None:
    save_model(small_model("deit_tiny"), tmp_path)
    second = randomize(small_model("cait_xxs24"))
    save_model(second, tmp_path)
    loaded = load_model(tmp_path)
    assert loaded.name == "cait_xxs24"
    assert all(torch.equal(value, second.state_dict()[name]) for name, value in loaded.state_dict().items())


def test_a_failed_save_leaves_the_former_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = randomize(small_model("deit_tiny"))
    save_model(first, tmp_path)

    def write_half(tensors: Any, path: Path, **settings: Any) -> None:
        path.write_bytes(b"half of it")
        raise OSError("no space left on device")

    monkeypatch.setattr("vitrail.storage.tensors.save_file", write_half)
    with pytest.raises(OSError, match="no space left"):
        save_model(randomize(small_model("cait_xxs24")), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    loaded = load_model(tmp_path)
    assert all(torch.equal(value, first.state_dict()[name]) for name, value in loaded.state_dict().items())


@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("at", [1, 2, 3, 4])  # config.json, the decision, two files that take their places
def test_ctrl_c_at_any_rename_leaves_weights_and_config_of_one_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, is_after: bool
) -> None:
    old, new = randomize(small_model("deit_tiny")), randomize(small_model("cait_xxs24"))
    save_model(old, tmp_path)
    (tmp_path / "README.md").write_text("mine")
    with monkeypatch.context() as patch:
        interrupt(patch, at=at, is_after=is_after)
        with pytest.raises(KeyboardInterrupt):
            save_model(new, tmp_path)
    wanted = (new if (at, is_after) >= (2, True) else old).state_dict()
    loaded = load_model(tmp_path).state_dict()
    assert loaded.keys() == wanted.keys()
    assert all(torch.equal(value, wanted[name]) for name, value in loaded.items())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "config.json", "model.safetensors"]


def test_models_that_can_not_be_saved(tmp_path: Path) -> None:
    with torch.device("meta"):
        empty = small_model("deit_tiny")
    with pytest.raises(ValueError, match="on the meta device"):
        save_model(empty, tmp_path)
    cut = small_model("deit_tiny")
    cut.norm = torch.nn.Identity()
    with pytest.raises(ValueError, match="no longer those of its config"):
        save_model(cut, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file; save_model writes a folder"):
        save_model(small_model("deit_tiny"), tmp_path / "file")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def edit(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    path = folder / "config.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda content: content.update(family="mixer"), "unknown family 'mixer'; this vitrail .* knows vit, cait"),
        (lambda content: content.pop("family"), r"incomplete \(family\)"),
        (lambda content: content.update(settings=[]), "incomplete"),
        (lambda content: content.pop("vitrail"), "was not written by vitrail"),
        (
            lambda content: content.update(vitrail="9.9", settings={**content["settings"], "rotary": True}),
            "of vitrail 9.9 .*: deit_tiny has no setting 'rotary'",
        ),
        (lambda content: content["settings"].update(num_heads=5), "num_heads 5 does not divide dim 48"),
        (lambda content: content["preprocessing"].update(tilt=1), "preprocessing has no setting 'tilt'"),
        (lambda content: content["settings"].update(depth=3), r"12 missing: blocks\.2\."),
        (lambda content: content["settings"].update(image_size=96), r"misshapen: positions\.patches"),
    ],
)
def test_bad_configs(change: Callable[[dict[str, Any]], Any], text: str, tmp_path: Path) -> None:
    save_model(small_model("deit_tiny"), tmp_path)
    edit(tmp_path, change)
    with pytest.raises(ValueError, match=text) as error:
        load_model(tmp_path)
    assert str(error.value).count("\n") <= 1


def test_bad_folders(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such folder"):
        load_model(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"no config.json in it; create the model and use load_weights"):
        load_model(tmp_path)
    save_model(small_model("deit_tiny"), tmp_path)
    (tmp_path / "config.json").write_text("{ not json")
    with pytest.raises(ValueError, match=r"config.json can't be read"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"config.json can't be read"):
        load_model(tmp_path)


def test_load_model_wants_our_names(tmp_path: Path) -> None:
    model = small_model("deit_tiny")
    save_model(model, tmp_path)
    save_file(to_timm(model), tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="names are official, not vitrail's; read it with load_weights"):
        load_model(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="no weights in this folder"):
        load_model(tmp_path)


def test_an_embedding_on_a_trunk_that_was_built_without_the_catalogue_comes_back(tmp_path: Path) -> None:
    trunk = VisionTransformer(ViTConfig(image_size=16, patch_size=8, dim=16, depth=1, num_heads=2, num_classes=0))
    trunk.init_weights()  # the catalogue would have
    model = EmbeddingModel(trunk, EmbeddingSettings(projector="linear", dim=4, has_predictor=False)).eval()
    save_model(model, tmp_path)
    images = torch.randn(2, 3, 16, 16)
    assert torch.equal(load_model(tmp_path)(images), model(images))


def test_an_embedding_without_its_settings_is_one_line(tmp_path: Path) -> None:
    trunk = small_model("deit_tiny", num_classes=0)
    save_model(EmbeddingModel(trunk, EmbeddingSettings(projector="linear", dim=4)), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["settings"]["trunk"] = None
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        ValueError, match="trunk and head of a model of the family embedding must be objects with their settings"
    ):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("depth", 10**6, "depth is 1,000,000 and the weights beside it have"),
        ("dim", 2**50, "dim is 1,125,899,906,842,624 and the weights beside it have no side longer than"),
        ("num_classes", 10**8, "num_classes is 100,000,000 and the weights beside it have no side longer than"),
        ("image_size", 100_000, "image_size 100000 is too large: a side has at most 8192 pixels"),
        ("mlp_ratio", 1e300, "mlp_ratio is"),
        ("mlp_ratio", 1e3, "do not fit"),
        ("num_classes", 3, "they are not those of the settings beside them, get both anew"),
    ],
)
def test_sizes_are_compared_with_the_weights_before_a_model_is_built(
    key: str, value: float, reason: str, tmp_path: Path
) -> None:
    vitrail.save_model(small_model("deit_tiny"), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["settings"][key] = value
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=re.escape(reason)) as caught:
        vitrail.load_model(tmp_path)
    message = str(caught.value)
    assert message.startswith(str(tmp_path))
    assert "\n" not in message
    assert "reset_head" not in message


def test_saving_a_model_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    model = small_model("cait_xxs24")
    for name in ("one", "other"):
        vitrail.save_model(model, tmp_path / name)
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()
