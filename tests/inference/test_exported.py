"""Exported folders: engines give the answers of the model, and what is wrong with a folder is told in one line."""

import importlib.util
import json
import logging
import shutil
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from warm import WarmProgram

import vitrail
from vitrail.inference.certificate import Distance, certify
from vitrail.inference.engines import ENGINES, find_engine, installed_engines, open_engine
from vitrail.inference.engines.eager_engine import EagerEngine
from vitrail.inference.engines.onnx_engine import OnnxEngine
from vitrail.inference.engines.onnx_int8 import find_layers
from vitrail.inference.engines.program_engines import InductorEngine
from vitrail.inference.export_record import CERTIFICATE_FILE, EXPORT_FILE, read_record
from vitrail.inference.exported import EngineModel
from vitrail.inference.exporting import ExportSettings, export_trained, make_draft
from vitrail.inference.proof_images import ProofImages
from vitrail.inference.trained import Trained, load_exported, make_trained
from vitrail.settings.own import trusting_files

CLASSES = ["ant", "bee", "cat", "dog", "eel"]
TRIED = ("eager", "torch", "onnx", "openvino")  # inductor takes a compiler: it is tried once, elsewhere
TINY = {"image_size": 32, "patch_size": 8, "dim": 16, "depth": 1, "num_classes": 5}


def tiny_trained(name: str = "cait_xxs24", **settings: Any) -> Trained:
    """A small model whose every part matters: LayerScale begins near zero, where nothing would show."""
    torch.manual_seed(0)
    heads = {"num_heads": 2} if name.startswith(("cait", "deit")) else {}
    model = vitrail.create_model(name, **{**TINY, **heads, **settings})
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    description = {"classes": CLASSES} if model.config.num_classes else None
    return make_trained(model.eval(), description, label="tiny")


def noise(count: int = 5, size: tuple[int, int] = (32, 32)) -> Tensor:
    return torch.randint(0, 256, (count, 3, *size), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


PROOF = ProofImages(noise(), torch.tensor([0, 1, 2, 3, -1]), "noise")


def export_to(folder: Path, trained: Trained, engine: str, **settings: Any) -> Path:
    chosen = ExportSettings(engine=engine, **settings)
    return export_trained(trained, chosen, images=PROOF, source="tiny", out=folder).folder


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="module")
def trained() -> Trained:
    return tiny_trained()


@pytest.fixture(scope="module")
def exports(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The tiny model exported to every engine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITRAIL_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        folder = tmp_path_factory.mktemp("exports")
        return {engine: export_to(folder / engine, trained, engine) for engine in TRIED}


def test_all_engines_are_installed_where_the_tests_run() -> None:
    assert set(TRIED) <= set(installed_engines())


@pytest.mark.parametrize("engine", TRIED)
@torch.no_grad()
def test_an_engine_gives_the_answers_of_the_model(engine: str, trained: Trained, exports: dict[str, Path]) -> None:
    loaded = vitrail.load_trained(exports[engine])
    images = noise()
    normalized = trained.normalize(images)
    for count in (1, 3, 5):
        wanted = trained.model(normalized[:count])
        for given in (images, normalized):
            torch.testing.assert_close(loaded.model(given[:count]), wanted, rtol=1e-5, atol=1e-5)
    assert loaded.classes == tuple(CLASSES)


@pytest.mark.parametrize("engine", TRIED)
def test_an_exported_folder_predicts_and_embeds(engine: str, trained: Trained, exports: dict[str, Path]) -> None:
    loaded, images = vitrail.load_trained(exports[engine]), noise()
    wanted, found = trained.predict(images), loaded.predict(images)
    assert isinstance(wanted, list)
    assert isinstance(found, list)
    assert [answer.record()["answers"][0]["class"] for answer in found] == [
        answer.record()["answers"][0]["class"] for answer in wanted
    ]
    torch.testing.assert_close(loaded.embed(images), trained.embed(images), rtol=1e-4, atol=1e-5)
    assert loaded.embed(images[0]).shape == (16,)


def test_the_certificate_tells_differences_hashes_and_accuracy(exports: dict[str, Path]) -> None:
    found = json.loads((exports["onnx"] / CERTIFICATE_FILE).read_text())
    record = read_record(exports["onnx"])
    assert found["agrees"] is True
    assert [trial["batch"] for trial in found["trials"]] == [1, 3, 16]
    assert set(found["outputs"]) == {"logits", "embedding"}
    assert all(0.0 <= output["share"] <= 1e-4 for output in found["outputs"].values())
    assert found["files_sha256"] == record.files
    assert found["weights_sha256"] == record.model.weights_sha256
    assert found["num_labels"] == 4
    assert found["accuracy"] == found["exported_accuracy"]
    page = (exports["onnx"] / "certificate.html").read_text()
    assert "It gives the answers of the model." in page


def test_artefacts_say_what_they_are_and_nothing_of_who_made_them(exports: dict[str, Path]) -> None:
    import onnx

    model = onnx.load(exports["onnx"] / "model.onnx")
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    assert json.loads(metadata["classes"]) == CLASSES
    assert json.loads(metadata["resize"])["is_inside"] is False
    assert str(Path.cwd()).encode() not in (exports["onnx"] / "model.onnx").read_bytes()
    assert not any(node.metadata_props for node in model.graph.node)
    assert "ant" in (exports["openvino"] / "model.xml").read_text()


def test_a_drifting_export_is_refused_unless_it_is_allowed_and_then_marked(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    honest = EagerEngine.__call__

    def wrong(self: EagerEngine, images: Tensor) -> dict[str, Tensor]:
        return {name: 1.01 * value for name, value in honest(self, images).items()}

    monkeypatch.setattr(EagerEngine, "__call__", wrong)
    with pytest.raises(ValueError, match=r"does not agree with the model.*nothing was written.*--allow-drift"):
        export_to(tmp_path / "out", trained, "eager")
    assert list(tmp_path.iterdir()) == []
    chosen = ExportSettings(engine="eager")
    export_trained(trained, chosen, images=PROOF, source="tiny", out=tmp_path / "out", allow_drift=True)
    assert read_record(tmp_path / "out").is_drifting
    assert "does not agree" in (tmp_path / "out" / "certificate.html").read_text()
    with caplog.at_level(logging.WARNING):
        vitrail.load_trained(tmp_path / "out")
    assert "does not agree with its model" in caplog.text


def test_an_engine_that_fails_at_its_work_is_one_line(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: EagerEngine, images: Tensor) -> dict[str, Tensor]:
        raise RuntimeError("shapes\nare inconsistent")

    monkeypatch.setattr(EagerEngine, "__call__", fail)
    with pytest.raises(ValueError, match=r"eager can't compute the export \(shapes are inconsistent\)"):
        export_to(tmp_path / "out", trained, "eager")
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_finite_never_agrees(trained: Trained, exports: dict[str, Path]) -> None:
    exported: Any = vitrail.load_trained(exports["eager"]).model
    honest = exported.engine
    exported.engine = lambda images: {name: value / 0.0 for name, value in honest(images).items()}
    assert not certify(trained, exported, PROOF, tolerance=1e6).agrees


@pytest.mark.parametrize("engine", ["eager", "onnx", "openvino"])
def test_files_that_were_changed_are_not_opened(engine: str, exports: dict[str, Path], tmp_path: Path) -> None:
    names = list(read_record(exports[engine]).files)
    assert names[-1] == "task.json"  # its class names count as well
    for name in names:
        folder = tmp_path / name
        shutil.copytree(exports[engine], folder)
        content = bytearray((folder / name).read_bytes())
        content[len(content) // 2] ^= 1
        (folder / name).write_bytes(content)
        with pytest.raises(ValueError, match=f"{name} is not the file that was exported .its SHA-256 differs"):
            vitrail.load_trained(folder)
        (folder / name).unlink()
        with pytest.raises(ValueError, match=f"{name} is missing: export the model again"):
            vitrail.load_trained(folder)


@pytest.mark.parametrize(
    ("engine", "file"), [("onnx", "model.onnx"), ("openvino", "model.xml"), ("torch", "model.pt2")]
)
def test_files_that_are_no_models_are_one_line(
    engine: str, file: str, exports: dict[str, Path], tmp_path: Path
) -> None:
    from vitrail.inference.export_record import sha256_of

    folder = tmp_path / "copy"
    shutil.copytree(exports[engine], folder)
    (folder / file).write_bytes(b"no model")
    record = json.loads((folder / EXPORT_FILE).read_text())
    record["files"][file] = sha256_of(folder / file)
    (folder / EXPORT_FILE).write_text(json.dumps(record))
    with trusting_files(), pytest.raises(ValueError, match=f"{file} can't be opened by .*: export the model again"):
        vitrail.load_trained(folder)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": 2}, "is of format 2, and this version reads 1"),
        ({"engine": "abacus"}, "there is no engine 'abacus'"),
        ({"files": {"../model.onnx": "0" * 64}}, "is damaged .files"),
        ({"files": {}}, "names no files"),
        ({"threads": 0}, "is damaged .threads"),
        ({"surprise": 1}, "is damaged .surprise"),
    ],
)
def test_a_record_that_is_wrong_is_one_line(
    change: dict[str, Any], words: str, exports: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(exports["onnx"], folder)
    record = json.loads((folder / EXPORT_FILE).read_text())
    (folder / EXPORT_FILE).write_text(json.dumps({**record, **change}))
    with pytest.raises(ValueError, match=words):
        vitrail.load_trained(folder)


def test_files_that_may_run_code_are_opened_only_by_who_wrote_them(
    exports: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "of another user"))
    with pytest.raises(ValueError, match="files can run code, and not this user's own: nothing of it was opened"):
        vitrail.load_trained(exports["torch"])
    with trusting_files():
        assert vitrail.load_trained(exports["torch"]).num_classes == 5
    assert vitrail.load_trained(exports["onnx"]).num_classes == 5


def test_engines_that_are_not_installed_say_what_to_install(
    exports: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OnnxEngine, "packages", ("onnx", "no_such_package"))
    with pytest.raises(ValueError, match=r"onnx needs no_such_package: pip install 'vitrail\[onnx\]'"):
        vitrail.load_trained(exports["onnx"])
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "no no-such-compiler here" in InductorEngine.missing()
    assert InductorEngine.missing_to_open() == ""


def test_an_export_is_opened_without_what_writes_it(
    exports: dict[str, Path], tmp_path: Path, trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    lacking = ("onnx", "onnxscript")
    for name in lacking:
        monkeypatch.setitem(sys.modules, name, None)  # can't be imported
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in lacking else find(name))
    loaded = vitrail.load_trained(exports["onnx"])
    assert loaded.model(noise()).shape == (len(noise()), 5)
    with pytest.raises(ValueError, match=r"onnx needs onnx, onnxscript: pip install 'vitrail\[export\]'"):
        export_to(tmp_path / "out", trained, "onnx")


def test_a_package_of_another_machine_is_not_run(exports: dict[str, Path]) -> None:
    record = read_record(exports["torch"]).model_copy(update={"cpu": "z80"})
    with pytest.raises(ValueError, match=r"was compiled for z80, and this machine is .*: export the model here"):
        InductorEngine.open(exports["torch"], record)


def test_int8_finds_the_convolutions_of_a_wide_patchconvnet(tmp_path: Path) -> None:
    """Of wide layers the exporter leaves the weights to be computed when the model is opened."""
    import onnx

    trained = tiny_trained("patchconvnet_s60", patch_size=16, dim=384, depth=1)
    for parameter in trained.model.parameters():
        nn.init.normal_(parameter, std=0.02)
    model = onnx.load(export_to(tmp_path / "out", trained, "onnx") / "model.onnx")
    weights = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    shapes = [weights[weight] for _, weight in find_layers(model).values()]
    assert shapes.count((384, 384, 1, 1)) == 2
    assert {(96, 384, 1, 1), (384, 96, 1, 1)} <= set(shapes)


def test_a_model_that_answers_zero_agrees_with_zeros_alone() -> None:
    assert Distance(largest=0.0, mean=0.0, scale=0.0).share == 0.0
    assert Distance(largest=1e-9, mean=1e-9, scale=0.0).share == float("inf")


@pytest.mark.parametrize("engine", TRIED)
def test_a_batch_is_computed_in_parts_with_the_same_answers(engine: str, exports: dict[str, Path]) -> None:
    with trusting_files():
        whole, in_parts = (open_engine(exports[engine], read_record(exports[engine])) for _ in range(2))
    in_parts.part = 2
    asked: list[int] = []
    compute = in_parts.compute

    def note(images: Tensor) -> dict[str, Tensor]:
        asked.append(len(images))
        return compute(images)

    in_parts.compute = note  # type: ignore[method-assign]
    for name, value in in_parts(noise()).items():
        torch.testing.assert_close(value, whole(noise())[name], rtol=1e-4, atol=1e-5)
    assert asked == [2, 2, 1]
    in_parts(noise(2))
    assert asked == [2, 2, 1, 2]


@pytest.mark.parametrize("engine", [name for name in TRIED if find_engine(name).has_lanes])
def test_parts_are_computed_side_by_side_with_the_same_answers(
    engine: str, exports: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitrail.inference.engines.count_cores", lambda: 2)
    record = read_record(exports[engine])
    whole = open_engine(exports[engine], record)
    divided = record.model_copy(update={"threads": 2, "part": 4, "lanes": 2})
    lanes = open_engine(exports[engine], divided)
    assert lanes.beside is not None
    compute, asked, both = lanes.beside.compute, [], threading.Barrier(2, timeout=60)

    def note(images: Tensor) -> dict[str, Tensor]:
        asked.append(len(images))
        both.wait()  # which none passes alone
        return compute(images)

    lanes.beside.compute = note
    for name, value in lanes(noise(8)).items():
        torch.testing.assert_close(value, whole(noise(8))[name], rtol=1e-4, atol=1e-5)
    lanes(noise(5))  # an even share of few is less than a part
    lanes(noise(4))  # a part at most is divided among the threads
    assert sorted(asked) == [2, 3, 4, 4]
    alone = open_engine(exports[engine], divided, threads=1)
    monkeypatch.setattr("vitrail.inference.engines.count_cores", lambda: 1)
    for one in (alone, open_engine(exports[engine], divided)):
        assert (one.beside, one.part) == (None, None)  # the part was that of a lane


def test_an_export_takes_its_own_size_only(exports: dict[str, Path]) -> None:
    loaded = vitrail.load_trained(exports["onnx"])
    with pytest.raises(ValueError, match=r"takes images of 32x32, not 40x40: export the model with that image_size="):
        loaded.model(noise(size=(40, 40)))
    with pytest.raises(ValueError, match="takes images of 32x32, not 64x64"):
        loaded.seeing(image_size=64)


@torch.no_grad()
def test_with_dynamic_size_it_takes_others(tmp_path: Path) -> None:
    trained = tiny_trained("deit_tiny")
    export_to(tmp_path / "out", trained, "openvino", dynamic_size=True)
    found = json.loads((tmp_path / "out" / CERTIFICATE_FILE).read_text())
    assert {(trial["height"], trial["width"]) for trial in found["trials"]} >= {(40, 32), (32, 48), (40, 40)}
    loaded, images = vitrail.load_trained(tmp_path / "out"), noise(size=(48, 64))
    wanted = trained.model(trained.normalize(images))
    torch.testing.assert_close(loaded.model(images), wanted, rtol=1e-4, atol=1e-4)
    assert loaded.seeing(image_size=64).view.image_size == 64
    with pytest.raises(ValueError, match="sides are multiples of 8, not 36x36"):
        loaded.model(noise(size=(36, 36)))


def test_models_of_one_size_refuse_a_dynamic_one() -> None:
    with pytest.raises(ValueError, match="takes images of one size only: leave --dynamic-size out"):
        make_draft(tiny_trained("resmlp_s24"), ExportSettings(engine="eager", dynamic_size=True))


@torch.no_grad()
def test_channels_may_come_last(trained: Trained, tmp_path: Path) -> None:
    loaded = load_exported(export_to(tmp_path / "out", trained, "torch", layout="nhwc"))
    images = noise()
    wanted = trained.model(trained.normalize(images))
    torch.testing.assert_close(loaded.model(images), wanted, rtol=1e-5, atol=1e-5)
    assert isinstance(loaded.model, EngineModel)
    found = loaded.model.engine(images.permute(0, 2, 3, 1).contiguous())
    torch.testing.assert_close(found["logits"], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "settings", "outputs"),
    [
        ("deit_tiny", {"num_classes": 0}, {"embedding": (16,)}),
        ("deit_tiny_distilled", {}, {"logits": (5,), "embedding": (32,)}),
        ("patchconvnet_s60", {"patch_size": 16, "per_class_tokens": True}, {"logits": (5,), "embedding": (16,)}),
        ("resmlp_s24", {}, {"logits": (5,), "embedding": (16,)}),
        ("timm/resnet18", {"patch_size": None, "dim": None, "depth": None}, {"logits": (5,), "embedding": (512,)}),
    ],
)
def test_every_kind_of_model_tells_its_outputs(
    name: str, settings: dict[str, Any], outputs: dict[str, tuple[int, ...]], tmp_path: Path
) -> None:
    dropped = {key for key, value in settings.items() if value is None}
    if dropped:
        torch.manual_seed(0)
        model = vitrail.create_model(name, image_size=32, num_classes=5).eval()
        trained = make_trained(model, {"classes": CLASSES}, label="tiny")
    else:
        trained = tiny_trained(name, **settings)
    folder = export_to(tmp_path / "out", trained, "eager")
    assert read_record(folder).outputs == outputs
    torch.testing.assert_close(
        vitrail.load_trained(folder).embed(noise()), trained.embed(noise()), rtol=1e-4, atol=1e-4
    )


def test_precisions_are_those_of_the_machine(trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitrail.inference.engines.contract.has_native_bfloat16", lambda: False)
    with pytest.raises(ValueError, match="eager computes in fp32 on this machine, not in bf16"):
        ExportSettings(engine="eager", precision="bf16")
    with pytest.raises(ValueError, match="precision must be one of fp32, fp16, bf16 or auto, not 'fp8'"):
        ExportSettings(engine="eager", precision="fp8")
    monkeypatch.setattr("vitrail.inference.engines.contract.has_native_bfloat16", lambda: True)
    folder = export_to(tmp_path / "out", trained, "eager", precision="bf16")
    assert json.loads((folder / CERTIFICATE_FILE).read_text())["outputs"]["logits"]["share"] > 1e-5  # it is not fp32


def test_half_precision_makes_openvino_files_half_as_large(
    trained: Trained, exports: dict[str, Path], tmp_path: Path
) -> None:
    folder = export_to(tmp_path / "out", trained, "openvino", precision="fp16")
    assert (folder / "model.bin").stat().st_size < 0.7 * (exports["openvino"] / "model.bin").stat().st_size


def test_what_is_inside_an_export_can_not_be_seen(exports: dict[str, Path]) -> None:
    model = vitrail.load_trained(exports["onnx"]).model
    with pytest.raises(ValueError, match="is an export, of which answers and embeddings are all that can be had"):
        model.features(noise())
    with pytest.raises(ValueError, match="exported or folded already"):
        make_draft(replace(tiny_trained(), model=model), ExportSettings(engine="onnx"))


@torch.no_grad()
def test_segmentation_is_exported_and_detection_refused(tmp_path: Path) -> None:
    from vitrail.heads.mask_rcnn import Detector
    from vitrail.heads.segment import SegmentModel, SegmentSettings

    torch.manual_seed(0)
    small = {"image_size": 32, "patch_size": 16, "dim": 16, "depth": 4, "num_heads": 2, "num_classes": 0}
    trunk = vitrail.create_model("deit_tiny", **small)
    model = SegmentModel(trunk, SegmentSettings(num_classes=3, channels=8, has_auxiliary=False)).eval()
    trained = make_trained(model, {"task": "segment", "classes": CLASSES[:3]}, label="tiny")
    folder = export_to(tmp_path / "out", trained, "eager", dynamic_size=True)
    assert read_record(folder).outputs == {"logits": (3, 8, 8)}
    loaded = vitrail.load_trained(folder)
    assert loaded.model.is_dense
    picture = noise(1, (50, 70))[0]
    assert str(loaded.predict(picture)) == str(trained.predict(picture))
    with pytest.raises(ValueError, match="a detector can't be exported: what it finds has another number of objects"):
        Detector.outputs(None, noise())  # type: ignore[arg-type]  # it says so of every detector


def test_a_model_that_can_not_be_compiled_is_one_line(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object, **settings: object) -> None:
        raise RuntimeError("g++: out of patience\nlong trace")

    monkeypatch.setattr("torch._inductor.aoti_compile_and_package", fail)
    with pytest.raises(ValueError, match=r"can't compile this model here \(g\+\+: out of patience\): export to onnx"):
        export_to(tmp_path / "out", trained, "inductor")
    assert list(tmp_path.iterdir()) == []


def test_names_of_engines() -> None:
    with pytest.raises(ValueError, match="there is no engine 'onx'; did you mean 'onnx'"):
        find_engine("onx")
    for name in ENGINES:
        assert find_engine(name).name == name


def test_exporting_asks_nobody_on_the_network() -> None:
    from vitrail.inference.engines.openvino_engine import import_openvino

    import_openvino()
    assert sys.modules.get("openvino_telemetry") is None


_SIGNALLED = """
import faulthandler, gc, os, signal, sys
import vitrail

faulthandler.disable()
first, second = (vitrail.load_trained(folder) for folder in sys.argv[1:])
del first
gc.collect()
del second
gc.collect()
signal.signal(signal.SIGUSR1, lambda *_: print("a signal"))
os.kill(os.getpid(), signal.SIGUSR1)
"""


def test_a_process_lives_through_signals_when_exports_of_openvino_have_come_and_gone(exports: dict[str, Path]) -> None:
    program = WarmProgram(_SIGNALLED, *[str(exports["openvino"])] * 2)
    said = program.stdout.read()
    assert (program.wait(), said) == (0, "a signal\n")
