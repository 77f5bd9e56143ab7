"""Weights on the hub: read from a local cache that the tests make, with the network switched off."""

import json
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import torch
from safetensors.torch import save_file
from shrunk import randomize, small_model

from vitrail import load_model, load_weights, save_model, to_timm
from vitrail.models.contract import Model
from vitrail.weights.hub import HubAddress

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OTHER_COMMIT = "fedcba9876543210fedcba9876543210fedcba98"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache and no network."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return tmp_path


def snapshot(cache: Path, repository: str, *, revision: str = "main", commit: str = COMMIT) -> Path:
    """The folder where a revision's files lie, laid out as the hub's library does."""
    folder = cache / f"models--{repository.replace('/', '--')}"
    files = folder / "snapshots" / commit
    files.mkdir(parents=True)
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / revision).write_text(commit)
    return files


def assert_loads(address: str, source: Model) -> None:
    model = load_weights(small_model("deit_tiny"), address)
    assert all(torch.equal(value, source.state_dict()[name]) for name, value in model.state_dict().items())


def test_weights_from_the_cache(cache: Path) -> None:
    source = randomize(small_model("deit_tiny"))
    files = snapshot(cache, "owner/deit-tiny")
    torch.save({"wrong": torch.ones(1)}, files / "pytorch_model.bin")
    save_file(to_timm(source), files / "model.safetensors")
    assert_loads("hf://owner/deit-tiny", source)
    assert_loads("hf://owner/deit-tiny@main", source)
    assert_loads(f"hf://owner/deit-tiny@{COMMIT}", source)
    assert_loads("hf://owner/deit-tiny/model.safetensors", source)


def test_older_name_and_own_name_of_a_file(cache: Path) -> None:
    source = randomize(small_model("deit_tiny"))
    torch.save(to_timm(source), snapshot(cache, "owner/old") / "pytorch_model.bin")
    assert_loads("hf://owner/old", source)
    files = snapshot(cache, "owner/many")
    (files / "runs").mkdir()
    torch.save({"model": to_timm(source)}, files / "runs" / "best.pth")
    assert_loads("hf://owner/many/runs/best.pth", source)


def test_revisions_differ(cache: Path) -> None:
    first, second = randomize(small_model("deit_tiny")), randomize(small_model("deit_tiny"), seed=1)
    save_file(to_timm(first), snapshot(cache, "owner/two") / "model.safetensors")
    save_file(to_timm(second), snapshot(cache, "owner/two", revision="v2", commit=OTHER_COMMIT) / "model.safetensors")
    assert_loads("hf://owner/two", first)
    assert_loads("hf://owner/two@v2", second)


def test_load_model_from_the_cache(cache: Path) -> None:
    source = randomize(small_model("cait_xxs24"))
    save_model(source, snapshot(cache, "owner/cait"))
    model = load_model("hf://owner/cait")
    assert model.config == source.config
    assert all(torch.equal(value, source.state_dict()[name]) for name, value in model.state_dict().items())


def test_load_model_without_config(cache: Path) -> None:
    files = snapshot(cache, "owner/timm-model")
    save_file(to_timm(small_model("deit_tiny")), files / "model.safetensors")
    with pytest.raises(ValueError, match=r"no config.json in the local cache"):
        load_model("hf://owner/timm-model")
    (files / "config.json").write_text(json.dumps({"architecture": "deit_tiny_patch16_224"}))
    with pytest.raises(ValueError, match="was not written by vitrail; create the model and use load_weights"):
        load_model("hf://owner/timm-model")
    with pytest.raises(ValueError, match="takes a whole repository"):
        load_model("hf://owner/timm-model/model.safetensors")


def test_what_is_not_in_the_cache_is_a_short_error_without_network() -> None:
    model = small_model("deit_tiny")
    with pytest.raises(ValueError, match=r"hf://owner/unknown: no model.safetensors or .* in the local cache") as error:
        load_weights(model, "hf://owner/unknown")
    assert str(error.value).count("\n") == 1


def test_the_cache_is_asked_before_the_network(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = randomize(small_model("deit_tiny"))
    torch.save(to_timm(source), snapshot(cache, "owner/old") / "pytorch_model.bin")
    asked: list[bool] = []
    download = huggingface_hub.hf_hub_download

    def record(*arguments: Any, **settings: Any) -> Any:
        asked.append(settings["local_files_only"])
        return download(*arguments, **settings)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", record)
    assert_loads("hf://owner/old", source)
    assert asked == [True, True]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("hf://owner/name", ("owner/name", None, None)),
        ("hf://owner/name@v1.0", ("owner/name", "v1.0", None)),
        ("hf://owner/name/a/b.pth", ("owner/name", None, "a/b.pth")),
        ("hf://owner/name@abc/b.pth", ("owner/name", "abc", "b.pth")),
    ],
)
def test_addresses(text: str, parts: tuple[str, str | None, str | None]) -> None:
    address = HubAddress.parse(text)
    assert (address.repository, address.revision, address.file) == parts
    assert str(address) == text


@pytest.mark.parametrize(
    "text", ["hf://", "hf://name", "hf://owner/", "hf://owner/name/../x", "hf://owner/na me", "hf://..", "hf://../.."]
)
def test_bad_addresses(text: str) -> None:
    with pytest.raises(ValueError, match="not of the form hf://owner/name"):
        load_weights(small_model("deit_tiny"), text)
