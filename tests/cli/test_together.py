"""Passes over data in two processes: the numbers of one, one voice, and embeddings that go on after a kill."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_runs import run_in
from warm import WarmProcess, start_ranks

from vitrail.cli import main, predict
from vitrail.cli.saved_answers import SavedAnswers
from vitrail.evaluation import features
from vitrail.storage.tensors import read_tensors

DATA = "shapes:size=16,count=48,val=37"
Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(run_in(tmp_path_factory.mktemp("runs") / "run", f"data={DATA}", "epochs=2").path)


def make_images(folder: Path, *, count: int, broken: tuple[int, ...] = ()) -> Path:
    numbers = np.random.default_rng(0)
    for place in range(count):
        path = folder / "ab"[place % 2] / f"{place:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(numbers.integers(0, 256, (20, 20, 3), dtype=np.uint8)).save(path)
        if place in broken:
            path.write_bytes(b"no image")
    return folder


def ask_two(*words: str, code: int = 0) -> str:
    """What `vitrail WORDS` says in two processes, of which the second is silent."""
    first, second = start_ranks(words, num_ranks=2)
    # Well within the minute that the main process would wait for one that is gone.
    said = [process.communicate(timeout=50)[0] for process in (first, second)]
    assert [first.returncode, second.returncode] == [code, 0], "".join(said)
    assert said[1] == ""
    return said[0]


@pytest.fixture
def ask_one(capfd: pytest.CaptureFixture[str]) -> Ask:
    def ask(*words: str, code: int = 0) -> str:
        capfd.readouterr()
        assert main(list(words)) == code
        return "".join(capfd.readouterr())

    return ask


def test_evaluate_counts_every_image_once(run: str, ask_one: Ask) -> None:
    words = ("evaluate", run, "batch_size=4", "precision=fp32", "--json")
    one, two = (json.loads(ask(*words)) for ask in (ask_one, ask_two))
    assert two["count"] == 37
    for figure in ("negative_log_likelihood", "calibration_error"):  # sums in another order
        assert two.pop(figure) == pytest.approx(one.pop(figure), rel=1e-12)
    assert one == two


def test_fewer_images_than_processes(run: str, tmp_path: Path, ask_one: Ask) -> None:
    images = make_images(tmp_path / "images", count=1)
    assert ask_two("predict", run, str(images)) == ask_one("predict", run, str(images)) != ""


@pytest.mark.parametrize("kind", ["--csv", "--json"])
def test_predict_tells_in_the_order_of_the_files(run: str, tmp_path: Path, ask_one: Ask, kind: str) -> None:
    images = make_images(tmp_path / "images", count=23, broken=(0, 7, 8, 22))
    words = ("predict", run, str(images), kind, "--batch-size", "2")
    said = [ask(*words, code=1).splitlines() for ask in (ask_one, ask_two)]
    for is_error, count in ((True, 4), (False, 23 + (kind == "--csv"))):  # what is said on stderr stands in between
        one, two = ([line for line in lines if line.startswith("vitrail: ") == is_error] for lines in said)
        assert one == two
        assert len(two) == count


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_answers_that_are_saved_go_on_after_a_kill(
    run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask_one: Ask, ending: str
) -> None:
    images, file = make_images(tmp_path / "images", count=9, broken=(2,)), tmp_path / f"answers.{ending}"
    words = ("predict", run, str(images), "--batch-size", "2", "--save")
    ask_one(*words, str(tmp_path / f"whole.{ending}"), code=1)
    kind = predict._JsonLines if ending == "jsonl" else predict._CsvLines
    write, told = kind.write, []

    def ending_after_five(self: Any, answer: Any) -> None:
        told.append(answer)
        if len(told) == 6:
            self.file.write("torn")
            self.file.flush()
            raise KeyboardInterrupt
        write(self, answer)

    monkeypatch.setattr(kind, "write", ending_after_five)
    ask_one(*words, str(file), code=130)
    told.clear()
    assert not file.exists()
    assert f"9 images are in {file}" in ask_two(*words, str(file), code=1)
    assert file.read_bytes() == (tmp_path / f"whole.{ending}").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([file.name, "images", f"whole.{ending}"])
    assert "is there already: remove it" in ask_one(*words, str(file), code=2)


def test_answers_of_another_question_are_not_gone_on_with(tmp_path: Path) -> None:
    first = SavedAnswers(str(tmp_path / "a.csv"), key="one", paths=["x", "y"])
    assert first.begin().num_rows == 0
    first.rows.write_text('path,class_1,error\n"x\n1",cat,\ny,,broken\nz,c')
    begun = first.begin()
    assert (begun.num_rows, begun.num_unread, begun.columns) == (2, 1, ("path", "class_1", "error"))
    assert first.rows.read_text().endswith("broken\n")
    kept = first.rows.read_text()
    for key, paths in (("two", ["x", "y"]), ("one", ["x", "z"])):
        with pytest.raises(
            ValueError, match=r"a\.csv\.part has answers of another model, .*: remove .*a\.csv\.part to"
        ):
            SavedAnswers(str(tmp_path / "a.csv"), key=key, paths=paths).begin()
        assert first.rows.read_text() == kept
    first.note.unlink()
    with pytest.raises(ValueError, match="has answers of another model"):
        first.begin()
    first.rows.unlink()
    assert SavedAnswers(str(tmp_path / "a.csv"), key="two", paths=["x", "y"]).begin().num_rows == 0
    assert SavedAnswers(str(tmp_path / "a.csv"), key="one", paths=["x", "y"]).begin().num_rows == 0  # none is lost
    with pytest.raises(ValueError, match=r"ends with \.csv or \.jsonl"):
        SavedAnswers(str(tmp_path / "a.txt"), key="one", paths=[])


def test_a_second_command_does_not_save_into_the_same_file(
    run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask_one: Ask
) -> None:
    images, file = make_images(tmp_path / "images", count=3), tmp_path / "answers.csv"
    words = ("predict", run, str(images), "--batch-size", "1", "--save", str(file))
    write, said = predict._CsvLines.write, []

    def ask_again(self: Any, answer: Any) -> None:
        write(self, answer)
        said.append(ask_one(*words, code=2))

    monkeypatch.setattr(predict._CsvLines, "write", ask_again)
    assert main(list(words)) == 0
    line = (
        f"vitrail: error: --save {file} is being written by another command: wait for its end, or choose another name"
    )
    assert said == [line + "\n"] * 3
    assert len(file.read_text().splitlines()) == 1 + 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["answers.csv", "images"]
    late = SavedAnswers(str(tmp_path / "late.csv"), key="one", paths=["x"])
    late.path.touch()  # the other command ended in between
    with pytest.raises(ValueError, match=r"late\.csv is there already"), late.held():
        pass


def test_a_gallery_has_the_bits_of_one_process(run: str, tmp_path: Path, ask_one: Ask) -> None:
    made, more = [], make_images(tmp_path / "more", count=6)
    for name, ask in (("one", ask_one), ("two", ask_two)):
        ask("gallery", "build", run, f"data={DATA}", f"out={tmp_path / name}", "batch_size=5", "precision=fp32")
        assert "6 added" in ask("gallery", "add", str(tmp_path / name), f"data={more}", "split=all", "batch_size=2")
        made.append(sorted(part.read_bytes() for part in (tmp_path / name).glob("part-*.safetensors")))
    assert made[0] == made[1]
    assert "the work of one process" in _second_fails("gallery", "report", str(tmp_path / "two"))


def _second_fails(*words: str) -> str:
    first, second = start_ranks(words, num_ranks=2)
    said = first.communicate(timeout=120)[0]
    second.kill()  # it waits for a launcher to end it
    second.communicate()
    assert first.returncode == 2
    assert said.count("vitrail: error:") == 1
    assert len(said.splitlines()) == 1
    return said


def test_probe_and_retrieve_measure_the_same(run: str, ask_one: Ask) -> None:
    words = ("probe", run, f"data={DATA}", "method=knn", "batch_size=5", "precision=fp32", "--json")
    one, two = (json.loads(ask(*words)) for ask in (ask_one, ask_two))
    for report in (one, two):
        report.pop("embedding_seconds")
        report["probes"][0].pop("seconds")
    assert one == two
    asked = ("retrieve", run, f"data={DATA}", "batch_size=5", "precision=fp32", "--json")
    assert json.loads(ask_one(*asked)) == json.loads(ask_two(*asked))


def test_explain_scores_the_same(run: str, ask_one: Ask) -> None:
    words = ("explain", run, f"data={DATA}", "--score", "limit=5", "steps=2", "--json")
    assert json.loads(ask_one(*words)) == json.loads(ask_two(*words))


@pytest.mark.skipif(sys.platform != "linux", reason="finds the process in /proc")
def test_a_killed_build_ends_with_one_line_and_goes_on_where_it_was(
    run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask_one: Ask
) -> None:
    data, out = make_images(tmp_path / "images", count=151, broken=(3, 100)), tmp_path / "gallery"
    words = ["gallery", "build", run, f"data={data}", "split=all", "batch_size=1", "image_size=96", "precision=fp32"]
    process = WarmProcess([*words, f"out={out}", "devices=2"], environment={"OMP_NUM_THREADS": "1"})
    place = tmp_path / "gallery.embeddings"
    while not any(place.glob("*/*.parts/images-*")):
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.002)
    (victim,) = (
        int(child)
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        if b"RANK=1" in Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
    )
    os.kill(victim, signal.SIGKILL)
    said = process.communicate(timeout=30)[0]
    assert process.returncode == 128 + signal.SIGKILL, said
    assert said.count("vitrail: error: rank 1 was ended by SIGKILL; run the same command to go on") == 1
    assert "Traceback" not in said
    (parts,) = place.glob("*/*.parts")
    num_kept = sum(len(range(*map(int, file.stem.split("-")[1:]))) for file in parts.glob("images-*"))
    assert 32 <= num_kept < 151

    computed: list[range] = []
    compute = features._compute

    def counting(extraction: Any, data: Any, pieces: Any, **others: Any) -> Any:
        computed.extend(pieces)
        return compute(extraction, data, pieces, **others)

    monkeypatch.setattr(features, "_compute", counting)
    ask_one(*words, f"out={out}", code=1)
    assert sum(map(len, computed)) == 151 - num_kept
    assert not place.exists()
    monkeypatch.undo()
    ask_one(*words, f"out={tmp_path / 'whole'}", code=1)
    (first,), (second,) = ((tmp_path / name).glob("part-*.safetensors") for name in ("gallery", "whole"))
    one, two = (read_tensors(file, label="")[0] for file in (first, second))
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("evaluate", "RUN", "devices=0"), "devices must be a whole number of at least 1, not '0'"),
        (("predict", "RUN", "IMAGES", "nodes=two"), "nodes must be a whole number of at least 1, not 'two'"),
        (("probe", "RUN", "devices=2", "nodes=2"), "devices=2 nodes=2 needs MASTER_ADDR, MASTER_PORT, NODE_RANK"),
    ],
)
def test_wrong_numbers_of_processes_are_one_line(words: tuple[str, ...], line: str, ask_one: Ask) -> None:
    said = ask_one(*words, code=2)
    assert line in said
    assert len(said.splitlines()) == 1
