"""Kinds of models and numbers through engines that compute graphs: dense heads, embeddings, patches, int8, 16 bits."""

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vitrail
from vitrail.heads.embed import EmbeddingModel, EmbeddingSettings
from vitrail.heads.segment import SegmentModel, SegmentSettings
from vitrail.inference.certificate import certify
from vitrail.inference.engines import trust
from vitrail.inference.engines.onnx_engine import OnnxEngine
from vitrail.inference.engines.program_engines import InductorEngine
from vitrail.inference.export_record import CERTIFICATE_FILE, read_record
from vitrail.inference.exporting import ExportSettings, export_folder, export_trained, prove
from vitrail.inference.judging import Judge
from vitrail.inference.paper_speeds import find_largest
from vitrail.inference.proof_images import ProofImages
from vitrail.inference.quantising import QuantiseSettings, write_quantised
from vitrail.inference.trained import Trained, make_trained

GRAPHS = ("onnx", "openvino")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def noise(count: int = 5, side: int = 32) -> Tensor:
    return torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


PROOF = ProofImages(noise(), torch.tensor([0, 1, 2, 3, -1]), "noise")


def tiny(name: str = "deit_tiny", *, seed: int = 0, std: float = 0.2, **settings: Any) -> Any:
    torch.manual_seed(seed)
    heads = {"num_heads": 2} if name.startswith(("cait", "deit")) else {}
    given = {"image_size": 32, "patch_size": 8, "dim": 16, "depth": 2, "num_classes": 5, **heads, **settings}
    model = vitrail.create_model(name, **given)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=std)
    return model


def as_trained(model: Any, **description: Any) -> Trained:
    return make_trained(model.eval(), description or None, label="tiny")


def export_to(folder: Path, trained: Trained, engine: str, *, images: ProofImages = PROOF, **settings: Any) -> Path:
    chosen = ExportSettings(engine=engine, **settings)
    return export_trained(trained, chosen, images=images, source="tiny", out=folder).folder


def quantise_to(folder: Path, trained: Trained, engine: str, *, max_loss: float = 100.0) -> Path:
    chosen, allowed = ExportSettings(engine=engine), QuantiseSettings(max_loss=max_loss, num_calibration=4)

    def write(place: Path) -> Any:
        record = write_quantised(place, trained, chosen, allowed, images=PROOF, source="tiny")
        return record, prove(place, record, trained, images=PROOF)

    return export_folder(folder, write).folder


def segmenter() -> Trained:
    trunk = tiny(patch_size=16, depth=4, num_classes=0)
    model = SegmentModel(trunk, SegmentSettings(num_classes=3, channels=8, has_auxiliary=False))
    return as_trained(model, task="segment", classes=["sky", "road", "car"])


@torch.no_grad()
@pytest.mark.skipif(bool(InductorEngine.missing()), reason="there is no C++ compiler")
def test_a_model_is_compiled_to_native_code(tmp_path: Path) -> None:
    trained = as_trained(tiny("resmlp_s24", depth=1), classes=list("abcde"))
    loaded = vitrail.load_trained(export_to(tmp_path / "out", trained, "inductor"))
    for count in (1, 5):
        wanted = trained.model(trained.normalize(noise(count)))
        torch.testing.assert_close(loaded.model(noise(count)), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("engine", GRAPHS)
def test_segmentation_through_graphs_gives_the_masks_of_the_model(engine: str, tmp_path: Path) -> None:
    trained = segmenter()
    masks = torch.randint(0, 3, (5, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    masks[0] = 255  # nobody knows it
    folder = export_to(tmp_path / "out", trained, engine, images=ProofImages(noise(), masks, "noise"))
    found = json.loads((folder / CERTIFICATE_FILE).read_text())
    assert (found["measure"], found["num_labels"]) == ("mean IoU", 4)
    assert 0.0 < found["accuracy"] == pytest.approx(found["exported_accuracy"], abs=0.1)
    loaded = vitrail.load_trained(folder)
    wanted = trained.model.outputs(trained.normalize(noise()))["logits"].detach()
    torch.testing.assert_close(loaded.model(noise()), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("engine", GRAPHS)
@pytest.mark.parametrize("kind", ["trunk", "embedding"])
def test_embeddings_through_graphs_are_those_of_the_model(kind: str, engine: str, tmp_path: Path) -> None:
    trunk = tiny(num_classes=0)
    trained = as_trained(trunk if kind == "trunk" else EmbeddingModel(trunk, EmbeddingSettings(num_classes=0, dim=8)))
    folder = export_to(tmp_path / "out", trained, engine)
    loaded = vitrail.load_trained(folder)
    torch.testing.assert_close(loaded.embed(noise()), trained.embed(noise()), rtol=1e-4, atol=1e-5)
    found = json.loads((folder / CERTIFICATE_FILE).read_text())
    assert (found["measure"], found["top1_agreement"]) == ("cosine with the model", None)
    assert found["cosine"] == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("engine", ["eager", "onnx"])
@pytest.mark.parametrize("name", ["cait_xxs24", "patchconvnet_s60"])
def test_of_masked_models_the_mean_of_patches_is_exported(name: str, engine: str, tmp_path: Path) -> None:
    """Nothing trains the class stage of a model that learns from masked patches."""
    settings = {"patch_size": 16} if name == "patchconvnet_s60" else {}
    trained = as_trained(tiny(name, num_classes=0, **settings), task="masked", reads_patches=True)
    folder = export_to(tmp_path / "out", trained, engine)
    loaded = vitrail.load_trained(folder)
    torch.testing.assert_close(loaded.embed(noise()), trained.embed(noise()), rtol=1e-4, atol=1e-5)
    assert loaded.model.embeds_patches


@torch.no_grad()
@pytest.mark.parametrize("name", ["deit_tiny", "cait_xxs24"])
def test_openvino_computes_in_int8(name: str, tmp_path: Path) -> None:
    trained = as_trained(tiny(name), classes=list("abcde"))
    folder = quantise_to(tmp_path / "out", trained, "openvino")
    facts = read_record(folder).quantised
    assert facts is not None
    assert facts["num_layers"] > 5
    assert facts["measure"] == "top-1"
    wanted = trained.model(trained.normalize(noise()))
    found = vitrail.load_trained(folder).model(noise())
    assert 0.0 < float((found - wanted).abs().max()) < 0.3 * float(wanted.abs().max())


def test_class_names_of_int8_exports_are_held_to_as_well(tmp_path: Path) -> None:
    folder = quantise_to(tmp_path / "out", as_trained(tiny(), classes=list("abcde")), "eager")
    described = json.loads((folder / "task.json").read_text())
    (folder / "task.json").write_text(json.dumps({**described, "classes": list("edcba")}))
    with pytest.raises(ValueError, match="is not the file that was exported"):
        vitrail.load_trained(folder)


@torch.no_grad()
def test_half_precision_in_onnx_is_a_file_half_as_large(tmp_path: Path) -> None:
    trained = as_trained(tiny(dim=64, std=0.05), classes=list("abcde"))
    whole, half = (
        export_to(tmp_path / precision, trained, "onnx", precision=precision) for precision in ("fp32", "fp16")
    )
    assert (half / "model.onnx").stat().st_size < 0.7 * (whole / "model.onnx").stat().st_size
    wanted = trained.model(trained.normalize(noise()))
    found = vitrail.load_trained(half).model(noise())
    assert 0.0 < float((found - wanted).abs().max()) < 2e-2 * float(wanted.abs().max())


@pytest.mark.skipif(not torch.cpu._is_avx512_bf16_supported(), reason="the CPU has no instructions for bfloat16")
@pytest.mark.parametrize("name", ["deit_tiny", "resmlp_s24"])
def test_openvino_computes_in_bfloat16(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitrail.inference.engines.openvino_engine.has_native_bfloat16", lambda: True)
    folder = export_to(tmp_path / "out", as_trained(tiny(name, std=0.05)), "openvino", precision="bf16")
    share = json.loads((folder / CERTIFICATE_FILE).read_text())["outputs"]["logits"]["share"]
    assert 1e-5 < share < 1e-1  # it is not fp32


def test_exports_of_other_weights_or_numbers_are_other_models(tmp_path: Path) -> None:
    """Galleries, caches and teachers tell them apart; the graph of OpenVINO lies in a file without weights."""
    first, second = (as_trained(tiny(seed=seed), classes=list("abcde")) for seed in (0, 1))
    folders = [
        export_to(tmp_path / "first", first, "openvino"),
        export_to(tmp_path / "second", second, "openvino"),
        export_to(tmp_path / "eager", first, "eager"),
        quantise_to(tmp_path / "int8", first, "eager"),
    ]
    models: list[Any] = [vitrail.load_trained(folder).model for folder in folders]
    assert len({model.config.sha256 for model in models}) == len({str(model.sha256.tolist()) for model in models}) == 4


@pytest.mark.parametrize("engine", ["onnx", "openvino", "torch"])
def test_a_model_that_can_not_be_recorded_is_one_line(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object, **settings: object) -> None:
        raise RuntimeError("Could not guard\non data-dependent expression")

    monkeypatch.setattr("torch.export.export", fail)
    told = rf"{engine} can't take the model \(Could not guard on data-dependent expression\): another engine may"
    with pytest.raises(ValueError, match=told):
        export_to(tmp_path / "out", as_trained(tiny()), engine)
    assert list(tmp_path.iterdir()) == []


def test_a_library_that_fails_to_quantise_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: object, **settings: object) -> None:
        raise RuntimeError("no such\noperator")

    monkeypatch.setattr(OnnxEngine, "write_int8", fail)
    with pytest.raises(ValueError, match=r"onnx can't quantise the model \(no such operator\)"):
        quantise_to(tmp_path / "a" / "b", as_trained(tiny()), "onnx")
    assert list(tmp_path.iterdir()) == []  # nor a folder that was made for it


def test_what_is_not_finite_stands_in_no_json(tmp_path: Path) -> None:
    trained = as_trained(tiny(num_classes=0))
    exported: Any = vitrail.load_trained(export_to(tmp_path / "out", trained, "eager")).model
    honest = exported.engine
    exported.engine = lambda images: {name: value / 0.0 for name, value in honest(images).items()}
    found = certify(trained, exported, PROOF, tolerance=1e-4)
    assert not found.agrees
    text = json.dumps(found.describe(exported.record), allow_nan=False)
    assert json.loads(text)["outputs"]["embedding"]["largest"] is None


def test_embeddings_are_judged_by_their_cosine() -> None:
    wanted = {"embedding": torch.tensor([[1.0, 0.0], [0.0, 1.0]])}
    judge = Judge(wanted, replace(PROOF, targets=None))
    assert judge(wanted) == 100.0
    assert judge({"embedding": torch.tensor([[1.0, 0.0], [1.0, 0.0]])}) == 50.0


def test_masks_are_judged_by_their_overlap() -> None:
    logits = torch.tensor([[[[4.0, 0.0]], [[0.0, 4.0]]]])  # [1, 2 classes, 1, 2]: left the first, right the second
    masks = torch.tensor([[[0, 0, 1, 255], [0, 1, 1, 1]]], dtype=torch.uint8)
    judge = Judge({"logits": logits}, ProofImages(noise(1), masks, "noise"))
    # Of the first class 3 pixels are true and 4 answered, 3 of them right; of the second 3 of 4 that are known.
    assert judge({"logits": logits}) == pytest.approx(100.0 * (3 / 4 + 3 / 4) / 2)
    assert (judge.measure, judge.num_known) == ("mean IoU", 1)


def test_exports_that_end_at_the_same_time_are_all_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    record = read_record(export_to(tmp_path / "out", as_trained(tiny()), "eager"))
    records = [record.model_copy(update={"files": {"model": f"{place:064x}"}}) for place in range(16)]
    threads = [threading.Thread(target=trust.note_own, args=(tmp_path, one)) for one in records]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    known = json.loads(trust.own_record().read_text())
    assert {f"{place:064x}" for place in range(16)} <= set(known)


def test_the_largest_batch_that_fitted_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    from vitrail.inference import paper_speeds

    def run(model: Any, images: Tensor, *, dtype: torch.dtype) -> None:
        if len(images) > 5:
            raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(paper_speeds, "_run", run)
    model, device = tiny(), torch.device("cpu")
    assert find_largest(model, device=device, dtype=torch.float32, largest=7)[0] == 4
    assert find_largest(model, device=device, dtype=torch.float32, largest=5)[0] == 5
