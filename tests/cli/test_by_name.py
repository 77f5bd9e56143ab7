"""Every verb that takes a model takes a published one by its name, from a cache of the hub that the test makes."""

import json
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from shrunk import randomize

import vitrail
from vitrail.cli import main
from vitrail.inference.passes import keep_source
from vitrail.settings.text import read_recipe
from vitrail.weights.pack import read_pack

IDS = ("n01440764", "n01443537", "n02012849")  # tench, goldfish, a crane
TRAIN = ("epochs=1", "batch_size=4", "image_size=32", "data.workers=0")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache with DeiT-Ti in it, and a few images of three of ImageNet's classes."""
    root = tmp_path_factory.mktemp("by_name")
    files = root / "hub" / "models--timm--deit_tiny_patch16_224.fb_in1k"
    (files / "snapshots" / "0").mkdir(parents=True)
    (files / "refs").mkdir()
    (files / "refs" / "main").write_text("0")
    state = vitrail.to_timm(randomize(vitrail.create_model("deit_tiny")))
    save_file({name: value.contiguous() for name, value in state.items()}, files / "snapshots/0/model.safetensors")
    draw = np.random.default_rng(0)
    for split, count in (("train", 4), ("val", 2)):
        for name in IDS:
            (root / "data" / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = draw.integers(0, 255, (40, 36, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / "data" / split / name / f"{number}.png")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(root / "hub"))
        patch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        patch.chdir(root)
        yield root


def run(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return captured.out


def test_predict_says_words(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = json.loads(run(capsys, "predict", "deit_tiny", "data/val/n01440764/0.png", "--json"))
    assert {found["class"] for found in answer["answers"]} <= set(vitrail.load_trained("deit_tiny").class_names)


def test_evaluate_matches_classes_by_their_ids(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(run(capsys, "evaluate", "deit_tiny", "data=data", "image_size=32", "--json"))
    assert found["count"] == 6
    words = [row["class"] for row in found["classes"] if row["top1"] is not None]
    assert words == ["tench", "goldfish", "crane (n02012849)"]


def test_a_folder_without_val_is_measured_whole(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("deit_tiny", "data=data/train", "image_size=32", "--json")
    assert json.loads(run(capsys, "evaluate", *words))["count"] == 12
    assert json.loads(run(capsys, "evaluate", *words, "split=val"))["count"] == 3


def test_compare_with_a_file_of_weights(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = next((place / "hub").rglob("model.safetensors"))
    words = ("deit_tiny", "deit_tiny", f"init={file}", "data=data", "image_size=32")
    found = json.loads(run(capsys, "evaluate", "--compare", *words, "--json"))
    assert [row.get("model") for row in found["rows"]] == [None, "deit_tiny", f"deit_tiny init={file}"]
    assert found["disagreement"][1][2] == 0


def test_looking_at_a_model_by_name(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "explain", "deit_tiny", "data/val/n01440764/0.png", "out=maps", "image_size=32", "kind=attention")
    assert (place / "maps" / "index.html").is_file()
    run(capsys, "inspect", "deit_tiny", "data=data", "image_size=32", "out=inside")
    assert (place / "inside" / "report.html").is_file()


def test_searching_with_a_model_by_name(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "gallery", "build", "deit_tiny", "data=data", "out=gallery", "image_size=32")
    found = json.loads(run(capsys, "gallery", "search", "gallery", "data/val/n01440764/0.png", "--json"))
    assert found
    measured = json.loads(run(capsys, "retrieve", "deit_tiny", "data=data", "image_size=32", "--json"))
    assert measured["runs"][0]["run"] == "deit_tiny"
    probed = json.loads(run(capsys, "probe", "deit_tiny", "data=data", "image_size=32", "method=ridge", "--json"))
    assert probed["dim"] == 192


def test_training_from_published_weights_and_their_pack(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = ("model=deit_tiny", "init=pretrained", "train_only=attention", "data=data", *TRAIN)
    run(capsys, "train", "fine_tune", *start, "out=tuned")
    published, tuned = vitrail.create_model("deit_tiny", pretrained=True), vitrail.load_trained("tuned").model
    assert tuned.config.num_classes == 3
    assert torch.equal(tuned.state_dict()["norm.weight"], published.state_dict()["norm.weight"])
    assert read_recipe(place / "tuned" / "recipe.yaml").model.init == "pretrained"
    run(capsys, "pack", "tuned")
    assert read_pack(place / "tuned" / "pack").trunk == "deit_tiny"
    run(capsys, "predict", "tuned/pack", "data/val/n01440764/0.png")


def test_fine_tuning_a_model_of_timm_starts_from_its_weights(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("model=timm/deit_tiny_patch16_224", "train_only=attention", "data=data", *TRAIN, "epochs=3")
    run(capsys, "train", "fine_tune", *words, "out=timms")
    published, tuned = vitrail.create_model("deit_tiny", pretrained=True), vitrail.load_trained("timms").model
    assert torch.equal(tuned.state_dict()["backbone.norm.weight"], published.state_dict()["norm.weight"])
    assert "the head starts from a probe of 12 training images" in (place / "timms" / "log.txt").read_text()


def test_a_teacher_by_name_knows_the_students_classes(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    student = ("model=deit_tiny", "model.settings={depth: 1}", "teacher=deit_tiny", "teacher.image_size=32")
    run(capsys, "train", "small_photos_scratch", *student, "data=data", *TRAIN, "out=student")
    assert (place / "student" / "model" / "model.safetensors").is_file()


def test_a_source_is_kept_so_that_it_can_be_used_from_any_folder(place: Path) -> None:
    for name in ("deit_tiny", "deit_tiny init=random", "hf://owner/name", "deit_tiny init=hf://owner/name"):
        assert keep_source(name) == name
    assert keep_source("deit_tiny@224 init=a.pth") == f"deit_tiny@224 init={place / 'a.pth'}"
    assert keep_source("runs/photos") == str(place / "runs" / "photos")


def test_weights_of_a_file_that_do_not_fit_a_model_of_timm_are_named(place: Path) -> None:
    file = next((place / "hub").rglob("model.safetensors"))
    with pytest.raises(
        ValueError, match=r"^[^ ]*model\.safetensors: the weights \(timm names\) do not fit timm/resnet18"
    ):
        vitrail.load_trained(f"timm/resnet18 init={file}")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("predict", "deit_tiny@384", "x.png"), "of deit_tiny are published: deit_tiny@224,in1k"),
        (("evaluate", "init=file", "data=data"), "init=file belongs behind the name of a model"),
        (("evaluate", "data", "init=file", "data=data"), "no such run or model"),
        (("train", "fine_tune", "model=deit_tiny", "init=pretrained@384", "data=data", "out=never"), "no weights like"),
        (("train", "fine_tune", "model=vit_s12x2", "init=pretrained", "data=data", "out=never"), "has no published"),
        (("train", "fine_tune", "model=timm/test_resnet.never", "data=data", "out=never"), "timm has no weights"),
        (("train", "fine_tune", "model=timm/resnet18", "data=data", "out=never"), "can't be downloaded"),
        (("train", "fine_tune", "model=timm/vit_base_patch32_plus_256", "data=data", "out=never"), "no published"),
        (("train", "transfer_cifar100", "data=data", "out=never"), "init=runs/cait_s36: there is no such run"),
        (("train", "fine_tune", "model=deit_tiny@384", "data=data", "out=never"), "init=pretrained@384"),
    ],
)
def test_mistakes_are_one_line(
    place: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    assert main(list(words)) == 2
    error = capsys.readouterr().err.strip()
    assert message in error.splitlines()[-1]
