"""`vitrail check`: exit codes, the table, the JSON, the files, and that training accepts what it writes."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.cli import check as verb
from vitrail.cli import main
from vitrail.data.datasets import open_dataset


def draw(seed: int, path: Path) -> None:
    """Soft random blobs: as different from one another as photographs are."""
    noise = np.random.RandomState(seed).randint(0, 256, (6, 8, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(noise).resize((96, 72), Image.Resampling.BICUBIC).save(path)


@pytest.fixture
def pets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sound folder of two classes in two splits; the working folder is beside it."""
    monkeypatch.chdir(tmp_path)
    for seed in range(24):
        split, name = ("train", "val")[seed % 4 == 3], ("cat", "beagle")[seed % 2]
        draw(seed, tmp_path / "pets" / split / name / f"{seed}.png")
    for split, name in (("train", "beagle"), ("val", "cat")):  # at least five of each, in every split
        for seed in range(5):
            draw(100 + seed + 10 * len(split), tmp_path / "pets" / split / name / f"more{seed}.png")
    return tmp_path / "pets"


def damage(pets: Path) -> None:
    """Everything that is asked for: cut off, copied, misspelt, hidden, far too large, not an image."""
    cut = pets / "train" / "cat" / "0.png"
    cut.write_bytes(cut.read_bytes()[:-200])
    (pets / "val" / "cat" / "copy.png").write_bytes((pets / "train" / "cat" / "2.png").read_bytes())
    (pets / "val" / "beagle").rename(pets / "val" / "beagel")
    draw(3, pets / "train" / ".ipynb_checkpoints" / "2.png")
    Image.new("1", (20_000, 20_000)).save(pets / "train" / "beagle" / "huge.png")
    (pets / "train" / "beagle" / "text.jpg").write_text("I am not an image", encoding="utf-8")


def run_check(*argv: str) -> int:
    return main(["check", *argv, "--workers", "0"])


def test_sound_data_gives_code_0_and_a_report(pets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_check("pets") == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == "pets: 34 images, 2 classes"
    assert out.endswith("nothing must be fixed; report in check-pets/report.html\n")
    assert err == ""
    assert {path.name for path in Path("check-pets").iterdir()} == {"report.html", "quarantine.csv", "findings.json"}


def test_all_damage_is_found_in_one_run(pets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(pets)
    assert run_check("pets", "--out", "reports/pets") == 1
    out = capsys.readouterr().out
    rows = {line[:20].strip(): line for line in out.splitlines()}
    assert "must be fixed  2 files" in rows["broken file"]
    assert "must be fixed  1 file " in rows["decompression bomb"]
    assert "train/beagle/huge.png" in rows["decompression bomb"]
    assert "must be fixed  2 classes" in rows["class missing"]
    assert "misspelt" in rows["class missing"]
    assert "train/cat/2.png and val/cat/copy.png" in rows["leakage"]
    assert "train/.ipynb_checkpoints" in rows["hidden folder"]
    assert "\x1b" not in out
    assert out.splitlines()[-1].startswith("4 problems must be fixed; ")
    assert out.endswith("report in reports/pets/report.html\n")


def test_training_accepts_the_quarantine(pets: Path) -> None:
    damage(pets)
    run_check("pets")
    everything = open_dataset("pets", "train")
    kept = open_dataset("pets", "train", exclude=Path("check-pets/quarantine.csv"))
    names = [{Path(data.locate(index)).name for index in range(len(data))} for data in (everything, kept)]
    assert names[0] - names[1] == {"0.png", "2.png", "huge.png", "text.jpg"}
    assert len(open_dataset("pets", "val")) == len(
        open_dataset("pets", "val", exclude=Path("check-pets/quarantine.csv"))
    )


def test_json_holds_every_case(pets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(pets)
    assert run_check("pets", "--json") == 1
    printed = capsys.readouterr().out
    record = json.loads(printed)
    broken = next(finding for finding in record["findings"] if finding["problem"] == "broken file")
    assert [Path(case["places"][0]["path"]) for case in broken["cases"]] == [
        pets / "train" / "beagle" / "text.jpg",
        pets / "train" / "cat" / "0.png",
    ]
    assert json.loads(Path("check-pets/findings.json").read_text(encoding="utf-8")) == record


def test_a_table_on_a_terminal_is_at_most_80_columns_wide(
    pets: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    damage(pets)
    for name, value in (("FORCE_COLOR", "1"), ("COLUMNS", "80"), ("TERM", "dumb"), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value)
    assert run_check("pets") == 1
    lines = capsys.readouterr().out.splitlines()
    assert "misspelt" in " ".join(" ".join(lines).split())
    assert max(map(len, lines)) <= 80


def test_names_that_would_steer_the_terminal_are_shown_as_escapes(
    pets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (pets / "train" / "cat" / "\x1b[31m\nred.jpg").write_text("no image", encoding="utf-8")
    assert run_check("pets") == 1
    assert "train/cat/\\x1b[31m\\nred.jpg" in capsys.readouterr().out


def test_without_val_the_automatic_split_is_checked(pets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_check("pets/train", "--val-share", "0.25") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0].strip() for line in lines[1:3]] == ["train", "val"]


def test_data_without_train_gives_code_1(pets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(pets / "train")
    assert run_check("pets") == 1
    assert "split missing" in capsys.readouterr().out


def test_a_manifest_whose_splits_are_numbers_gives_code_1(pets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"{path},{path.parent.name},{int('val' in path.parts)}\n" for path in sorted(pets.rglob("*.png"))]
    Path("list.csv").write_text("path,label,split\n" + "".join(lines), encoding="utf-8")
    assert run_check("list.csv") == 1
    assert "train: not there; the splits are: 0 and 1" in capsys.readouterr().out


def test_every_faulty_line_of_a_manifest_is_a_case(pets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = sorted(pets.rglob("*.png"))
    lines = [f"{path.relative_to(pets.parent)},{path.parent.name},{path.parent.parent.name}" for path in images]
    Path("list.csv").write_text("\n".join(["path,label,split", *lines, "a.png,cat", "b.png,,val", ",cat,val"]))
    assert run_check("list.csv", "--json") == 1
    record = json.loads(capsys.readouterr().out)
    (faults,) = [finding for finding in record["findings"] if finding["problem"] == "faulty line"]
    assert (faults["severity"], faults["count"]) == ("must be fixed", 3)
    assert [case["detail"] for case in faults["cases"]] == [
        "2 cells, but the header names 3 columns",
        "no label given",
        "no path given",
    ]
    with pytest.raises(ValueError, match="it is the first of 3 faulty lines"):
        open_dataset("list.csv")


def test_the_report_never_lands_inside_the_data(
    pets: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_check("pets", "--out", "pets/report") == 2
    assert "inside the data" in capsys.readouterr().err
    monkeypatch.chdir(pets)
    assert run_check(".") == 0
    assert (pets.parent / "check-pets" / "report.html").exists()
    assert {path.name for path in pets.iterdir()} == {"train", "val"}


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["nowhere"], "no folder or file 'nowhere'"),
        (["pets", "--workers", "many"], "a number of processes, 0 or more, not 'many'"),
        (["pets", "--workers", "-1"], "--workers"),
        (["pets", "--val-share", "0"], "a share between 0 and 1, such as 0.1, not '0'"),
        (["pets", "--val-share", "1.0"], "not '1.0'"),
        (["pets", "--val-share", "nan"], "not 'nan'"),
        (["pets", "--val-share", "much"], "not 'much'"),
        (["pets", "--seed", "3"], "--seed"),
        (["pets", "--out", "taken"], "cannot make the folder taken"),
        ([], "DATA"),
    ],
)
@pytest.mark.usefixtures("pets")
def test_wrong_usage_is_one_line_and_code_2(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "taken").write_text("a file", encoding="utf-8")
    assert main(["check", *argv]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.usefixtures("pets")
def test_without_a_terminal_progress_is_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb, "_SECONDS_BETWEEN_LINES", 0)
    run_check("pets")
    assert capsys.readouterr().err.splitlines()[-1].startswith("checked 34 of 34 images, ")


@pytest.fixture
def flat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Photos in one folder, without classes."""
    monkeypatch.chdir(tmp_path)
    for seed in range(8):
        draw(seed, tmp_path / "photos" / f"{seed}.png")
    return tmp_path / "photos"


def test_a_folder_without_classes_is_what_a_pre_training_takes(flat: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_check("photos") == 0
    out = capsys.readouterr().out.splitlines()
    assert out[:2] == ["photos: 8 images, without labels", "  train: 8 images, median 96 x 72"]
    [row] = [line for line in out if line.startswith("no labels")]
    assert "good to know" in row
    page = Path("check-photos/report.html").read_text(encoding="utf-8")
    assert "vitrail pretrain learns from such images" in page
    assert "Images per class" not in page


def test_files_of_a_folder_without_classes_are_examined(flat: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Copies are duplicates, wherever a pre-training would put them: no accuracy is measured on them."""
    for seed in range(4):
        shutil.copy(flat / f"{seed}.png", flat / f"copy{seed}.png")
    (flat / "cut.png").write_bytes((flat / "5.png").read_bytes()[:-200])
    (flat / "notes.txt").write_text("not an image", encoding="utf-8")
    assert run_check("photos") == 1
    rows = {line.partition("  ")[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "must be fixed  1 file" in rows["broken file"]
    assert "worth a look   4 pictures" in rows["duplicate"]
    assert "notes.txt" in rows["other files"]
    kept = [
        open_dataset("photos", split, labels="optional", exclude="check-photos/quarantine.csv")
        for split in ("train", "val")
    ]
    assert sum(map(len, kept)) == 12  # all but the broken one, on whichever side it is


def test_labels_none_makes_folders_mean_nothing(pets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_check("pets", "--labels", "none") == 0
    assert capsys.readouterr().out.splitlines()[0] == "pets: 34 images, without labels"


def test_classes_that_are_asked_for_must_be_there(flat: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_check("photos", "--labels", "classes") == 2
    assert "found 8 images but no class folders in photos" in capsys.readouterr().err


def test_one_image_is_not_enough_to_learn_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw(0, tmp_path / "one" / "0.png")
    assert run_check(str(tmp_path / "one"), "--out", str(tmp_path / "report")) == 1
    assert "single image" in capsys.readouterr().out
