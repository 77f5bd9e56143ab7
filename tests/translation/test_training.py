"""Runs of translation: exact whatever they are computed by, and used by the command line."""

import io
import itertools
import json
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from tiny_runs import finish, wait_for_step
from together import run_worlds
from toy_text import toy_recipe, write_text
from warm import WarmProcess, start_ranks

import vitrail
from vitrail.cli import main
from vitrail.settings.text import write_yaml
from vitrail.tasks import find_task
from vitrail.tasks.site import Site
from vitrail.tasks.translate.task import Translate
from vitrail.training.loop import planning
from vitrail.training.loop.stages import train
from vitrail.training.parallel.distributed import World
from vitrail.training.runs.progress import Progress
from vitrail.training.runs.run_folder import RunFolder
from vitrail.weights.save import load_any_model


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text"))


def run_in(folder: Path, text: Path, *words: str) -> RunFolder:
    """Train in this process, silently."""
    run = RunFolder(folder)
    recipe = run.begin(toy_recipe(f"data={text}", *words))
    progress = Progress(is_shown=False, console=Console(quiet=True))
    train(recipe, run, world=World(), device=torch.device("cpu"), progress=progress)
    return run


def command(folder: Path, text: Path, *words: str) -> list[str]:
    recipe = folder.parent / f"{folder.name}.yaml"
    recipe.write_text(write_yaml(toy_recipe(f"data={text}", *words)))
    return ["train", str(recipe), f"out={folder}"]


def weights_of(run: RunFolder) -> dict[str, torch.Tensor]:
    return load_any_model(run.model).state_dict()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, text: Path) -> RunFolder:
    return run_in(tmp_path_factory.mktemp("runs") / "whole", text, "regularisation.average_last=2")


def test_a_killed_run_ends_with_the_same_bits(tmp_path: Path, text: Path, whole: RunFolder) -> None:
    words = ("regularisation.average_last=2", "run.save_minutes=0.00001")
    killed = command(tmp_path / "killed", text, *words)
    process = WarmProcess(killed, environment={"OMP_NUM_THREADS": "1"})
    wait_for_step(process, tmp_path / "killed", 3)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    finish(WarmProcess(killed, environment={"OMP_NUM_THREADS": "1"}))
    one, other = weights_of(whole), weights_of(RunFolder(tmp_path / "killed"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def losses_of(run: RunFolder) -> dict[int, float]:
    return {record["step"]: record["loss"] for record in run.read_metrics() if record["kind"] == "train"}


def test_two_processes_and_other_micro_batches_give_the_run_of_one(tmp_path: Path, text: Path) -> None:
    one = run_in(tmp_path / "one", text)
    other = run_in(tmp_path / "other", text, "run.micro_batch=60")
    ranks = start_ranks([*command(tmp_path / "two", text), "devices=2"], num_ranks=2)
    said = [process.communicate(timeout=120)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], "".join(said)
    two = RunFolder(tmp_path / "two")
    for run in (other, two):  # the bias of keys has no gradient but rounding, so weights are not compared
        first, second = losses_of(one), losses_of(run)
        common = sorted(first.keys() & second.keys())
        assert [second[step] for step in common] == pytest.approx([first[step] for step in common], rel=1e-5)


def test_lanes_change_no_bit(tmp_path: Path, text: Path) -> None:
    runs = [run_in(tmp_path / str(count), text, "epochs=1", f"run.threads={count}") for count in (1, 2)]
    plans = [json.loads(run.plan_file.read_text()) for run in runs]
    assert [plan["threads_0"] for plan in plans] == [1, 1]
    one, other = map(weights_of, runs)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_last_weights_are_averaged(whole: RunFolder) -> None:
    from vitrail.storage.tensors import read_tensors

    files = sorted((whole.path / "last_weights").iterdir())
    assert len(files) == 2
    parts = [read_tensors(path, label="")[0] for path in files]
    for name, value in weights_of(whole).items():
        torch.testing.assert_close(value, (parts[0][name] + parts[1][name]) / 2)
        assert not torch.equal(parts[0][name], parts[1][name])


def test_the_loss_of_micro_batches_is_that_of_the_step(text: Path) -> None:
    recipe = toy_recipe(f"data={text}", "regularisation.dropout=0")
    task = find_task("translate")(recipe, Site())
    data = task.open()
    model = task.make_model(task.describe(data.describe()))
    task.attach(model)
    objective = task.make_objective(total_steps=1)
    totals = []
    for num_parts in (1, 2, 3):
        loader = task.make_loaders(num_parts=num_parts, listing=None).train
        batches = list(loader.epoch(0))[:num_parts]
        shares = [task.share_of(batch, sampler=loader.sampler, num_ranks=1) for batch in batches]
        assert sum(shares) == pytest.approx(1.0)
        losses = [objective(model, batch).total.item() for batch in batches]
        totals.append(sum(share * loss for share, loss in zip(shares, losses, strict=True)))
    assert totals == pytest.approx([totals[0]] * 3, rel=1e-6)


def test_a_run_translates_what_it_is_given(
    whole: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["the old dog runs", "two cats ☃"]
    (tmp_path / "some.txt").write_text("\n".join(lines), encoding="utf-8")
    assert main(["translate", str(whole.path), *lines, "--beam", "2"]) == 0
    typed = capsys.readouterr()
    assert len(typed.out.splitlines()) == 2
    assert "the model does not know ☃" in typed.err
    assert main(["translate", str(whole.path), str(tmp_path / "some.txt"), "--beam", "2"]) == 0
    assert capsys.readouterr().out == typed.out
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\n".join(lines).encode())))
    assert main(["translate", str(whole.model), "--json", "--beam", "2"]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["translation"] for record in records] == typed.out.splitlines()
    assert all(record["score"] < 0.0 and len(record["others"]) == 1 for record in records)
    assert vitrail.load_translator(whole.path).translate([lines[0]])[0].source == lines[0]
    assert main(["translate", str(whole.path), "--beam", "2", *lines]) == 0  # options may stand before the sentences
    assert capsys.readouterr().out == typed.out


def test_what_cannot_be_translated_is_one_line(
    whole: RunFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a dog\n\xff\xfe bad\n")))
    assert main(["translate", str(whole.path)]) == 2
    assert "stdin, line 2: it is not UTF-8" in capsys.readouterr().err
    assert main(["translate", str(whole.path), "nofile.txt"]) == 2
    assert "nofile.txt: no such file" in capsys.readouterr().err


def test_pairs_that_are_held_out_are_said(tmp_path: Path) -> None:
    (tmp_path / "both.tsv").write_text("".join(f"the dog {n}\tder Hund {n}\n" for n in range(60)))
    said: list[str] = []
    site = Site(device=torch.device("cpu"), dtype=torch.float32)
    object.__setattr__(site, "reporter", SimpleNamespace(say=said.append))
    Translate(toy_recipe(f"data={tmp_path / 'both.tsv'}", "text.vocabulary=40"), site).open()
    assert "are set aside for it" in said[0]


def test_a_model_of_the_wrong_kind_is_one_line(
    whole: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = vitrail.create_model("deit_tiny", num_classes=2, image_size=32, depth=1)
    vitrail.save_model(model, tmp_path / "deit")
    (tmp_path / "empty.txt").touch()
    cases = {
        ("translate", f"{tmp_path / 'deit'}", "two dogs"): "deit holds deit_tiny, a model of images: `vitrail predict`",
        (
            "translate",
            f"{whole.path}",
            f"{tmp_path / 'empty.txt'}",
        ): "empty.txt is empty: there is nothing to translate",
        ("translate", f"{tmp_path / 'nothing'}", "two dogs"): "nothing",
        ("translate", f"{whole.path}", "two", "--beam", "0"): "beam must be at least 1",
        (
            "predict",
            f"{whole.path}",
            f"{tmp_path}",
        ): "holds a model of the task translate, which takes text and no images",
        ("explain", f"{whole.path}", "two dogs", "kind=mixing", f"out={tmp_path}"): "takes text, which has no kind",
        ("evaluate", f"{whole.path}", "image_size=32"): "a model of translation is measured without image_size",
    }
    for words, said in cases.items():
        assert main(list(words)) == 2
        error = capsys.readouterr().err.strip().splitlines()[-1]
        assert said in error
        assert error.startswith("vitrail: error:")


def test_settings_of_images_are_refused(text: Path) -> None:
    for words, said in (
        (("data.level=fine",), "data.level is for images"),
        (("regularisation.drop_path=0.1",), "drop_path is for images"),
        (("text.max_length=8",), ""),
    ):
        task = find_task("translate")(toy_recipe(f"data={text}", *words), Site())
        if said:
            with pytest.raises(ValueError, match=said):
                task.check()
        else:
            assert task.open().num_train < 60  # what is longer is left out


def test_two_processes_measure_what_one_does(whole: RunFolder) -> None:
    alone = vitrail.evaluate(whole.path)
    for found in run_worlds(2, lambda world: vitrail.evaluate(whole.path, world=world)):
        assert found.record == alone.record


def test_a_run_is_measured_compared_and_explained(
    whole: RunFolder, tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", str(whole.path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["split"], found["count"], found["beam"]) == ("val", 12, 4)
    assert found["signatures"]["bleu"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    last = [record for record in whole.read_metrics() if record["kind"] == "eval"][-1]
    assert found["chrf"] == pytest.approx(last["chrf"], abs=1e-6)  # the saved model is what the run measured
    assert main(["evaluate", str(whole.path), "--beam", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["beam"] == 1
    assert main(["check", str(text)]) == 2
    assert "check it with --languages" in capsys.readouterr().err
    assert main(["evaluate", str(whole.path), f"data={text}", "split=train"]) == 0
    assert "on 60 sentences of train" in capsys.readouterr().out
    assert main(["evaluate", "--compare", str(whole.path), str(whole.model), f"data={text}", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["systems"]
    assert first["chrF"]["score"] == second["chrF"]["score"]
    assert second["chrF"]["p_value"] > 0.4  # the same model
    words = ["the old dog runs", "the old dog runs!"]
    assert main(["explain", str(whole.path), *words, f"out={tmp_path}"]) == 0
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["mixing.png", "the_old_dog_runs.png", "the_old_dog_runs_2.png"]


def test_the_report_shows_the_best_and_the_worst_sentences(whole: RunFolder) -> None:
    from vitrail.training.runs.report import summarize, write_report

    page = write_report(whole.path).read_text(encoding="utf-8")
    assert "Best and worst sentences of val" in page
    assert "tok:13a" in page
    assert "tokens per second" in page
    assert "tokens/s" in summarize(whole.path)


@pytest.mark.usefixtures("_short_plans")
def test_a_plan_counts_tokens(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "toy.yaml").write_text(write_yaml(toy_recipe(f"data={text}")))
    assert main(["plan", str(tmp_path / "toy.yaml")]) == 0
    assert "tokens/s" in capsys.readouterr().out


def test_speeds_of_a_plan_are_of_tokens(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = Translate(toy_recipe(f"data={text}"), Site(device=torch.device("cpu"), dtype=torch.float32))
    task.open()
    batch = task.example(2000)
    assert task.count_batch(batch) == int(batch.lengths.sum()) + len(batch.answers) > 10 * batch.num_samples
    loader = task.make_loaders(num_parts=1, listing=None).train
    clock = itertools.count(0.0, 1.0)
    monkeypatch.setattr(planning.time, "perf_counter", lambda: next(clock))
    # The first batch starts the clock, the next two end it: two of three seconds' batches are counted.
    seen = list(itertools.islice(loader.epoch(0), 3))
    assert planning.measure_loading(loader, count=task.count_batch) == sum(map(task.count_batch, seen[1:])) / 2.0
