"""Files of ONNX that a user may meet and that can't be used: one line, whatever ONNX Runtime says of them."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from served import save_tiny
from tiny_galleries import save_colour

from vitrail.cli import main
from vitrail.inference.exporting import ExportSettings, export_trained
from vitrail.inference.proof_images import ProofImages
from vitrail.inference.trained import load_trained

onnx = pytest.importorskip("onnx", reason="the extra export is not installed")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("onnx")
    model = save_tiny(folder / "pets")
    noise = torch.randint(0, 256, (3, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    export_trained(
        load_trained(model),
        ExportSettings(engine="onnx"),
        images=ProofImages(noise, torch.tensor([0, 1, 2]), "noise"),
        source=str(model),
        out=folder / "fast",
    )
    return folder / "fast"


def _spoil_bytes(file: Path) -> None:
    """No ONNX at all."""
    file.write_bytes(b"nothing" * 100)


def _spoil_opset(file: Path) -> None:
    """Operations of a version that nobody has."""
    model = onnx.load(file)
    model.opset_import[0].version = 99
    onnx.save(model, file)


def _spoil_operation(file: Path) -> None:
    """An operation that has no implementation in this precision: opening the session fails."""
    _put_last(
        file, [("Cast", {"to": onnx.TensorProto.BFLOAT16}), ("Erf", {}), ("Cast", {"to": onnx.TensorProto.FLOAT})]
    )


def _spoil_size(file: Path) -> None:
    """Images of another size than the record says."""
    model = onnx.load(file)
    for side in model.graph.input[0].type.tensor_type.shape.dim[2:]:
        side.dim_value += 4
    onnx.save(model, file)


def _spoil_answers(file: Path) -> None:
    """An operation that fails when it is computed."""
    _put_last(file, [("Reshape", {})], constant=np.array([7, -1], np.int64))


def _put_last(file: Path, operations: list[tuple[str, dict[str, Any]]], *, constant: np.ndarray | None = None) -> None:
    """Put operations behind all others of a model."""
    model = onnx.load(file)
    answer = model.graph.output[0]
    answer.type.tensor_type.ClearField("shape")
    maker = next(node for node in model.graph.node if answer.name in node.output)
    maker.output[list(maker.output).index(answer.name)] = "put 0"
    others = [] if constant is None else ["put constant"]
    for place, (kind, attributes) in enumerate(operations, start=1):
        name = answer.name if place == len(operations) else f"put {place}"
        model.graph.node.append(onnx.helper.make_node(kind, [f"put {place - 1}", *others], [name], **attributes))
    if constant is not None:
        model.graph.initializer.append(onnx.numpy_helper.from_array(constant, "put constant"))
    onnx.save(model, file)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (_spoil_bytes, "model.onnx can't be opened by ONNX Runtime"),
        (_spoil_opset, "model.onnx can't be opened by ONNX Runtime"),
        (_spoil_operation, "model.onnx can't be opened by ONNX Runtime"),
        (_spoil_size, "onnx can't compute the export"),
        (_spoil_answers, "onnx can't compute the export"),
    ],
)
def test_a_file_of_onnx_that_can_not_be_used_is_one_line(
    spoil: Callable[[Path], None], told: str, exported: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of the whole process: ONNX Runtime writes lines of its own past Python."""
    folder = tmp_path / "spoiled"
    shutil.copytree(exported, folder)
    spoil(folder / "model.onnx")
    record = json.loads((folder / "export.json").read_text())
    record["files"]["model.onnx"] = hashlib.sha256((folder / "model.onnx").read_bytes()).hexdigest()
    (folder / "export.json").write_text(json.dumps(record))
    assert main(["predict", str(folder), str(save_colour(tmp_path / "red.png", "red", seed=0))]) == 2
    said = capfd.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    assert told in said.err
