"""Teachers of features: what each kind gives, what it is shown, what is kept, and what can't teach."""

from pathlib import Path
from typing import Any

import pytest
import torch
from shrunk import randomize, small_model
from torch import Tensor
from torch.nn import functional

import vitrail
from vitrail.heads.features import FeatureShape, ProjectedFeatures
from vitrail.settings.own import allow_own
from vitrail.tasks.features import feature_cache
from vitrail.tasks.features.feature_cache import FeatureCache
from vitrail.tasks.teaching.feature_teacher import FeatureTeacher, load_feature_teacher

BOTH = frozenset({"summary", "patches"})
OWN = """
import torch

class Colours(torch.nn.Module):
    def forward(self, pixels):
        return pixels.mean(dim=(2, 3)), pixels[:, :, ::4, ::4]

def make():
    return Colours()
"""


def load(spec: str | Path, *, levels: frozenset[str] = BOTH, size: int = 16, **settings: Any) -> FeatureTeacher:
    return load_feature_teacher(str(spec), levels=levels, student_size=size, device=torch.device("cpu"), **settings)


@pytest.fixture
def pixels() -> Tensor:
    return torch.rand(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def normalized(pixels: Tensor, size: int) -> Tensor:
    images = functional.interpolate(pixels, size=(size, size), mode="bicubic", antialias=True).clamp(0, 1)
    mean, std = (torch.tensor(value).view(3, 1, 1) for value in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    return (images - mean) / std


def test_a_saved_model_sees_its_own_size_and_normalisation(tmp_path: Path, pixels: Tensor) -> None:
    model = randomize(small_model("deit_tiny", patch_size=8, image_size=32)).eval()
    vitrail.save_model(model, tmp_path / "teacher")
    teacher = load(tmp_path / "teacher")
    assert (teacher.summary, teacher.patches, teacher.grid) == (48, 48, (4, 4))
    with torch.no_grad():
        expected = model.features(normalized(pixels, 32))
    rows = teacher.on_grid((2, 2))(pixels)
    found = teacher.shape.split(rows)
    torch.testing.assert_close(found.summary, expected.summary[:, 0])
    torch.testing.assert_close(
        found.patches,
        functional.interpolate(expected.patches, size=(2, 2), mode="bilinear", antialias=True),
    )
    assert not rows.requires_grad
    assert not rows.is_inference()


def test_two_summary_tokens_stand_side_by_side_and_the_size_can_be_another(tmp_path: Path, pixels: Tensor) -> None:
    model = randomize(small_model("deit_tiny", patch_size=8, image_size=32, distilled=True)).eval()
    vitrail.save_model(model, tmp_path / "teacher")
    teacher = load(tmp_path / "teacher", levels=frozenset({"summary"}), image_size=16)
    assert (teacher.summary, teacher.patches) == (96, 0)
    with torch.no_grad():
        expected = model.resized(16).summarize(normalized(pixels, 16)).flatten(1)
    torch.testing.assert_close(teacher(pixels), expected)
    assert teacher.fingerprint != load(tmp_path / "teacher", levels=frozenset({"summary"})).fingerprint


def test_a_function_of_ones_own_may_teach(tmp_path: Path, pixels: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "colours.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    allow_own("colours:make")
    found = load("colours:make")
    features = found.shape.split(found(pixels))
    torch.testing.assert_close(features.summary, pixels.mean(dim=(2, 3)))
    torch.testing.assert_close(features.patches, pixels[:, :, ::4, ::4])


def write_onnx(path: Path, *, outputs: dict[str, str], size: Any = 8) -> Path:
    """A file whose outputs are, by their names, the mean colour, the pixels or logits."""
    onnx = pytest.importorskip("onnx", reason="needs onnx to write models")
    pytest.importorskip("onnxruntime", reason="needs onnxruntime, pip install vitrail[onnx]")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    nodes = {
        "mean": [("GlobalAveragePool", ["images"], ["pooled"]), ("Flatten", ["pooled"], ["@"])],
        "pixels": [("Identity", ["images"], ["@"])],
    }
    made, values = [], []
    for name, what in outputs.items():
        for operation, inputs, results in nodes[what]:
            made.append(helper.make_node(operation, inputs, [name if result == "@" else result for result in results]))
        shape = ["batch", 3] if what == "mean" else ["batch", 3, size, size]
        values.append(helper.make_tensor_value_info(name, kind, shape))
    images = helper.make_tensor_value_info("images", kind, ["batch", 3, size, size])
    model = helper.make_model(
        helper.make_graph(made, "colours", [images], values), opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    )
    helper.set_model_props(model, {"mean": "[0, 0, 0]", "std": "[1, 1, 1]"})
    onnx.save(model, str(path))
    return path


def test_an_onnx_file_names_its_features(tmp_path: Path, pixels: Tensor) -> None:
    teacher = load(write_onnx(tmp_path / "model.onnx", outputs={"summary": "mean", "patches": "pixels"}))
    small = functional.interpolate(pixels, size=(8, 8), mode="bicubic", antialias=True).clamp(0, 1)
    features = teacher.shape.split(teacher(pixels))
    torch.testing.assert_close(features.patches, small, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(features.summary, small.mean(dim=(2, 3)), atol=1e-6, rtol=1e-6)


def test_an_onnx_file_of_logits_or_of_another_size_is_one_line(tmp_path: Path) -> None:
    logits = write_onnx(tmp_path / "logits.onnx", outputs={"logits": "mean"})
    with pytest.raises(ValueError, match=r"gives logits \['batch', 3\] and no patches or summary: export summary"):
        load(logits)
    whole = write_onnx(tmp_path / "whole.onnx", outputs={"summary": "mean"})
    with pytest.raises(ValueError, match=r"gives summary \['batch', 3\] and no patches: export"):
        load(whole)
    with pytest.raises(ValueError, match="takes images of 8x8, not of 32x32"):
        load(whole, levels=frozenset({"summary"}), image_size=32)


def test_what_can_not_teach_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nobody: no such teacher; give a run's folder"):
        load("nobody")
    with pytest.raises(ValueError, match="features are learnt from one teacher"):
        load("deit_tiny,deit_small")
    vitrail.save_model(small_model("patchconvnet_s60"), tmp_path / "masked")
    (tmp_path / "masked" / "task.json").write_text('{"task": "masked", "reads_patches": true}')
    with pytest.raises(ValueError, match=r"the class stage of the teacher .*masked has learnt nothing: features\.summ"):
        load(tmp_path / "masked")
    assert load(tmp_path / "masked", levels=frozenset({"patches"})).shape.summary == 0
    vitrail.save_model(small_model("patchconvnet_s60", per_class_tokens=True), tmp_path / "per_class")
    with pytest.raises(ValueError, match=r"has 7 summary tokens, one a class: features\.summary=0"):
        load(tmp_path / "per_class")
    vitrail.save_model(small_model("deit_tiny", in_channels=1), tmp_path / "grey")
    with pytest.raises(ValueError, match="takes images of 1 channels: a teacher must take 3"):
        load(tmp_path / "grey")
    vitrail.save_model(small_model("deit_tiny"), tmp_path / "vit")
    with pytest.raises(ValueError, match=r"teacher\.image_size=100 is no size for the teacher"):
        load(tmp_path / "vit", image_size=100)


SHAPE = FeatureShape(summary=2, patches=1, grid=(1, 3))
PARTS: dict[str, Any] = {"teacher": "aa", "data": "bb", "augmentation": "cc", "num_samples": 4, "num_views": 2}


def test_features_are_kept_in_half_precision(tmp_path: Path) -> None:
    cache = FeatureCache.open(tmp_path, **PARTS, shape=SHAPE, limit=1.0)
    rows = torch.tensor([[0.1, -2.0, 3.0, 4.0, 1e6], [0.0, 1.0, 2.0, 3.0, 4.0]])
    place = torch.tensor([3, 0]), torch.tensor([1, 0])
    fresh = cache.answer(*place, pixels=lambda: rows, teacher=lambda pixels: pixels)
    expected = rows.clamp(-65504, 65504).half().float()
    assert torch.equal(fresh, expected)
    again = FeatureCache.open(tmp_path, **PARTS, shape=SHAPE, limit=1.0)
    assert torch.equal(again.read(*place), expected)
    assert cache.describe().endswith("2 of 8 known, 0.0 MB when full")
    with pytest.raises(ValueError, match="not finite"):
        cache.write(*place, torch.full((2, 5), torch.nan))
    other = FeatureCache.open(tmp_path, **PARTS, shape=FeatureShape(summary=2, patches=3, grid=(1, 1)), limit=1.0)
    assert other.folder != cache.folder


def test_what_would_take_too_much_room_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = FeatureShape(summary=192, patches=192, grid=(14, 14))
    with pytest.raises(
        ValueError,
        match=r"views:2 of 1,000,000 images would take 151\.3 GB, 37,824 numbers a view, .*limit is 4: fewer",
    ):
        FeatureCache.open(tmp_path, **PARTS | {"num_samples": 1_000_000}, shape=large, limit=4.0)
    monkeypatch.setattr(feature_cache.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 10}))
    with pytest.raises(ValueError, match=r"would take 0\.0 GB, and 0\.0 are free in .*: set teacher\.cache_folder"):
        FeatureCache.open(tmp_path / "new", **PARTS, shape=SHAPE, limit=4.0)
    assert not list(tmp_path.iterdir())


def test_rows_hold_what_is_joined() -> None:
    features = ProjectedFeatures(torch.randn(2, 2), torch.randn(2, 1, 1, 3))
    rows = SHAPE.join(features)
    assert rows.shape == (2, SHAPE.size)
    for part, expected in zip(SHAPE.split(rows), features, strict=True):
        torch.testing.assert_close(part, expected, atol=0, rtol=0)
    alone = FeatureShape(summary=2, patches=0, grid=(0, 0))
    assert alone.split(rows[:, :2]).patches is None
