"""Reading weights from files and folders: every kind, broken ones, and pickles that would run code."""

import argparse
import io
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from shrunk import randomize, small_model
from torch import Tensor

from vitrail import load_weights, to_timm
from vitrail.models.contract import Model

NAME = "deit_tiny"


@pytest.fixture(scope="module")
def source() -> Model:
    return randomize(small_model(NAME))


def assert_loads(path: Any, source: Model) -> None:
    model = load_weights(small_model(NAME), path)
    assert all(torch.equal(value, source.state_dict()[name]) for name, value in model.state_dict().items())


def assert_refused(path: Any, text: str) -> str:
    """The error's text; it has at most two lines, and the model is as it was."""
    model = small_model(NAME)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match=text) as error:
        load_weights(model, path)
    assert str(error.value).count("\n") <= 1
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    return str(error.value)


def save_safetensors(state: dict[str, Tensor], path: Path) -> None:
    save_file(state, path)


def save_legacy(state: dict[str, Tensor], path: Path) -> None:
    torch.save(state, path, _use_new_zipfile_serialization=False)


@pytest.mark.parametrize(
    ("name", "save"),
    [
        ("w.safetensors", save_safetensors),
        ("w.pth", torch.save),
        ("w.pt", torch.save),
        ("w.bin", save_legacy),
        ("w.bin", save_safetensors),  # the content decides, not the name
    ],
)
def test_kinds_of_files(name: str, save: Callable[[Any, Path], None], source: Model, tmp_path: Path) -> None:
    save(to_timm(source), tmp_path / name)
    assert_loads(tmp_path / name, source)
    assert_loads(str(tmp_path / name), source)
    assert_loads(tmp_path, source)  # the folder's only file of weights


def test_an_official_checkpoint_with_its_command_line(source: Model, tmp_path: Path) -> None:
    arguments = argparse.Namespace(lr=5e-4, output_dir="", data_set="IMNET", opt_betas=None)
    content = {"model": to_timm(source), "epoch": 299, "args": arguments, "optimizer": {"state": {}, "lr": [0.1]}}
    torch.save(content, tmp_path / "checkpoint.pth")
    assert_loads(tmp_path / "checkpoint.pth", source)


def test_a_folder_prefers_safetensors(source: Model, tmp_path: Path) -> None:
    torch.save({"wrong": torch.ones(1)}, tmp_path / "pytorch_model.bin")
    torch.save({"wrong": torch.ones(1)}, tmp_path / "other.pth")
    save_file(to_timm(source), tmp_path / "model.safetensors")
    assert_loads(tmp_path, source)


def test_a_folder_with_the_hubs_older_name(source: Model, tmp_path: Path) -> None:
    torch.save(to_timm(source), tmp_path / "pytorch_model.bin")
    torch.save({"wrong": torch.ones(1)}, tmp_path / "training_state.pth")
    assert_loads(tmp_path, source)


def test_folders_without_one_file_of_weights(source: Model, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing here")
    assert_refused(tmp_path, "no weights in this folder")
    for name in ("a.pth", "b.pth"):
        torch.save(to_timm(source), tmp_path / name)
    assert_refused(tmp_path, r"2 files of weights \(a.pth, b.pth\): name one of them")


def test_missing_path(tmp_path: Path) -> None:
    assert_refused(tmp_path / "nowhere.pth", "nowhere.pth: no such file or folder")


def jpeg() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, format="JPEG")
    return buffer.getvalue()


def archive() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("word/document.xml", "<xml/>")
    return buffer.getvalue()


@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".bin"])
@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "the file is empty"),
        (b"weights: none\n", "not a file of weights"),
        (b"{}", "not a file of weights"),
        (jpeg(), "not a file of weights"),
        (archive(), "damaged, or not a file of torch.save"),
        (b"\xff\xff\xff\xff\xff\xff\xff\x7f{", "damaged, or not a safetensors file"),
        (b"\x02\x00\x00\x00\x00\x00\x00\x00{}", "holds nothing"),
        (b"\x80\x02}q\x00", "damaged, or not a file of torch.save"),
    ],
    ids=["empty", "text", "json", "jpeg", "zip", "header", "no tensors", "pickle"],
)
def test_wrong_files(content: bytes, text: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"weights{suffix}"
    path.write_bytes(content)
    assert_refused(path, text)


@pytest.mark.parametrize("save", [save_safetensors, torch.save, save_legacy])
@pytest.mark.parametrize("share", [0.999, 0.5, 0.01])
def test_truncated_files(save: Callable[[Any, Path], None], share: float, source: Model, tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    save(to_timm(source), path)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    assert_refused(path, "damaged")


class Malicious:
    """A pickle of it makes a folder when it is read without care."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize("kind", ["zip", "legacy", "plain pickle"])
def test_a_pickle_that_would_run_code_is_refused_and_nothing_runs(kind: str, source: Model, tmp_path: Path) -> None:
    target, path = tmp_path / "made", tmp_path / "model.pth"
    pickle.loads(pickle.dumps(Malicious(target)))
    target.rmdir()  # so it does run where it may
    content = {"model": to_timm(source), "args": Malicious(target)}
    if kind == "plain pickle":
        path.write_bytes(pickle.dumps(content))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=kind == "zip")
    text = assert_refused(path, "refused, it holds more than tensors")
    assert not target.exists()
    assert "Nothing of it was run" in text
    assert f"({os.mkdir.__module__}.mkdir)" in text or kind == "plain pickle"


def test_a_whole_pickled_model_is_refused(source: Model, tmp_path: Path) -> None:
    torch.save(source, tmp_path / "model.pth")
    assert_refused(
        tmp_path / "model.pth", r"refused, it holds more than tensors \(vitrail.models.vit.VisionTransformer\)"
    )


def test_a_file_with_something_else_inside(tmp_path: Path) -> None:
    torch.save([torch.ones(2)], tmp_path / "list.pth")
    assert_refused(tmp_path / "list.pth", "holds a list where tensors by name were expected")
    torch.save({"epoch": 3, "loss": 0.5}, tmp_path / "log.pth")
    assert_refused(tmp_path / "log.pth", "these entries are none: 'epoch', 'loss'")
