"""`vitrail benchmark`: engines timed by turns, in parts side by side, with their memory, and as the papers do."""

import json
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tiny_exports import error_of, export_run
from tiny_runs import run_in

import vitrail
from vitrail.cli import main
from vitrail.inference.benchmarking import Measurement, choose_fastest, speeds_by_turns, time_by_turns
from vitrail.inference.engines.ways import Way


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_in(tmp_path_factory.mktemp("runs") / "first", "epochs=1").path


@pytest.fixture(scope="module")
def exported(run: Path) -> Path:
    return export_run(run, to="eager")


def test_engines_that_are_named_twice_are_tried_once(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--batch", "1", "--seconds", "0.01", "--no-memory", "--precision", "fp32"]
    assert main(["benchmark", str(run), "--engines", "eager,eager", *words]) == 0


def test_who_is_far_behind_is_not_timed_to_the_end() -> None:
    asks = {place: partial(time.sleep, wait) for place, wait in enumerate((0.001, 0.05, 0.001))}
    times = time_by_turns(asks, seconds=0.1, patience=10.0)
    assert len(times[1]) == 5
    assert len(times[0]) == len(times[2]) > 10  # what the others took is not theirs
    assert len(set(map(len, time_by_turns(asks, seconds=0.01).values()))) == 1


def test_who_met_a_fast_machine_is_not_faster() -> None:
    slowing = {0: [1.0, 1.0, 4.0, 4.0, 4.0], 1: [1.1, 1.1, 4.4, 4.4, 4.4], 2: [2.0, 2.0]}  # seconds of turns
    speeds = speeds_by_turns(slowing, batch=8)
    assert speeds[0] == pytest.approx(1.1 * speeds[1]) == pytest.approx(2.0 * speeds[2])
    assert speeds_by_turns({}, batch=8) == {}


def test_the_fastest_is_the_best_on_average_over_batches() -> None:
    def measured(engine: str, batch: int, speed: float) -> Measurement:
        return Measurement(engine, 1, batch, speed, 1.0, 1.0, 5)

    found = [measured("a", 1, 10.0), measured("a", 16, 10.0), measured("b", 1, 4.0), measured("b", 16, 20.0)]
    assert choose_fastest(found) == ("a", Way(1))  # sqrt(100) against sqrt(80)
    found.append(replace(found[-1], part=4, images_per_second=1000.0))
    assert choose_fastest(found) == (found[-1].engine, Way(1, 4))  # a single image is never divided
    found.append(replace(found[-1], lanes=2, images_per_second=1100.0))
    assert choose_fastest(found) == (found[-1].engine, Way(1, 4, 2))


def test_parts_side_by_side_stand_for_election(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitrail.inference.choosing.thread_counts", lambda: [2])
    monkeypatch.setattr("vitrail.inference.choosing.count_cores", lambda: 2)
    words = ["benchmark", str(run), "--engines", "onnx", "--seconds", "0.01", "--no-memory"]
    assert main([*words, "--batch", "1,3,5"]) == 0
    told = capsys.readouterr().out
    ways = {tuple(line.split()[2:6]) for line in told.splitlines() if line.startswith("onnx  ")}
    assert {(batch, "all") for batch in ("1", "3")} <= {way[:2] for way in ways}
    assert {("3", "2", "x", "2"), ("5", "2", "x", "2"), ("5", "2", "x", "4")} <= ways  # side by side
    assert not {("3", "2", "x", "4")} & ways  # three images are no more than a part
    assert main([*words, "--batch", "2"]) == 0
    assert " x " not in capsys.readouterr().out  # two images are no more than a part


def test_benchmark_times_runs_and_exports(
    run: Path,
    exported: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("vitrail.inference.engines.contract.has_native_bfloat16", lambda: True)
    report = tmp_path / "speeds.json"
    words = ["--batch", "2", "--seconds", "0.01", "--no-memory"]
    assert main(["benchmark", str(run), str(exported), "--engines", "eager", *words, f"out={report}"]) == 0
    told = capsys.readouterr().out
    assert told.count("fastest here: eager") == 2
    found = json.loads(report.read_text())
    assert set(found) == {str(run), str(exported)}
    assert {one["engine"] for one in found[str(run)]["measurements"]} == {"eager", "eager-bf16"}
    assert {one["engine"] for one in found[str(exported)]["measurements"]} == {"eager"}
    assert all(one["p50_ms"] <= one["p99_ms"] for one in found[str(run)]["measurements"])


def test_what_was_measured_is_kept_where_a_later_model_fails(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "speeds.json"
    words = ["--batch", "1", "--seconds", "0.01", "--no-memory", f"out={report}"]
    assert main(["benchmark", str(exported), str(tmp_path / "nowhere"), *words]) == 2
    assert set(json.loads(report.read_text())) == {str(exported)}


def test_memory_is_that_of_a_process_of_its_own(
    exported: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitrail.inference.choosing.thread_counts", lambda: [1])  # one process is enough
    assert main(["benchmark", str(exported), "--batch", "1", "--seconds", "0.01", "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out).values()
    assert [0.0 < one["peak_mb"] < 1e4 for one in found["measurements"]] == [True]


def test_benchmark_as_the_papers_prints_what_they_print(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from vitrail.inference import paper_speeds
    from vitrail.inference.trained import make_trained

    model = vitrail.create_model("patchconvnet_s60", image_size=224, dim=16, depth=1).eval()
    trained = make_trained(model, None, label="tiny")
    found = paper_speeds.measure_as_papers(trained, largest=2, num_runs=1)
    assert found.batch == 2
    assert [(one.throughput, one.memory) for one in found.published] == [("1125", "1321"), ("1129", "1322")]
    [first, _] = paper_speeds.rows_of("tiny", found)
    assert first[-1] == "thesis table 5.1: one V100 of 32 GB, batch 256, mixed precision"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--batch", "1,x"], "--batch takes whole numbers with commas between them"),
        (["--seconds", "0"], "--seconds is a number above 0"),
        (["--seconds", "nan"], "--seconds is a number above 0"),
        (["--seconds", "inf"], "--seconds is a number above 0"),
        (["out=/"], "is a folder"),
        (["out=/nowhere/x/y.json"], "there is no folder /nowhere/x"),
        (["out="], "out= names no file"),
        (["--precision", "fp8"], "precision must be one of"),
        (["--papers", "--batch", "0"], "leave --batch out"),
        (["--engines", "abacus"], "there is no engine 'abacus'"),
        (["--papers", "--largest", "0"], "--largest is a number of at least 1"),
        (["--papers", "--seconds", "1"], "leave --seconds out"),
        (["--papers", "--no-memory"], "leave --no-memory out"),
        (["--largest", "8"], "--largest is for --papers"),
    ],
)
def test_benchmarks_that_can_not_be_are_one_line(
    words: list[str], told: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told in error_of(capsys, "benchmark", str(run), *words)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--engines", "abacus"], "there is no engine 'abacus'"),
        (["--engines", "onnx"], "is an export to eager: leave --engines out"),
        (["--precision", "fp8"], "is an export in fp32: leave --precision out"),
        (["image_size=128"], "leave image_size= out"),
        (["--papers"], "--papers measures models as torch computes them"),
    ],
)
def test_benchmarks_of_exports_refuse_what_they_can_not_heed(
    words: list[str], told: str, exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told in error_of(capsys, "benchmark", str(exported), *words)
