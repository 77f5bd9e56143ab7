"""`vitrail retrieve`: figures at every level, the matrix of several runs, its files and pictures, and its errors."""

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image, ImageColor
from tiny_runs import run_in
from together import run_worlds

import vitrail
from vitrail.cli import main
from vitrail.cli.retrieve_answers import ModelAnswers, RetrievalTask
from vitrail.cli.retrieve_text import write_tables
from vitrail.data.datasets import open_dataset
from vitrail.evaluation.ranked_lists import RankedList
from vitrail.evaluation.together import Alone, Together
from vitrail.inference.trained import load_trained

SHAPES = "shapes:size=16,count=48,val=24"
TINY = ("model=deit_tiny", "epochs=1")  # a CaiT's LayerScale would leave nearly the same embedding for all images


@pytest.fixture(scope="module")
def coarse_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was trained on the coarse labels."""
    return run_in(tmp_path_factory.mktemp("runs") / "of_coarse", *TINY, "data.level=coarse").path


@pytest.fixture(scope="module")
def fine_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_in(tmp_path_factory.mktemp("runs") / "of_fine", *TINY).path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved model of other classes, which have no names."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    settings = {"image_size": 16, "patch_size": 4, "dim": 32, "num_heads": 2, "depth": 1, "num_classes": 5}
    vitrail.save_model(vitrail.create_model("deit_tiny", **settings), folder)
    return folder


def retrieve(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    assert main(["retrieve", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def complaint(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main(["retrieve", *map(str, words)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


def test_every_level_has_its_figures_and_finer_ones_are_conditioned(
    coarse_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = retrieve(capsys, coarse_run, f"data={SHAPES}")
    (run,) = report["runs"]
    assert list(report["levels"].items()) == [("coarse", 6), ("label", 24)]
    assert (run["run"], run["trained_on"], run["num_train_classes"]) == ("of_coarse", "coarse", 6)
    assert (run["num_images"], run["num_queries"], run["num_left_out"], run["dim"]) == (48, 24, 0, 16)
    coarse, fine = run["levels"]["coarse"], run["levels"]["label"]
    assert (coarse["coarse"], coarse["predicted_by"]) == (None, None)
    assert "map_oracle" not in coarse
    assert (fine["coarse"], fine["predicted_by"]) == ("coarse", "classifier")
    assert fine["map_oracle"] > fine["map_cosine"]
    assert all(fine[name] <= 100.0 for name in ("top1", "map_cosine", "map_conditional", "map_oracle"))
    assert fine["neighbours"] in (10, 15, 20, 25, 30)


def test_the_figures_are_those_of_the_embeddings_and_the_classifier(
    coarse_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same by hand: normalised features, log-odds of the model's softmax, and a sort of every row."""
    (run,) = retrieve(capsys, coarse_run, f"data={SHAPES}", "precision=fp32", "crop_ratio=1.0")["runs"]
    found = run["levels"]["label"]
    trained = vitrail.load_trained(coarse_run)
    sets = [vitrail.open_dataset(SHAPES, split) for split in ("train", "val")]
    vectors, logits = [], []
    for data in sets:
        pixels = torch.stack([torch.from_numpy(data.read(index)).permute(2, 0, 1) for index in range(len(data))])
        images = trained.normalize(pixels)
        with torch.no_grad():
            vectors.append(torch.nn.functional.normalize(trained.model.summarize(images)[:, 0], dim=1).double())
            logits.append(trained.model(images).double())
    probabilities = logits[1].softmax(dim=1)
    coarse = torch.from_numpy(sets[0].level("coarse").labels)
    cosines = vectors[1] @ vectors[0].T
    odds = (probabilities / (1.0 - probabilities)).log()[:, coarse]
    labels, own = (torch.from_numpy(data.level("label").labels) for data in sets)
    for scores, figure in ((cosines, found["map_cosine"]), (cosines + odds, found["map_conditional"])):
        precisions = []
        for row, label in zip(scores, own, strict=True):
            is_right = labels[row.argsort(descending=True)] == label
            ranks = is_right.nonzero()[:, 0]
            precisions.append(((torch.arange(len(ranks)) + 1) / (ranks + 1)).mean())
        assert figure == pytest.approx(100.0 * torch.stack(precisions).nanmean().item(), abs=0.05)


def test_several_runs_make_the_matrix_as_table_csv_and_json(
    coarse_run: Path, fine_run: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["retrieve", str(coarse_run), str(fine_run), str(model), f"data={SHAPES}", f"out={out}"]) == 0
    printed = capsys.readouterr().out
    assert "of_coarse: deit_tiny, trained on coarse (6)" in printed
    assert "tiny: deit_tiny, trained on other labels" in printed
    assert {"kNN top-1", "mAP cosine", "mAP conditional", "mAP oracle"} <= set(printed.splitlines())
    report = json.loads((out / "retrieval.json").read_text())
    assert [run["trained_on"] for run in report["runs"]] == ["coarse", "label", None]
    by = [run["levels"]["label"]["predicted_by"] for run in report["runs"]]
    assert by == ["classifier", "neighbours", "neighbours"]
    with (out / "retrieval.csv").open(newline="") as file:
        rows = {(row["measure"], row["test_level"]): row for row in csv.DictReader(file)}
    assert rows["trained_on", ""]["of_fine"] == "label"
    for run in report["runs"]:
        assert float(rows["top1", "label"][run["run"]]) == pytest.approx(run["levels"]["label"]["top1"], abs=1e-3)
        assert rows["map_oracle", "coarse"][run["run"]] == ""
    assert rows["map_cosine", "coarse"]["test_classes"] == "6"


def test_an_embedding_without_a_classifier_is_conditioned_by_its_neighbours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ("embedding.projector=linear", "embedding.dim=8", "embedding.instance=0", "task=embed")
    folder = run_in(tmp_path / "snca", *TINY, *settings, "data.level=coarse").path
    (run,) = retrieve(capsys, folder, f"data={SHAPES}")["runs"]
    assert (run["trained_on"], run["num_train_classes"], run["dim"]) == ("coarse", 6, 8)
    assert (run["levels"]["label"]["coarse"], run["levels"]["label"]["predicted_by"]) == ("coarse", "neighbours")


def test_a_run_that_used_no_labels_is_of_one_class(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ("embedding.projector=linear", "embedding.dim=8", "embedding.hidden_dim=8", "embedding.knn=0")
    views = ("embedding.views=2", "augmentation.repeats=1", "task=embed")
    folder = run_in(tmp_path / "unsupervised", *TINY, *settings, *views).path
    assert main(["retrieve", str(folder), f"data={SHAPES}"]) == 0
    assert "unsupervised: deit_tiny, trained without labels, 8 numbers an image" in capsys.readouterr().out


def test_fewer_queries_can_be_asked(coarse_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, again = (retrieve(capsys, coarse_run, f"data={SHAPES}", "--images", "9")["runs"][0] for _ in range(2))
    assert first["num_queries"] == 9
    assert first["num_images"] == 48
    assert first["levels"] == again["levels"]


def test_a_folder_has_one_level_and_broken_files_are_left_out(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for split in ("train", "val"):
        for name, colour in (("red", (200, 30, 30)), ("blue", (30, 30, 200))):
            (tmp_path / "data" / split / name).mkdir(parents=True)
            for number in range(3):
                Image.new("RGB", (16, 16), colour).save(tmp_path / "data" / split / name / f"{number}.png")
    (tmp_path / "data" / "val" / "red" / "0.png").write_bytes(b"nothing")
    assert main(["retrieve", str(model), f"data={tmp_path / 'data'}"]) == 0
    captured = capsys.readouterr()
    assert "5 images of val of data; each ranks 6 of train" in captured.out
    assert "1 left out that could not be read" in captured.out
    assert "0.png" in captured.err
    assert "conditional" not in captured.out
    assert " 100.00 " in captured.out


def test_pictures_are_drawn_of_all_runs(
    coarse_run: Path, fine_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    shown = ("--lists", "--tsne", "--energy")
    words = ["retrieve", str(coarse_run), str(fine_run), f"data={SHAPES}", f"out={tmp_path / 'out'}", *shown]
    assert main(words) == 0
    assert "lists.png, tsne.png, energy.png are in" in capsys.readouterr().out
    for name in ("lists", "tsne", "energy"):
        with Image.open(tmp_path / "out" / f"{name}.png") as picture:
            assert min(picture.size) > 300
    with Image.open(tmp_path / "out" / "lists.png") as lists:
        colours = {colour for _, colour in lists.convert("RGB").getcolors(1_000_000) or ()}
    assert {(34, 163, 74), (240, 140, 0)} <= colours  # green: the fine class; orange: the coarse one


def test_a_collapsed_run_has_no_curve_of_energy_but_its_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"image_size": 16, "patch_size": 4, "dim": 32, "num_heads": 2, "depth": 1, "num_classes": 0}
    model = vitrail.create_model("deit_tiny", **settings)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith("norm."):  # of the final norm its bias is all that is left
                parameter.fill_(1.0 if name == "norm.bias" else 0.0)
    vitrail.save_model(model, tmp_path / "collapsed")
    words = ["retrieve", str(tmp_path / "collapsed"), f"data={SHAPES}", f"out={tmp_path / 'out'}", "--energy"]
    assert main(words) == 0
    assert "collapsed has no curve in energy.png: all" in caplog.text
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["retrieval.csv", "retrieval.json"]


def test_too_few_images_for_tsne_leave_the_figures(
    coarse_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    words = ["retrieve", str(coarse_run), f"data={SHAPES}", f"out={tmp_path / 'out'}", "--tsne", "--images", "4"]
    assert main(words) == 0
    assert "is not in tsne.png: t-SNE needs at least 5" in caplog.text
    assert "kNN top-1" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["retrieval.csv", "retrieval.json"]


def test_many_runs_keep_their_names_in_a_narrow_table(capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"run_with_a_long_name_{number}" for number in range(5)]
    level = {"top1": 50.0, "neighbours": 10, "map_cosine": 20.0, "coarse": None, "predicted_by": None}
    facts = {"model": "m", "num_train_classes": 2, "dim": 4, "num_queries": 5, "num_images": 6, "num_left_out": 0}
    runs = [{"run": name, "trained_on": "label", "levels": {"label": level}, **facts} for name in names]
    write_tables({"data": "d", "split": "val", "levels": {"label": 2}, "runs": runs})
    table = capsys.readouterr().out.partition("kNN top-1")[2]
    assert "…" not in table
    assert table.count("50.00") == 5


def test_tsne_of_one_coarse_class(
    coarse_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    counts = []

    def note(vectors: torch.Tensor) -> torch.Tensor:
        counts.append(len(vectors))
        return vectors[:, :2]

    monkeypatch.setattr("vitrail.cli.retrieve_pictures.project_to_plane", note)
    shape = vitrail.open_dataset(SHAPES, "val").level("coarse").classes[0]
    words = (coarse_run, f"data={SHAPES}", f"out={tmp_path}", "--tsne")
    assert main(["retrieve", *map(str, words), f"within={shape}"]) == 0
    assert counts == [4]
    capsys.readouterr()
    assert "no coarser class 'bird' in shapes; there are:" in complaint(capsys, *words, "within=bird")


def test_tsne_shows_one_class_in_colour(
    coarse_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    monkeypatch.setattr("vitrail.cli.retrieve_pictures.project_to_plane", lambda vectors: vectors[:, :2])
    levels = vitrail.open_dataset(SHAPES, "val").levels
    words = (coarse_run, f"data={SHAPES}", f"out={tmp_path}")
    for level, num_colours in (("coarse", 4), ("label", 1)):  # four patterns of a shape, and one of them
        assert main(["retrieve", *map(str, words), "--tsne", f"focus={levels[level].classes[0]}"]) == 0
        with Image.open(tmp_path / "tsne.png") as picture:
            counts = {colour: count for count, colour in picture.convert("RGB").getcolors(1_000_000) or ()}
        shown = [
            counts.get(ImageColor.getrgb(colour), 0) > 20 for colour in ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728")
        ]
        assert sum(shown) == num_colours
        assert counts[ImageColor.getrgb("#c8ccd2")] > 300
    capsys.readouterr()
    assert "no class 'bird' in shapes; there are:" in complaint(capsys, *words, "--tsne", "focus=bird")
    assert "focus=CLASS chooses what --tsne shows in colour: add it" in complaint(capsys, *words, "focus=bird")


def test_tsne_has_the_colours_of_the_coarse_level_or_of_one_that_is_chosen(
    coarse_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    drawn: list[tuple[tuple[str, ...], list[int]]] = []

    def note(planes: object, labels: torch.Tensor, classes: tuple[str, ...], path: Path, *, focus: object) -> Path:
        drawn.append((tuple(classes), labels.tolist()))
        return path

    monkeypatch.setattr("vitrail.cli.retrieve_pictures.project_to_plane", lambda vectors: vectors[:, :2])
    monkeypatch.setattr("vitrail.cli.retrieve_pictures.draw_planes", note)
    levels = vitrail.open_dataset(SHAPES, "val").levels
    words = (coarse_run, f"data={SHAPES}", f"out={tmp_path}")
    shape = levels["coarse"].classes[0]
    for more, level in (((), "coarse"), (("colour=label",), "label"), ((f"focus={shape}",), "label")):
        assert main(["retrieve", *map(str, words), "--tsne", *more]) == 0
        assert drawn.pop() == (levels[level].classes, levels[level].labels.tolist())
    capsys.readouterr()
    assert "colour= is a level of labels: coarse, label; not 'genus'" in complaint(
        capsys, *words, "--tsne", "colour=genus"
    )
    assert "colour=LEVEL chooses the colours of --tsne" in complaint(capsys, *words, "colour=label")


def test_lists_of_chosen_queries(
    coarse_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[RankedList] = []

    def note(lists: list[RankedList], path: Path, *, levels: list[str]) -> Path:
        drawn[:] = lists
        assert levels == ["label", "coarse"]
        return path

    monkeypatch.setattr("vitrail.cli.retrieve_pictures.save_ranked_lists", note)
    val = vitrail.open_dataset(SHAPES, "val")
    fine, coarse = val.level("label"), val.level("coarse")
    captions = [f"{fine.classes[fine.labels[place]]} / {coarse.classes[coarse.labels[place]]}" for place in (20, 3)]
    words = ["retrieve", str(coarse_run), f"data={SHAPES}", f"out={tmp_path}", "--lists", "query=[val/20, 3]"]
    assert main(words) == 0
    assert [row.caption for row in drawn] == captions
    assert [len(row.found) for row in drawn] == [10, 10]
    assert main([*words, "--images", "5"]) == 0  # they are among the five
    assert [row.caption for row in drawn] == captions
    assert "5 images of val" in capsys.readouterr().out
    start = words[1:5]
    assert "query= chooses the images of --lists: add it" in complaint(capsys, *start[:3], "query=3")
    assert "val of shapes has the images 0 to 23, not 24" in complaint(capsys, *start, "query=24")
    assert "val of shapes has no file 'cat.jpg'; its first is" in complaint(capsys, *start, "query=cat.jpg")


def test_levels_are_drawn_over_each_other_by_method(
    coarse_run: Path, fine_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(coarse_run), str(fine_run), f"data={SHAPES}", f"out={tmp_path}", "--granularity"]
    assert main(["retrieve", *words]) == 0
    with Image.open(tmp_path / "granularity.png") as picture:
        narrow = picture.width
    assert main(["retrieve", *words, "methods=[tiny, tiny]"]) == 0
    assert "granularity.png are in" in capsys.readouterr().out
    with Image.open(tmp_path / "granularity.png") as picture:
        assert picture.width > narrow + 500  # train = test, and test at the finest
    assert "methods= has 1 names for 2 runs" in complaint(capsys, *words, "methods=tiny")
    assert "methods= names the lines of --granularity: add it" in complaint(capsys, *words[:4], "methods=[a, b]")
    assert "--granularity draws a picture: say where" in complaint(capsys, *words[:3], "--granularity")


def test_separability_with_and_without_a_coarse_classifier(
    coarse_run: Path,
    fine_run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("vitrail.evaluation.separability._TOLERANCE", 1e-2)
    words = [str(coarse_run), str(fine_run), f"data={SHAPES}", f"out={tmp_path}", "--separability", "splits=1"]
    assert main(["retrieve", *words]) == 0
    assert "random halves of each coarse class, 1 times" in capsys.readouterr().out
    report = json.loads((tmp_path / "retrieval.json").read_text())
    first, second = (run["separability"] for run in report["runs"])
    assert (first["level"], first["num_splits"]) == ("coarse", 1)
    assert 0.0 < first["top1"] <= 100.0
    assert first["conditional"] is not None
    assert second["conditional"] is None


def test_what_is_wrong_is_said_in_one_line(
    coarse_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "write `vitrail retrieve RUN [RUN ...] data=SPEC`" in complaint(capsys, coarse_run)
    assert "unknown key 'leve'" in complaint(capsys, coarse_run, f"data={SHAPES}", "leve=coarse")
    assert "say where with out=FOLDER" in complaint(capsys, coarse_run, f"data={SHAPES}", "--lists")
    assert "--images must be at least 1" in complaint(capsys, coarse_run, f"data={SHAPES}", "--images", "0")
    assert "add it" in complaint(capsys, coarse_run, f"data={SHAPES}", "splits=3")
    assert "splits must be a whole number" in complaint(
        capsys, coarse_run, f"data={SHAPES}", "--separability", "splits=0"
    )
    assert "add it" in complaint(capsys, coarse_run, f"data={SHAPES}", "within=disc")
    assert "has no labels 'genus'; it has: coarse, label" in complaint(
        capsys, coarse_run, f"data={SHAPES}", "coarse=genus"
    )
    assert "ask with another split" in complaint(capsys, coarse_run, f"data={SHAPES}", "split=train")
    assert "a run is named twice" in complaint(capsys, coarse_run, coarse_run, f"data={SHAPES}")
    (tmp_path / "file").write_text("")
    assert "can't be made a folder" in complaint(capsys, coarse_run, f"data={SHAPES}", f"out={tmp_path / 'file'}")
    (tmp_path / "retrieval.json").mkdir()
    assert "retrieval.json can't be written" in complaint(capsys, coarse_run, f"data={SHAPES}", f"out={tmp_path}")
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.manifold", None)
    assert "t-SNE needs scikit-learn" in complaint(capsys, coarse_run, f"data={SHAPES}", f"out={tmp_path}", "--tsne")


def test_a_level_of_the_same_name_but_other_classes_is_not_what_a_run_was_trained_on(
    fine_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("embedding.projector=linear", "embedding.dim=8", "embedding.instance=0", "task=embed")
    embedding = run_in(tmp_path / "embedding", *TINY, *words).path
    (run,) = retrieve(capsys, embedding, f"data={SHAPES}")["runs"]
    assert (run["trained_on"], run["num_train_classes"]) == ("label", 24)
    paint_two_classes(tmp_path / "photos", count=10)
    for source in (fine_run, embedding):
        (run,) = retrieve(capsys, source, f"data={tmp_path / 'photos'}")["runs"]
        assert (run["trained_on"], run["num_train_classes"]) == (None, 24)


def paint_two_classes(folder: Path, *, count: int) -> None:
    for name, colour in (("red", (200, 0, 0)), ("blue", (0, 0, 200))):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", (16, 16), colour).save(folder / name / f"{number}.png")


def test_data_without_a_val_is_split_as_the_run_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paint_two_classes(tmp_path / "photos", count=20)
    data = f"data={tmp_path / 'photos'}"
    runs = [run_in(tmp_path / str(share), *TINY, data, f"data.val_share={share}").path for share in (0.05, 0.25)]
    (run,) = retrieve(capsys, runs[0], data)["runs"]
    assert (run["num_images"], run["num_queries"]) == (38, 2)
    (run,) = retrieve(capsys, runs[1], data)["runs"]
    assert (run["num_images"], run["num_queries"]) == (30, 10)
    found = retrieve(capsys, *runs, data)["runs"]
    assert [run["num_queries"] for run in found] == [2, 2]  # the images that neither was trained on


def test_the_main_process_alone_has_what_the_classifier_says(fine_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, trained = open_dataset(SHAPES, "val"), load_trained(fine_run)
    pixels = data.read
    # All images of the first batch are broken: one process has a batch fewer than others.
    monkeypatch.setattr(data, "read", lambda index: b"no image" if index < 4 else pixels(index))

    def work(world: Together) -> torch.Tensor | None:
        settings = {"batch_size": 4, "precision": "fp32", "device": "cpu", "workers": 0}
        answers = ModelAnswers("run", trained, RetrievalTask(data, data, ("label",), settings, None, world))
        answers.embed(data)
        return answers.classify(data, "label")

    alone = work(Alone())
    assert alone is not None
    assert alone.shape == (20, 24)
    assert torch.allclose(alone.sum(dim=1), torch.ones(20))
    for num_ranks in (2, 4):
        first, *others = run_worlds(num_ranks, work)
        assert first is not None
        assert torch.equal(first, alone)
        assert others == [None] * (num_ranks - 1)
