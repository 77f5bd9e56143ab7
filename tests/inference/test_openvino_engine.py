"""What OpenVINO computes: graphs of one size and of any, and what is rewritten for bfloat16."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import vitrail
from vitrail.inference.engines import open_engine
from vitrail.inference.engines.openvino_bf16 import prepare_for_bfloat16
from vitrail.inference.engines.openvino_engine import OpenVinoEngine, compile_model, convert
from vitrail.inference.export_record import read_record
from vitrail.inference.exporting import ExportSettings, export_trained, make_draft
from vitrail.inference.proof_images import ProofImages
from vitrail.inference.trained import Trained, make_trained
from vitrail.inference.whole_model import LAYOUTS


def noise(count: int, side: int = 32) -> Tensor:
    return torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def trained() -> Trained:
    torch.manual_seed(0)
    model = vitrail.create_model("deit_tiny", image_size=32, patch_size=8, dim=16, depth=2, num_heads=2, num_classes=5)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    return make_trained(model.eval(), None, label="tiny")


@pytest.fixture(scope="module")
def exported(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITRAIL_CACHE", str(tmp_path_factory.mktemp("cache")))
        return export(trained, tmp_path_factory.mktemp("export") / "out")


def export(trained: Trained, folder: Path, **settings: bool) -> Path:
    chosen = ExportSettings(engine="openvino", **settings)  # type: ignore[arg-type]
    return export_trained(
        trained, chosen, images=ProofImages(noise(3), None, "noise"), source="tiny", out=folder
    ).folder


def test_single_images_have_a_graph_of_their_own_with_the_same_answers(exported: Path, trained: Trained) -> None:
    engine = open_engine(exported, read_record(exported))
    assert isinstance(engine, OpenVinoEngine)
    assert set(engine.graphs) == {None, 1}
    assert engine.graphs[1].compiled.inputs[0].get_partial_shape().is_static
    wanted = engine.compute(noise(3))
    for place in range(3):
        found = engine.compute(noise(3)[place : place + 1])
        for name, value in found.items():
            assert value.shape[0] == 1
            torch.testing.assert_close(value[0], wanted[name][place], rtol=1e-4, atol=1e-5)


def test_parts_side_by_side_are_filled_up(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitrail.inference.engines.count_cores", lambda: 2)
    record = read_record(exported)
    lanes = open_engine(exported, record.model_copy(update={"threads": 2, "part": 2, "lanes": 2}))
    assert lanes.beside is not None
    beside = lanes.beside.compute.__self__  # type: ignore[attr-defined]
    assert set(beside.graphs) == {2}
    wanted = open_engine(exported, record).compute(noise(7))
    for count in (3, 4, 7):  # parts of 2 and 1; of 2; of 2, 2, 2 and 1
        for name, value in lanes(noise(7)[:count]).items():
            assert value.shape[0] == count
            torch.testing.assert_close(value, wanted[name][:count], rtol=1e-4, atol=1e-5)


def test_images_of_any_size_have_no_graph_for_one(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    folder = export(trained, tmp_path / "out", dynamic_size=True)
    engine = open_engine(folder, read_record(folder))
    assert isinstance(engine, OpenVinoEngine)
    assert set(engine.graphs) == {None}
    assert engine.compute(noise(1, side=40))["logits"].shape == (1, 5)


def test_embeddings_end_in_a_product_that_changes_nothing(trained: Trained) -> None:
    draft = make_draft(trained, ExportSettings(engine="openvino"))
    plain, ended = convert(draft), convert(draft)
    prepare_for_bfloat16(ended)
    kinds = [
        [output.get_node().input_value(0).get_node().get_type_name() for output in one.outputs]
        for one in (plain, ended)
    ]
    assert kinds[1] == ["Add", "MatMul"] != kinds[0]  # of logits and embedding
    assert [one.get_names() for one in ended.outputs] == [one.get_names() for one in plain.outputs]
    answers = [compile_model(one, threads=1)([noise(3).numpy()]) for one in (plain, ended)]
    for name in ("logits", "embedding"):
        torch.testing.assert_close(
            torch.from_numpy(answers[1][name]), torch.from_numpy(answers[0][name]), rtol=1e-5, atol=1e-6
        )


def constant_products(model: Any) -> int:
    """Products of two factors whose first is a constant, perhaps repeated for all images."""
    firsts = [node.input_value(0).get_node() for node in model.get_ordered_ops() if node.get_type_name() == "MatMul"]
    firsts = [one.input_value(0).get_node() if one.get_type_name() == "Broadcast" else one for one in firsts]
    return [one.get_type_name() for one in firsts].count("Constant")


def test_the_matrices_of_resmlp_are_no_constants_and_give_the_same_answers() -> None:
    torch.manual_seed(0)
    model = vitrail.create_model("resmlp_s12", image_size=48, patch_size=8, dim=16, depth=2, num_classes=5)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    for layout in LAYOUTS:
        trained = make_trained(model.eval(), None, label="tiny")
        draft = make_draft(trained, ExportSettings(engine="openvino", layout=layout))
        plain, rewritten = convert(draft), convert(draft)
        prepare_for_bfloat16(rewritten)
        assert (constant_products(plain), constant_products(rewritten)) == (2, 0)  # a layer of each block
        images = draft.example(batch=3).numpy()
        answers = [compile_model(one, threads=1)([images]) for one in (plain, rewritten)]
        for name in ("logits", "embedding"):
            assert np.allclose(answers[1][name], answers[0][name], rtol=1e-4, atol=1e-5)


def test_products_with_a_row_for_each_head_stay_constant() -> None:
    torch.manual_seed(0)
    model = vitrail.create_model("cait_xxs24", image_size=32, patch_size=8, dim=16, depth=2, num_heads=2)
    draft = make_draft(make_trained(model.eval(), None, label="tiny"), ExportSettings(engine="openvino"))
    plain, rewritten = convert(draft), convert(draft)
    prepare_for_bfloat16(rewritten)
    assert constant_products(rewritten) == constant_products(plain) > 0
