"""`vitrail gallery`: every action for a person and as JSON, its pages, and its errors in one line."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_galleries import save_colour, tiny_model

import vitrail
from vitrail.cli import main

SHAPES = "shapes:size=16,count=96,val=48"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    vitrail.save_model(tiny_model(), folder)
    return folder


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    folder = tmp_path_factory.mktemp("galleries") / "shapes"
    assert main(["gallery", "build", str(model), f"data={SHAPES}", f"out={folder}", "precision=fp32"]) == 0
    return folder


@pytest.fixture
def gallery(built: Path, tmp_path: Path) -> Path:
    """One of its own, to change."""
    return Path(shutil.copytree(built, tmp_path / "gallery"))


@pytest.fixture
def reds(tmp_path: Path) -> list[Path]:
    """Five pictures of a class that the gallery does not have, and one more."""
    (tmp_path / "reds").mkdir()
    return [save_colour(tmp_path / "reds" / f"{seed}.png", "red", seed=seed) for seed in range(6)]


def ask(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    assert main(["gallery", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def say(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main(["gallery", *map(str, words)]) == 0
    return capsys.readouterr().out


def complaint(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main(["gallery", *map(str, words)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


def test_build_says_what_it_made(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = ask(capsys, "build", model, f"data={SHAPES}", f"out={tmp_path / 'g'}", "false_reject=0.25", "half=true")
    assert (report["num_images"], report["dim"], report["index"], report["coarse"]) == (96, 24, "exact", "coarse")
    assert report["threshold"]["num_held_out"] == 48
    assert report["threshold"]["false_reject"] == 0.25
    assert report["source"] == str(model)
    assert "holds a gallery already" in complaint(capsys, "build", model, f"data={SHAPES}", f"out={tmp_path / 'g'}")


def test_a_catalogue_is_built_of_all_its_images(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("red", "blue"):
        (tmp_path / "catalogue" / name).mkdir(parents=True)
        for seed in range(4):
            save_colour(tmp_path / "catalogue" / name / f"{seed}.png", name, seed=seed)
    words = ("build", model, f"data={tmp_path / 'catalogue'}")
    assert ask(capsys, *words, f"out={tmp_path / 'part'}")["num_images"] == 6  # the others are val
    report = ask(capsys, *words, f"out={tmp_path / 'all'}", "split=all", "coarse=label")
    assert (report["num_images"], report["levels"], report["coarse"]) == (8, {"fine": 0, "label": 2}, "label")
    assert report["threshold"]["num_held_out"] == 8
    (row,) = ask(capsys, "search", tmp_path / "all", tmp_path / "catalogue" / "red" / "3.png", "--top", 1)
    assert row["hits"][0]["path"] == str(tmp_path / "catalogue" / "red" / "3.png")


def test_five_pictures_change_the_answers_at_once(
    gallery: Path, reds: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    (before,) = ask(capsys, "classify", gallery, reds[5])
    assert before["label"] != "red"
    assert ask(capsys, "add", gallery, "red", *reds[:5]) == {
        "label": "red",
        "coarse": None,
        "added": 5,
        "images_of_label": 5,
    }
    (after,) = ask(capsys, "classify", gallery, reds[5], "--top", 3)
    assert (after["label"], after["is_unknown"]) == ("red", False)
    assert after["probabilities"][0]["label"] == "red"
    assert "red" in say(capsys, "classify", gallery, reds[5])
    assert ask(capsys, "remove", gallery, reds[0]) == {"removed": 1}
    assert say(capsys, "remove", gallery, "red") == "4 removed\n"
    (last,) = ask(capsys, "classify", gallery, reds[5])
    assert last["label"] == before["label"]


def test_a_folder_of_images_is_searched_by_each(
    built: Path, reds: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    found = ask(capsys, "search", built, reds[0].parent, "--top", 4)
    assert [Path(row["image"]).name for row in found] == [path.name for path in reds]
    assert all(len(row["hits"]) == 4 for row in found)
    assert set(found[0]["hits"][0]) == {"path", "labels", "cosine", "score"}
    lines = say(capsys, "search", built, reds[0], "--top", 2).splitlines()
    assert lines[0] == str(reds[0])
    assert len(lines) == 3
    assert "shapes/train/" in lines[1]


def test_the_coarse_class_ranks_first(built: Path, reds: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = ask(capsys, "search", built, reds[0], "--top", 96, "--rank", "conditional")
    names = [hit["labels"]["coarse"] for hit in row["hits"]]
    other = names[-1]
    assert names[0] != other
    (row,) = ask(capsys, "search", built, "--coarse", other, "--top", 3, reds[0])
    assert [hit["labels"]["coarse"] for hit in row["hits"]] == [other] * 3


def test_evaluation_of_one_gallery_and_of_two(
    built: Path, gallery: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "lists.png"
    report = ask(capsys, "evaluate", built, f"data={SHAPES}", f"lists={picture}", "precision=fp32")
    assert list(report["levels"]) == ["label", "coarse"]
    assert report["levels"]["label"]["map_oracle"] >= report["levels"]["label"]["map_cosine"]
    assert "map_oracle" not in report["levels"]["coarse"]  # it would be the answer
    assert 0.0 <= report["false_reject"] <= 100.0 * 3 / 48
    assert picture.stat().st_size > 1000
    table = say(capsys, "evaluate", built, gallery, f"data={SHAPES}")
    assert table.count("kNN top-1") == 2
    assert "conditional" in table
    assert "are answered unknown" in table


def test_groups_are_suggested_shown_and_named(gallery: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = ask(capsys, "suggest", gallery, "--groups", 3)
    assert sum(group["count"] for group in report["groups"]) == 96
    page = Path(report["page"]).read_text(encoding="utf-8")
    assert "group 3" in page
    assert f"vitrail gallery name {gallery} 1 LABEL" in page
    count = report["groups"][0]["count"]
    assert say(capsys, "name", gallery, 1, "largest") == f"{count} images are largest now\n"
    assert ask(capsys, "report", gallery)["classes"]["largest"] == count
    assert "there are groups 1 to 3, and not '4'" in complaint(capsys, "name", gallery, 4, "none")


def test_a_report_is_a_page(gallery: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "96 images" in say(capsys, "report", gallery)
    assert "data:image/jpeg" in (gallery / "report.html").read_text(encoding="utf-8")
    assert ask(capsys, "report", gallery, f"out={tmp_path / 'page.html'}")["page"] == str(tmp_path / "page.html")
    assert (tmp_path / "page.html").is_file()


def test_the_model_may_have_moved(
    gallery: Path, model: Path, reds: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = json.loads((gallery / "gallery.json").read_text())
    content["model"]["source"] = str(tmp_path / "gone")
    (gallery / "gallery.json").write_text(json.dumps(content))
    assert "remove its line 'checksum'" in complaint(capsys, "classify", gallery, reds[0])
    del content["checksum"]
    (gallery / "gallery.json").write_text(json.dumps(content))
    assert "no such run or model" in complaint(capsys, "classify", gallery, reds[0])
    assert ask(capsys, "classify", gallery, reds[0], f"model={model}")
    vitrail.save_model(tiny_model(seed=1), tmp_path / "other")
    message = complaint(capsys, "classify", gallery, reds[0], f"model={tmp_path / 'other'}")
    assert "holds embeddings of another model" in message


def test_images_that_can_not_be_read_are_left_out_and_named(
    gallery: Path, reds: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.png").write_bytes(b"nothing")
    assert main(["gallery", "add", str(gallery), "red", str(tmp_path / "broken.png"), str(reds[0])]) == 1
    assert "broken.png" in capsys.readouterr().err
    assert "broken.png" in complaint(capsys, "search", gallery, tmp_path / "broken.png")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["search", "GALLERY"], "write `vitrail gallery search G IMAGE...`"),
        (["search", "nothing", "image.png"], "no gallery 'nothing'"),
        (["search", "GALLERY", "nothing.png"], "no image or folder 'nothing.png'"),
        (["search", "GALLERY", "RED", "--rank", "oracle"], "needs the coarse class of the image"),
        (["search", "GALLERY", "RED", "--coarse", "furniture"], "no images of coarse 'furniture' in the gallery"),
        (["remove", "GALLERY", "furniture"], "no label and no image 'furniture' in the gallery"),
        (["classify", "GALLERY", "RED", "--top", "0"], "top must be at least 1, not 0"),
        (["classify", "GALLERY", "RED", "--top", "-2"], "top must be at least 1, not -2"),
        (["search", "GALLERY", "RED", "--rank", "cosine", "--coarse", "red"], "or rank oracle"),
        (["add", "GALLERY", "unknown", "RED"], "'unknown' is an answer of galleries"),
        (["report", "GALLERY", "out=RED/page.html"], "can't be written: Not a directory"),
        (["suggest", "GALLERY", "out=RED/page.html"], "can't be written: Not a directory"),
        (["evaluate", "GALLERY", f"data={SHAPES}", "cache=RED/cache"], "can't be kept in"),
        (["evaluate", "GALLERY", f"data={SHAPES}", "lists=lists.xyz"], "let it end with .png"),
        (["evaluate", "GALLERY", f"data={SHAPES}", "lists=nowhere/l.png"], "nowhere is no folder"),
        (["build", "MODEL", f"data={SHAPES}", "out=new", "thumbnails=1.7"], "thumbnails must be a whole number"),
        (["build", "MODEL", f"data={SHAPES}", "out=RED/new"], "a gallery can't be made in"),
        (["add", "GALLERY", "red"], "write `vitrail gallery add G LABEL IMAGE...`"),
        (["evaluate", "GALLERY"], "write `vitrail gallery evaluate G data=SPEC`"),
        (["evaluate", "GALLERY", "data=fashion", "spilt=val"], "did you mean 'split'?"),
        (["suggest", "GALLERY", "--groups", "1000"], "96 images can't be put into 1000 groups"),
        (["name", "GALLERY", "1", "red"], "no groups were suggested"),
        (["report", "nothing"], "no gallery 'nothing'"),
        (["build", "MODEL", f"data={SHAPES}"], "write `vitrail gallery build RUN data=SPEC out=PLACE`"),
        (["build", "MODEL", f"data={SHAPES}", "out=new", "index=tree"], "index must be one of"),
        (["build", "MODEL", f"data={SHAPES}", "out=new", "coarse=genus"], "has no labels 'genus'"),
        (["build", "MODEL", f"data={SHAPES}", "out=new", "false_reject=2"], "false_reject is a share"),
        (["build", "MODEL", f"data={SHAPES}", "out=new", "half=3"], "half must be true or false"),
    ],
)
def test_mistakes_are_one_line(
    built: Path,
    model: Path,
    reds: list[Path],
    words: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    places = {"GALLERY": str(built), "MODEL": str(model), "RED": str(reds[0])}
    told = complaint(capsys, *(places.get(word, word).replace("=RED", f"={reds[0]}") for word in words))
    assert message in told
    assert not (tmp_path / "new").exists()


def test_a_new_coarse_class_is_pointed_out(gallery: Path, reds: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    known = next(iter(vitrail.Gallery(gallery).counts("coarse")))
    misspelt = f"{known}s"
    assert main(["gallery", "add", str(gallery), "red", str(reds[0]), "--coarse", misspelt]) == 0
    assert f"{misspelt!r} is a new class of coarse (did you mean {known!r}?)" in capsys.readouterr().err
    assert main(["gallery", "add", str(gallery), "red", str(reds[1]), "--coarse", misspelt]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("content", ["[1, 2]", "{}", "[", ""])
def test_a_damaged_list_of_suggestions_is_named(
    gallery: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    (gallery / "suggestions.json").write_text(content)
    said = complaint(capsys, "name", gallery, "1", "red")
    assert "suggestions.json" in said
    assert f"write it anew with `vitrail gallery suggest {gallery}`" in said


def test_a_run_without_val_of_its_own_keeps_its_split_in_a_gallery(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("red", "blue"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for seed in range(20):
            save_colour(tmp_path / "photos" / name / f"{seed}.png", name, seed=seed)
    settings = "{image_size: 16, patch_size: 8, dim: 24, num_heads: 2, depth: 1}"
    words = [f"data={tmp_path / 'photos'}", "data.val_share=0.25", "image_size=16", "steps=1", "batch_size=4"]
    run = tmp_path / "run"
    assert main(["train", "small_photos_scratch", *words, f"model.settings={settings}", f"out={run}"]) == 0
    capsys.readouterr()
    report = ask(capsys, "build", run, f"data={tmp_path / 'photos'}", f"out={tmp_path / 'g'}")
    assert (report["num_images"], report["threshold"]["num_held_out"]) == (30, 10)
    assert ask(capsys, "evaluate", tmp_path / "g", f"data={tmp_path / 'photos'}")["num_images"] == 10


def test_photos_without_classes_are_searched_and_taught(
    model: Path, reds: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in range(12):
        (tmp_path / "flat").mkdir(exist_ok=True)
        save_colour(tmp_path / "flat" / f"{seed}.png", ("red", "blue")[seed % 2], seed=seed)
    folder = tmp_path / "g"
    assert ask(capsys, "build", model, f"data={tmp_path / 'flat'}", f"out={folder}")["num_images"] == 12
    assert str(tmp_path / "flat") in say(capsys, "search", folder, reds[0])
    assert "has no classes: search it with `vitrail gallery search`" in complaint(capsys, "classify", folder, reds[0])
    say(capsys, "add", folder, "red", *reds)
    assert "red" in say(capsys, "classify", folder, reds[0])


def test_help_answers_without_torch() -> None:
    program = "import sys; from vitrail.cli import main; main(['gallery', '--help']); print('torch' in sys.modules)"
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "what images show; rule=means" in finished.stdout
    assert finished.stdout.endswith("False\n")


def test_every_action_says_the_same_on_milvus(
    gallery: Path, model: Path, reds: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pymilvus", reason="pymilvus is not installed")
    pytest.importorskip("milvus_lite", reason="milvus-lite is not installed")
    database = f"milvus:{tmp_path / 'shapes.db'}"
    keys = ("precision=fp32", "index_params={}", "index=exact")
    assert ask(capsys, "build", model, f"data={SHAPES}", f"out={database}", *keys)["num_images"] == 96
    for words in (
        ("search", "G", reds[0], "--top", 3),
        ("search", "G", reds[0], "--rank", "conditional"),
        ("classify", "G", *reds, "rule=neighbours"),
        ("add", "G", "red", *reds[:5]),
        ("classify", "G", reds[5]),
        ("evaluate", "G", f"data={SHAPES}", "precision=fp32"),
        ("add", "G", f"data={SHAPES}", "split=val"),
        ("add", "G", f"data={SHAPES}", "split=val"),
        ("remove", "G", reds[0]),
        ("remove", "G", "red"),
        ("suggest", "G", "--groups", 2),
        ("name", "G", 1, 'it\'s "odd"'),
        ("report", "G"),
    ):
        answers = [
            as_text(ask(capsys, *(place if word == "G" else word for word in words)), place)
            for place in (database, str(gallery))
        ]
        assert answers[0] == answers[1], words
    assert "is for galleries on Milvus" in complaint(
        capsys, "build", model, f"data={SHAPES}", f"out={tmp_path / 'g'}", "partition=true"
    )


def as_text(answer: Any, place: str) -> str:
    """An answer without the name of its place, and with numbers as they are shown."""
    if isinstance(answer, dict):
        answer.pop("page", None)
    plain = json.dumps(json.loads(json.dumps(answer), parse_float=lambda number: round(float(number), 4)))
    return plain.replace(place, "PLACE")
