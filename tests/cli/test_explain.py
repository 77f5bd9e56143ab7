"""`vitrail explain`: a picture an image and a page of them; --score against the floors; errors of one line."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from planted import plant
from tiny_runs import run_in

import vitrail
from vitrail.cli import main
from vitrail.training.runs.run_folder import RunFolder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run_in(tmp_path_factory.mktemp("runs") / "first", "epochs=1")


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two images, one of them of an odd name and shape; the working folder is above them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    for seed, (name, size) in enumerate((("a b=c.png", (50, 70)), ("é.jpg", (300, 240)))):
        noise = np.random.RandomState(seed).randint(0, 256, (*size, 3), dtype=np.uint8)
        Image.fromarray(noise).save(tmp_path / "photos" / name)
    return tmp_path / "photos"


def test_a_run_is_explained_with_a_picture_an_image_and_a_page(
    run: RunFolder, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", str(run.path), "photos", "out=seen/here"]) == 0
    assert capsys.readouterr().out == "2 pictures of attention, rollout, gradient: seen/here/index.html\n"
    pictures = sorted(Path("seen/here").glob("*.png"))
    assert [path.name for path in pictures] == ["0001_a_b_c.png", "0002__.png"]
    with Image.open(pictures[1]) as picture:
        assert picture.width > 4 * 240
        assert picture.height > 300
    page = Path("seen/here/index.html").read_text(encoding="utf-8")
    assert all(f'src="{path.name}"' in page for path in pictures)


def test_of_an_embedding_the_trunk_is_shown_and_not_scored(
    tmp_path: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("task=embed", "embedding.projector=linear", "embedding.dim=8", "embedding.instance=0", "epochs=1")
    embedding = run_in(tmp_path / "embedding", *words).path
    assert main(["explain", str(embedding), "photos/é.jpg", "out=seen", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["kinds"] == ["attention", "rollout", "likeness"]
    assert record["pictures"][0]["answers"] == []
    assert main(["explain", str(embedding), "--score", "data=shapes:size=16,count=48,val=24"]) == 2
    assert "has no classifier, it gives embeddings" in capsys.readouterr().err


def test_one_kind_layer_head_and_class_are_chosen(
    run: RunFolder, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", str(run.path), "photos/é.jpg", "out=seen", "kind=attention", "layer=1", "head=0"]) == 0
    assert main(["explain", str(run.path), "photos/a b=c.png", "out=seen", "class=plain circle", "--json"]) == 0
    record = json.loads(capsys.readouterr().out.splitlines()[1])
    assert record["kinds"] == ["attention", "rollout", "gradient"]
    assert record["pictures"][0]["source"] == "photos/a b=c.png"
    assert len(record["pictures"][0]["answers"]) == 3


def test_maps_are_thresholded(run: RunFolder, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["explain", str(run.path), "photos/é.jpg", "kind=attention"]
    assert main([*words, "out=plain"]) == 0
    assert main([*words, "out=kept", "keep=0.5"]) == 0
    with Image.open("plain/0001__.png") as plain, Image.open("kept/0001__.png") as kept:
        assert kept.width > plain.width + 200  # a further panel
    assert "the fewest patches that hold 50% of a map" in Path("kept/index.html").read_text(encoding="utf-8")
    capsys.readouterr()
    for words_of_keep in (["keep=60"], ["keep=0"], ["keep=most"]):
        assert main([*words, "out=never", *words_of_keep]) == 2
        error = capsys.readouterr().err
        assert "the share of a map to keep must be above 0 and at most 1, such as 0.6, not" in error
        assert len(error.splitlines()) == 1
    assert not Path("never").exists()


def test_matrices_of_a_resmlp_need_no_image(tmp_path: Path, photos: Path) -> None:
    vitrail.save_model(plant("resmlp_s12", size=(32, 32)), tmp_path / "model")
    assert main(["explain", "model", "kind=mixing", "out=seen"]) == 0
    assert Path("seen/mixing.png").is_file()
    assert main(["explain", "model", "kind=mixing", "out=seen", "keep=0.6"]) == 2
    assert main(["explain", "model", "photos", "out=seen"]) == 0


def test_an_image_that_can_not_be_read_is_named_and_the_others_are_drawn(
    run: RunFolder, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (photos / "broken.png").write_bytes(b"no image")
    assert main(["explain", str(run.path), "photos", "out=seen", "kind=attention"]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("vitrail: photos/broken.png: ")
    assert captured.out.startswith("2 pictures of attention")
    assert main(["explain", str(run.path), "photos/broken.png", "out=seen"]) == 2


def test_scores_stand_beside_those_of_the_floors(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["explain", "--score", str(run.path), "limit=3", "steps=2"]
    assert main([*words, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["count"] == 3
    assert list(report["scores"]) == ["attention", "rollout", "gradient", "random", "centre"]
    for measures in report["scores"].values():
        assert set(measures) == {"deletion", "insertion", "pointing", "energy", "mask"}
        assert all(0 <= value <= 1 for value in measures.values())
    assert main([*words, "kind=attention"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["attention", "random", "centre"]
    assert lines[-1].startswith("The masks cover")


def test_a_model_that_looks_at_the_object_beats_the_floors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bright patches on dark images, off the centre, with masks of their place."""
    monkeypatch.chdir(tmp_path)
    size = (32, 32)
    model = plant("deit_tiny", size=size)
    model.preprocessing = type(model.preprocessing)(crop_ratio=1.0, mean=(0.0,) * 3, std=(1.0,) * 3)
    vitrail.save_model(model, tmp_path / "model")
    for number in range(10):
        pixels, label = np.zeros((32, 32, 3), dtype=np.uint8), f"class{number % 5}"
        column = 24 * (number % 2)
        pixels[:8, column : column + 8] = 255
        for folder, image in ((f"data/{label}", pixels), ("masks", (pixels[..., 0] > 0).astype(np.uint8))):
            Path(folder).mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(Path(folder) / f"image{number}.png")
    words = ["data=data", "split=train", "masks=masks", "steps=4", "--json"]
    assert main(["explain", "--score", "model", *words]) == 0
    scores = json.loads(capsys.readouterr().out)["scores"]
    for kind in ("attention", "gradient"):
        assert scores[kind]["pointing"] == 1.0
        assert scores[kind]["energy"] > 0.5
        for floor in ("random", "centre"):
            assert scores[kind]["energy"] > scores[floor]["energy"]


def test_errors_are_one_line(run: RunFolder, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = str(run.path)
    for words, message in (
        (["photos"], "add out=DIR"),
        (["out=seen"], "give images or folders of them"),
        (["photos", "out=seen", "kid=attention"], "unknown key 'kid'; did you mean 'kind'?"),
        (["photos", "out=seen", "kind=mixing"], "has no mixing maps; it has: attention, rollout, gradient"),
        (["photos", "out=seen", "layer=2"], "layer 2 is not one of the layers 0 to 1"),
        (["photos", "out=seen", "head=5"], "head 5 is not one of the heads 0 to 1"),
        (["photos", "out=seen", "class=24"], "class 24 is not one of the classes 0 to 23"),
        (["photos", "out=seen", "class=plain circl"], "did you mean 'plain circle'?"),
        (["photos", "out=seen", "kind=attention", "class=1"], "the same for every class"),
        (["photos", "out=seen", "kind=[attention, rollout]", "class=1"], "the same for every class"),
        (["photos", "out=seen", "kind=[rollout, gradient]", "head=1"], "rollout maps have no heads"),
        (["--score", "--window"], "--window draws and --score measures"),
        (["--score", "photos"], "--score takes data=SPEC and no images"),
        (["--score", "limit=0"], "limit must be a whole number of at least 1"),
        (["--score", "masks=gone", "limit=1"], "masks=gone: no such folder"),
    ):
        assert main(["explain", source, *words]) == 2
        captured = capsys.readouterr()
        assert captured.err.count("\n") == 1
        assert message in captured.err
    assert torch.is_grad_enabled()
