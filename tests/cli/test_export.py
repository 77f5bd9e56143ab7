"""`vitrail export` and `vitrail benchmark`, and the verbs that take an exported folder as they take a run."""

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from tiny_exports import error_of, export_run
from tiny_runs import run_in

import vitrail
from vitrail.cli import main
from vitrail.inference.benchmarking import choose_fastest
from vitrail.inference.certificate import TOLERANCES
from vitrail.inference.engines.eager_engine import EagerEngine
from vitrail.inference.export_record import read_record
from vitrail.inference.judging import Judge

CAT = str(Path(__file__).parents[2] / "docs" / "pictures" / "cat.jpg")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_in(tmp_path_factory.mktemp("runs") / "first", "epochs=1").path


@pytest.fixture(scope="module")
def exported(run: Path) -> Path:
    return export_run(run, to="eager")


@pytest.fixture(scope="module")
def graph(run: Path) -> Path:
    """The same run as a graph, which OpenVINO computes."""
    return export_run(run, to="openvino")


def test_export_says_how_far_the_answers_are_from_the_models(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(run), "--to", "onnx", f"out={tmp_path / 'out'}"]) == 0
    told = capsys.readouterr().out
    assert "for onnx, fp32, 16 x 16 px" in told
    assert "logits: largest difference" in told
    assert "100.00% on 24 images (val of shapes)" in told
    assert "top-1 on 24 labelled images" in told
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *("model.onnx", "export.json", "task.json", "run_recipe.yaml", "certificate.json", "certificate.html")
    }


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--to", "onx"], "there is no engine 'onx'; did you mean 'onnx'?"),
        (["--to", "onnx", "--engines", "onnx"], "--engines says which of them --to auto tries"),
        (["--to", "eager", "--layout", "hwcn"], "layout must be one of nchw, nhwc, not 'hwcn'"),
        (["--to", "eager", "--precision", "fp8"], "precision must be one of fp32, fp16, bf16 or auto, not 'fp8'"),
        (["--to", "eager", "image_size=18"], "18"),
        (["--to", "eager", "colour=red"], "unknown key 'colour'"),
        (["--to", "eager", "--images", "nowhere.jpg"], "no image or folder 'nowhere.jpg'"),
        (["--to", "torch", "--quantise", "int8"], "torch has no int8 here: export to onnx, openvino or eager"),
        (["--to", "onnx", "--quantise", "int8", "--precision", "fp16"], "--quantise int8 starts from fp32"),
        (["--to", "eager", "--quantise", "int8", "--max-loss", "-1"], "--max-loss is a number of points"),
        (["--to", "auto", "--max-loss", "101"], "--max-loss is a number of points"),
        (["--to", "auto", "--engines", "abacus"], "there is no engine 'abacus'"),
        (["--to", "abacus", "--precision", "auto"], "there is no engine 'abacus'"),
        (["--to", "auto", "--precision", "fp16", "--engines", "eager"], "no engine here computes in fp16"),
        (["--to", "eager", "--max-loss", "1"], "--max-loss is for --quantise and --precision auto: leave it out"),
        (["--images", CAT, "data=shapes"], "--images says what it is proved on: leave data= out"),
        (["--to", "eager", "threads=5000"], "threads is a number from 1 to 4,096, not 5,000"),
    ],
)
def test_what_can_not_be_exported_is_one_line_and_leaves_nothing(
    words: list[str], told: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told in error_of(capsys, "export", str(run), *words, f"out={tmp_path / 'out'}")
    assert list(tmp_path.iterdir()) == []


def test_what_no_engine_takes_is_one_line_where_all_would_be_tried(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = f"out={tmp_path / 'out'}"
    assert "is exported or folded already" in error_of(capsys, "export", str(exported), out)
    vitrail.save_model(vitrail.create_model("resmlp_s12", image_size=32, dim=16, depth=1), tmp_path / "model")
    told = error_of(capsys, "export", str(tmp_path / "model"), "--dynamic-size", out)
    assert "takes images of one size only: leave --dynamic-size out" in told
    assert "split= is of data that" in error_of(capsys, "export", str(tmp_path / "model"), "split=test", out)
    assert not (tmp_path / "out").exists()


def test_only_the_files_of_an_export_are_written_over(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    assert main(["export", str(run), "--to", "openvino", f"out={own}"]) == 0
    (own / "README.md").write_text("how it is used")
    (own / ".hidden").write_text("")
    assert main(["export", str(run), "--to", "eager", f"out={own}"]) == 0
    names = {path.name for path in own.iterdir()}
    assert {"README.md", ".hidden", "model.safetensors", "run_recipe.yaml"} <= names
    assert not {"model.xml", "model.bin"} & names
    other.mkdir()
    (other / "export.json").write_text('{"of": "another program"}')
    (other / "thesis.tex").write_text("years of work")
    capsys.readouterr()
    told = error_of(capsys, "export", str(run), "--to", "eager", f"out={other}")
    assert "other is not written over" in told
    assert {path.name for path in other.iterdir()} == {"export.json", "thesis.tex"}


def test_the_recipe_of_an_export_is_held_to_as_well(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(exported, tmp_path / "copy")
    with (tmp_path / "copy" / "run_recipe.yaml").open("a") as file:
        file.write("# changed\n")
    told = error_of(capsys, "evaluate", str(tmp_path / "copy"))
    assert "run_recipe.yaml is not the file that was exported" in told


def test_only_exports_are_written_over(run: Path, exported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "is there already and no export" in error_of(capsys, "export", str(run), "--to", "eager", f"out={run}")
    assert "write `vitrail export RUN --to onnx out=FOLDER`" in error_of(capsys, "export", str(run))
    assert "exported or folded already" in error_of(capsys, "export", str(exported), "--to", "eager", "out=elsewhere")
    assert not Path("elsewhere").exists()


@pytest.mark.parametrize("kind", ["exported", "graph"])
def test_predict_and_evaluate_take_an_export(
    kind: str, run: Path, request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exported: Path = request.getfixturevalue(kind)
    Image.new("RGB", (20, 20), (200, 40, 10)).save(tmp_path / "red.png")
    told = []
    for source in (run, exported):
        assert main(["predict", str(source), str(tmp_path / "red.png"), "--json"]) == 0
        assert main(["evaluate", str(source), "--json"]) == 0
        told.append(capsys.readouterr().out)
    first, second = told
    assert json.loads(first.splitlines()[0])["answers"][0] == json.loads(second.splitlines()[0])["answers"][0]
    of_run, of_export = (json.loads(text.partition("\n")[2]) for text in told)
    assert of_run["top1"] == of_export["top1"]
    assert of_run["negative_log_likelihood"] == pytest.approx(of_export["negative_log_likelihood"], rel=1e-5)


def test_a_gallery_is_built_and_searched_with_an_export(
    graph: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gallery = tmp_path / "gallery"
    data = "data=shapes:size=16,count=48,val=24"
    assert main(["gallery", "build", str(graph), data, f"out={gallery}"]) == 0
    Image.new("RGB", (20, 20), (200, 40, 10)).save(tmp_path / "red.png")
    capsys.readouterr()
    assert main(["gallery", "search", str(gallery), str(tmp_path / "red.png"), "--top", "3", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)[0]["hits"]) == 3


def test_a_gallery_of_a_run_is_asked_with_the_export_of_that_run_alone(
    run: Path, exported: Path, graph: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gallery, picture = str(tmp_path / "gallery"), str(tmp_path / "red.png")
    Image.new("RGB", (20, 20), (200, 40, 10)).save(picture)
    assert main(["gallery", "build", str(run), "data=shapes:size=16,count=48,val=24", f"out={gallery}"]) == 0
    capsys.readouterr()
    told = []
    for words in ([], [f"model={exported}"], [f"model={graph}"]):
        assert main(["gallery", "search", gallery, picture, *words, "--json"]) == 0
        told.append(json.loads(capsys.readouterr().out)[0]["hits"])
    of_run, *of_exports = told
    for of_export in of_exports:
        assert [hit["path"] for hit in of_run] == [hit["path"] for hit in of_export]
        assert [hit["cosine"] for hit in of_export] == pytest.approx([hit["cosine"] for hit in of_run], abs=1e-4)
    assert main(["gallery", "classify", gallery, picture, f"model={exported}"]) == 0

    other = run_in(tmp_path / "other", "epochs=1", "seed=7").path
    vitrail.export(other, to="eager", out=tmp_path / "of_other")
    capsys.readouterr()
    refusal = "holds embeddings of another model"
    assert refusal in error_of(capsys, "gallery", "search", gallery, picture, f"model={tmp_path / 'of_other'}")
    for name, value in (("is_drifting", True), ("quantised", {"kind": "int8", "kept": []})):
        changed = tmp_path / name
        shutil.copytree(exported, changed)
        content = json.loads((changed / "export.json").read_text())
        (changed / "export.json").write_text(json.dumps({**content, name: value}))
        assert main(["gallery", "search", gallery, picture, f"model={changed}"]) == 2
        assert refusal in capsys.readouterr().err.splitlines()[-1]


def test_an_export_teaches(graph: Path, tmp_path: Path) -> None:
    student = run_in(tmp_path / "student", "task=distill", f"teacher={graph}", "epochs=1")
    assert vitrail.load_trained(student.path).num_classes == vitrail.load_trained(graph).num_classes


@pytest.mark.parametrize("words", [["explain"], ["inspect"]])
def test_verbs_that_look_inside_refuse_an_export(
    words: list[str], exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Image.new("RGB", (20, 20)).save(tmp_path / "black.png")
    given = [str(tmp_path / "black.png")] if words == ["explain"] else []
    assert "export" in error_of(capsys, *words, str(exported), *given, f"out={tmp_path / 'out'}")


def test_auto_takes_the_fastest_and_writes_down_why(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitrail.inference.quantising.SECONDS", 0.01)
    words = ["export", str(run), "--to", "auto", "--engines", "eager,onnx", f"out={tmp_path / 'out'}"]
    assert main([*words, "--precision", "fp32"]) == 0
    record = read_record(tmp_path / "out")
    assert record.choice is not None
    measured = record.choice["measurements"]
    assert {one["engine"] for one in measured} == {"eager", "onnx"}
    assert {one["batch"] for one in measured} == {1, 16}
    assert (record.engine, record.threads) == (record.choice["engine"], record.choice["threads"])
    page = (tmp_path / "out" / "certificate.html").read_text()
    assert "at a time" in page[page.index("Why this engine") :]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_auto_takes_bfloat16_where_it_is_faster_and_loses_little(
    run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("vitrail.inference.engines.contract.has_native_bfloat16", lambda: True)
    monkeypatch.setattr("vitrail.inference.quantising.SECONDS", 0.01)
    monkeypatch.setattr("vitrail.inference.choosing.thread_counts", lambda: [1])
    honest, is_wrong = EagerEngine.compute, False

    def compute(self: EagerEngine, images: torch.Tensor) -> Any:
        found = honest(self, images)
        if self.whole.dtype == torch.float32:
            time.sleep(0.05)
        elif is_wrong:
            found["logits"] = found["logits"].roll(1, dims=1)
        return found

    monkeypatch.setattr(EagerEngine, "compute", compute)
    words = ["export", str(run), "--engines", "eager"]
    assert main([*words, f"out={tmp_path / 'out'}"]) == 0
    assert "for eager, bf16, 16 x 16 px" in capsys.readouterr().out
    record = read_record(tmp_path / "out")
    assert record.choice is not None
    assert (record.precision, record.choice["engine"]) == ("bf16", "eager-bf16")
    assert {one["engine"] for one in record.choice["measurements"]} == {"eager", "eager-bf16"}
    assert main(["evaluate", str(tmp_path / "out")]) == 0

    assert main(["export", str(run), "--to", "eager", f"out={tmp_path / 'named'}"]) == 0
    assert read_record(tmp_path / "named").precision == "fp32"  # an engine by name computes in what it was asked for
    assert main(["export", str(run), "--to", "eager", "--precision", "auto", f"out={tmp_path / 'faster'}"]) == 0
    assert read_record(tmp_path / "faster").precision == "bf16"

    is_wrong = True
    monkeypatch.setitem(TOLERANCES, "bf16", 1e9)
    Image.new("RGB", (20, 20), (200, 40, 10)).save(tmp_path / "red.png")
    words += ["--images", str(tmp_path / "red.png")]
    assert main([*words, f"out={tmp_path / 'careful'}", "--allow-drift"]) == 0  # which lets numbers drift, not answers
    assert read_record(tmp_path / "careful").precision == "fp32"
    told = (
        "eager-bf16 is left out: bf16 loses 100.00 points of agreement with the model on 1 images, and 0.5 are allowed"
    )
    assert told in caplog.text
    assert main([*words, f"out={tmp_path / 'careless'}", "--max-loss", "100"]) == 0
    assert read_record(tmp_path / "careless").precision == "bf16"


def test_auto_leaves_out_engines_that_do_not_agree_or_fail(
    run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from vitrail.inference.engines.onnx_engine import OnnxEngine
    from vitrail.inference.engines.program_engines import ProgramEngine

    monkeypatch.setattr("vitrail.inference.quantising.SECONDS", 0.01)
    honest = OnnxEngine.compute

    def fail(self: ProgramEngine, images: torch.Tensor) -> Any:
        raise RuntimeError("Non-zero status\ncode")

    def drift(self: OnnxEngine, images: torch.Tensor) -> Any:
        return {name: 1.01 * value for name, value in honest(self, images).items()}

    monkeypatch.setattr(ProgramEngine, "compute", fail)
    monkeypatch.setattr(OnnxEngine, "compute", drift)
    monkeypatch.setattr(  # onnx is the fastest
        "vitrail.inference.quantising.choose_fastest",
        lambda found: choose_fastest([one for one in found if one.engine == "onnx"] or found),
    )
    monkeypatch.setattr("vitrail.inference.engines.contract.has_native_bfloat16", lambda: False)
    words = ["export", str(run), "--to", "auto", "threads=1", f"out={tmp_path / 'out'}"]
    assert main([*words, "--engines", "eager,torch,onnx"]) == 0
    assert caplog.messages.count("torch is left out: Non-zero status code") == 1
    assert "onnx is left out: the export does not agree with the model: its answers differ by" in caplog.text
    record = read_record(tmp_path / "out")
    assert record.choice is not None
    assert (record.engine, record.choice["engine"], record.threads) == ("eager", "eager", 1)
    assert set(record.choice["left_out"]) == {"torch", "onnx"}
    assert {one["threads"] for one in record.choice["measurements"]} == {1}
    words[-1] = f"out={tmp_path / 'other'}"
    assert main([*words, "--engines", "torch,onnx"]) == 2
    assert "no engine gives the answers of the model" in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "other").exists()
    assert main(["benchmark", str(run), "--engines", "torch", "--batch", "1", "--seconds", "0.01"]) == 2
    assert "no engine computes the model here (torch: Non-zero status code)" in capsys.readouterr().err


def test_places_that_can_not_be_written_are_one_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    words = ["export", str(run), "--to", "eager"]
    assert "file is a file): choose another out=" in error_of(capsys, *words, f"out={tmp_path / 'file' / 'sub'}")
    assert "/proc/x can't be written" in error_of(capsys, *words, "out=/proc/x")
    assert "write `vitrail export RUN --to onnx out=FOLDER`" in error_of(capsys, *words, "out=")
    assert not Path("None").exists()


def test_a_damaged_list_of_own_exports_is_begun_anew(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path))
    (tmp_path / "exports.json").write_text("{")
    assert main(["export", str(run), "--to", "eager", f"out={tmp_path / 'out'}"]) == 0
    assert "the next export begins it anew" in caplog.text
    assert str(tmp_path / "out") in json.loads((tmp_path / "exports.json").read_text()).values()


@pytest.mark.parametrize("engine", ["eager", "onnx"])
def test_int8_says_what_it_costs_and_gains(
    engine: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitrail.inference.quantising._SECONDS", 0.01)
    words = ["--to", engine, "--quantise", "int8", "--max-loss", "100", f"out={tmp_path / 'out'}"]
    assert main(["export", str(run), *words]) == 0
    assert "layers, top-1" in capsys.readouterr().out
    facts = read_record(tmp_path / "out").quantised
    assert facts is not None
    assert facts["kept"] == []
    assert facts["num_layers"] > 5
    images = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)
    with torch.no_grad():
        plain, own = (vitrail.load_trained(place) for place in (run, tmp_path / "out"))
        wanted, found = plain.model(plain.normalize(images)), own.model(images)
    assert 0.0 < float((found - wanted).abs().max()) < 0.2 * float(wanted.abs().max())  # rounded, and not far


def test_int8_keeps_layers_until_the_loss_is_small_and_else_is_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitrail.inference.quantising._SECONDS", 0.01)
    from vitrail.inference import quantising

    scores = iter([90.0, 70.0, 85.0, 89.8])  # before, then with 0, 10 and 25 % of the layers in float32

    class Scripted(Judge):
        def __call__(self, answers: Any) -> float:
            return next(scores)

    monkeypatch.setattr(quantising, "Judge", Scripted)
    words = ["export", str(run), "--to", "eager", "--quantise", "int8", f"out={tmp_path / 'out'}"]
    assert main(words) == 0
    facts: Any = read_record(tmp_path / "out").quantised
    assert 0.2 < len(facts["kept"]) / facts["num_layers"] < 0.4
    assert (facts["before"], facts["after"]) == (90.0, 89.8)
    scores = iter([90.0, 70.0, 70.0, 70.0, 70.0])
    capsys.readouterr()
    words[-1] = f"out={tmp_path / 'other'}"
    assert main(words) == 2
    assert "int8 loses 20.00 points of top-1 with half of the layers in float32" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_auto_does_not_take_int8_where_it_is_slower(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitrail.inference.engines.contract.has_native_bfloat16", lambda: False)
    monkeypatch.setattr("vitrail.inference.quantising._SECONDS", 0.01)
    monkeypatch.setattr("vitrail.inference.quantising.SECONDS", 0.01)
    monkeypatch.setattr("vitrail.inference.choosing.thread_counts", lambda: [1])
    honest = EagerEngine.compute

    def slow(self: EagerEngine, images: torch.Tensor) -> Any:
        if any(type(layer).__name__ == "Int8Linear" for layer in self.whole.modules()):
            time.sleep(0.05)
        return honest(self, images)

    monkeypatch.setattr(EagerEngine, "compute", slow)
    words = ["--to", "auto", "--engines", "eager", "--quantise", "int8", "--max-loss", "100"]
    assert main(["export", str(run), *words, f"out={tmp_path / 'out'}"]) == 0
    assert "int8 is not taken: eager in float32 is faster here" in capsys.readouterr().err
    assert read_record(tmp_path / "out").quantised is None
