"""ONNX files as teachers: sizes and batches that a file fixes or leaves open, its metadata, and what is no teacher."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from vitrail.evaluation.lanes import Lanes
from vitrail.tasks.distill.teachers import Teacher, load_teacher
from vitrail.tasks.teaching.onnx_teacher import OnnxModel

onnx = pytest.importorskip("onnx", reason="needs onnx to write models")
pytest.importorskip("onnxruntime", reason="needs onnxruntime, pip install vitrail[onnx]")

MATRIX = np.array([[1, 0, 0], [0, 2, 0], [0, 0, 3], [1, 1, 1]], dtype=np.float32)  # 3 colours -> 4 classes
MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])


def write_model(path: Path, shape: list[Any], metadata: dict[str, str] | None = None, channels: int = 3) -> str:
    """A model that multiplies the mean colour by a matrix."""
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [
            helper.make_node("GlobalAveragePool", ["images"], ["pooled"]),
            helper.make_node("Flatten", ["pooled"], ["colours"]),
            helper.make_node("Gemm", ["colours", "matrix"], ["logits"], transB=1),
        ],
        "colours",
        [helper.make_tensor_value_info("images", kind, [shape[0], channels, *shape[1:]])],
        [helper.make_tensor_value_info("logits", kind, [shape[0], 4])],
        [onnx.numpy_helper.from_array(MATRIX[:, :channels], "matrix")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    helper.set_model_props(model, metadata or {})
    onnx.save(model, str(path))
    return str(path)


def load(spec: str, classes: str = "abcd", **settings: Any) -> Teacher:
    return load_teacher(spec, classes=list(classes), device=torch.device("cpu"), **settings)


def expected(pixels: Tensor, *, mean: Tensor = MEAN, std: Tensor = STD) -> Tensor:
    return (pixels.mean(dim=(2, 3)) - mean) / std @ torch.from_numpy(MATRIX).T


@pytest.fixture
def pixels() -> Tensor:
    return torch.rand(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def test_any_batch_and_any_size(tmp_path: Path, pixels: Tensor) -> None:
    teacher = load(write_model(tmp_path / "model.onnx", ["batch", "height", "width"]))
    answers = teacher(pixels)
    torch.testing.assert_close(answers, expected(pixels), atol=1e-5, rtol=1e-5)
    assert not answers.is_inference()


@pytest.mark.parametrize("batch_size", [1, 2, 5, 8])
def test_a_fixed_batch_size(tmp_path: Path, pixels: Tensor, batch_size: int) -> None:
    teacher = load(write_model(tmp_path / "model.onnx", [batch_size, 8, 8]))
    torch.testing.assert_close(teacher(pixels), expected(pixels), atol=1e-5, rtol=1e-5)


def test_a_fixed_size_resizes_the_images(tmp_path: Path, pixels: Tensor) -> None:
    path = write_model(tmp_path / "model.onnx", ["batch", 4, 6])
    resized = functional.interpolate(pixels, size=(4, 6), mode="bicubic", antialias=True).clamp(0, 1)
    torch.testing.assert_close(load(path)(pixels), expected(resized), atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="takes images of 4x6, not of 8x8"):
        load(path, image_size=8)


def test_the_metadata_says_the_normalisation_and_the_classes(tmp_path: Path, pixels: Tensor) -> None:
    metadata = {"mean": "[0.5, 0.5, 0.5]", "std": "[0.5, 0.5, 0.25]", "classes": json.dumps(list("wxyz"))}
    path = write_model(tmp_path / "model.onnx", ["batch", 8, 8], metadata)
    everything = expected(pixels, mean=torch.tensor([0.5] * 3), std=torch.tensor([0.5, 0.5, 0.25]))
    torch.testing.assert_close(load(path, "zx")(pixels), everything[:, [3, 1]], atol=1e-5, rtol=1e-5)


def test_a_fingerprint_follows_the_file_and_the_weights_beside_it(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.onnx", ["batch", 8, 8])
    first = load(path).fingerprint
    assert load(path).fingerprint == first
    (tmp_path / "model.onnx.data").write_bytes(b"weights")
    second = load(path).fingerprint
    (tmp_path / "model.onnx.data").unlink()
    write_model(tmp_path / "model.onnx", ["batch", 8, 8], {"author": "another"})
    assert len({first, second, load(path).fingerprint}) == 3


def test_lanes_take_no_more_threads_than_there_are_cores(tmp_path: Path, pixels: Tensor) -> None:
    model = OnnxModel(
        write_model(tmp_path / "model.onnx", ["batch", 8, 8]), image_size=None, device=torch.device("cpu")
    )
    seen: list[int] = []

    def ask(images: Tensor) -> Tensor:
        [logits] = model.ask(images, "logits")
        seen.append(model._session.get_session_options().intra_op_num_threads)
        return logits

    before, alone = torch.get_num_threads(), model.ask(pixels, "logits")[0]
    try:
        torch.set_num_threads(2)
        with Lanes(2, threads=1) as lanes:
            answers = list(lanes.map(ask, [pixels] * 6))
        assert seen == [1] * 6  # each is computed by the lane that asks
        ask(pixels)
        assert seen[-1] == 2  # alone, it has all threads
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(answer, alone) for answer in answers)
    options = model._session.get_session_options()
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


def test_what_is_no_teacher_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"this is no model")
    with pytest.raises(ValueError, match=r"broken\.onnx: damaged, or not an ONNX model"):
        load(str(tmp_path / "broken.onnx"))
    with pytest.raises(ValueError, match=r"a teacher takes images \[batch, 3, height, width\]"):
        load(write_model(tmp_path / "grey.onnx", ["batch", 8, 8], channels=1))
    with pytest.raises(ValueError, match="mean in its metadata is 'grey', not a JSON list"):
        load(write_model(tmp_path / "odd.onnx", ["batch", 8, 8], {"mean": "grey"}))
    with pytest.raises(ValueError, match="names 2 classes and it has 4"):
        load(write_model(tmp_path / "few.onnx", ["batch", 8, 8], {"classes": '["a", "b"]'}))
    with pytest.raises(ValueError, match="has 4 classes without names and the student 3"):
        load(write_model(tmp_path / "plain.onnx", ["batch", 8, 8]), "abc")


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_model(tmp_path / "model.onnx", ["batch", 8, 8])
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ValueError, match=r"need onnxruntime: pip install vitrail\[onnx\]"):
        load(path)
