"""What `vitrail check` finds in masks and annotations of objects, and that its page draws it."""

import base64
import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from dense_folders import HEIGHT, WIDTH, box_row, make_mask, voc_xml, write_coco, write_image, write_mask
from PIL import Image

from vitrail.cli import main
from vitrail.data.datasets import open_source
from vitrail.data.dense.dense_sources import DenseOpening
from vitrail.data.dense.opening import DETECTION_KINDS, SEGMENTATION_KINDS, guess_marks, open_detection_source
from vitrail.data.doctor.checking import check_data
from vitrail.data.doctor.findings import Findings, Place, Severity
from vitrail.data.doctor.marked_thumbnails import make_thumbnails
from vitrail.data.sources.names import MARKED_KINDS

SIZE = (72, 96)


def problems(findings: Findings) -> dict[str, int]:
    return {finding.problem: finding.count for finding in findings.findings}


@pytest.fixture(scope="module")
def faulty_masks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four masks that are wrong in four ways, an image without a mask, a mask without an image, a leak."""
    root = tmp_path_factory.mktemp("masks")
    for number in range(8):
        split = "train" if number < 6 else "val"
        write_image(root / split / f"images/{number}.jpg", seed=number, size=SIZE)
        write_mask(root / split / f"masks/{number}.png", make_mask(2, size=SIZE))
    masks = root / "train/masks"
    write_mask(masks / "0.png", make_mask(2, size=(36, 96)))
    write_mask(masks / "1.png", make_mask(9, size=SIZE))
    write_mask(masks / "2.png", np.full(SIZE, 255, dtype=np.uint8))
    (masks / "3.png").write_bytes(b"not an image")
    (masks / "4.png").rename(masks / "other.png")
    (root / "val/images/7.jpg").write_bytes((root / "train/images/5.jpg").read_bytes())
    (root / "classes.txt").write_text("sky\nroad\n")
    return root


def test_faults_of_masks(faulty_masks: Path, tmp_path: Path) -> None:
    findings = check_data(faulty_masks, out=tmp_path)
    expected = ("broken mask", "mask of another size", "values that are no class", "image without mask", "leakage")
    found = problems(findings)
    assert {name: found[name] for name in expected} == dict.fromkeys(expected, 1)
    assert {finding.problem for finding in findings.findings if finding.severity is Severity.MUST_BE_FIXED} == set(
        expected
    )
    assert (found["empty mask"], found["mask without image"]) == (1, 1)
    assert findings.classes == ("sky", "road")
    assert findings.splits[1].class_counts == (2, 2)
    with (tmp_path / "quarantine.csv").open(newline="") as file:
        listed = {row["path"]: row["problem"] for row in csv.DictReader(file)}
    assert listed == {
        "train/images/0.jpg": "mask of another size",
        "train/images/1.jpg": "values that are no class",
        "train/images/3.jpg": "broken mask",
        "train/images/5.jpg": "leakage",
    }
    told = json.loads((tmp_path / "findings.json").read_text())
    details = [case["detail"] for finding in told["findings"] for case in finding["cases"]]
    assert "mask of 96 x 36" in details
    assert any("2, 3, 4, 5, 6 and 2 more, which are no class" in detail for detail in details)
    page = (tmp_path / "report.html").read_text()
    assert len(re.findall("data:image/jpeg", page)) >= 6


def test_masks_without_a_labelled_pixel_must_be_fixed(tmp_path: Path) -> None:
    for number, split in enumerate(("train", "train", "val")):
        write_image(tmp_path / split / f"images/{number}.jpg", seed=number)
        write_mask(
            tmp_path / split / f"masks/{number}.png", np.full((HEIGHT, WIDTH), 255 * (split == "train"), "uint8")
        )
    (tmp_path / "classes.txt").write_text("sky\nroad\n")
    [finding] = [one for one in check_data(tmp_path).findings if one.problem == "no labelled pixels"]
    assert (finding.severity, [case.places[0].path for case in finding.cases]) == (Severity.MUST_BE_FIXED, ["train"])


@pytest.mark.parametrize("spec", ["pairs:{}", "{}"])
@pytest.mark.parametrize("is_jpeg", [True, False])
def test_masks_that_are_all_missing_are_listed(
    spec: str, is_jpeg: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):
        write_image(tmp_path / f"data/images/{number}.jpg", seed=number)
        if is_jpeg:
            write_image(tmp_path / f"data/masks/{number}.jpg")
    (tmp_path / "data/masks").mkdir(exist_ok=True)
    (tmp_path / "data/classes.txt").write_text("sky\nroad\n")
    words = [spec.format(tmp_path / "data"), "--workers", "0", "--out", str(tmp_path / "out"), "--json"]
    assert main(["check", *words]) == 1
    found = {row["problem"]: row for row in json.loads(capsys.readouterr().out)["findings"]}
    details = [case["detail"] for case in found["image without mask"]["cases"]]
    assert len(details) == 3
    assert all(("is no PNG" if is_jpeg else "no mask of its name") in detail for detail in details)


def test_reports_are_named_after_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("ships", "cars"):
        write_image(tmp_path / name / "train/1.jpg")
        write_coco(tmp_path / name / "annotations/train.json", ["1.jpg"], [box_row(1, 3, (1, 1, 4, 4))])
        main(["check", f"coco:{name}", "--workers", "0"])
        assert (tmp_path / f"check-{name}/report.html").is_file()
    assert main(["check", "coco:cars", "--out", "cars/report"]) == 2


def test_faults_of_objects(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"{number}.jpg" for number in range(1, 6)]
    for split in ("train", "val"):
        for number, name in enumerate(names):
            write_image(tmp_path / f"data/{split}/{name}", seed=number + 10 * (split == "val"))
    rows = [
        box_row(1, 3, (2, 2, 30, 4)),
        box_row(1, 3, (2, 2, 4, 0)),
        box_row(2, 3, (1, 1, 4, 4), segmentation=[[1, 1, 1, 1, 1, 1]]),
        box_row(2, 99, (1, 1, 4, 4)),
        box_row(3, 3, (1, 1, 4, 4)),
        box_row(3, 3, (8, 8, -4, 4)),
        box_row(77, 3, (1, 1, 4, 4)),
        box_row(4, 3, (1, 1, 4, 4)),
    ]
    write_coco(tmp_path / "data/annotations/train.json", names, rows)
    write_coco(tmp_path / "data/annotations/val.json", names, [box_row(1, 7, (1, 1, 4, 4))])
    write_image(tmp_path / "data/train/3.jpg", seed=30, size=(9, 9))
    (tmp_path / "data/train/4.jpg").unlink()
    assert main(["check", f"{tmp_path}/data", "--workers", "0", "--out", str(tmp_path / "out")]) == 1
    found = {
        row["problem"]: row["count"] for row in json.loads((tmp_path / "out/findings.json").read_text())["findings"]
    }
    expected = (
        "unreadable file",
        "another size than annotated",
        "unknown category",
        "unknown image",
        "faulty annotation",
    )
    assert {name: found.get(name) for name in expected} == dict.fromkeys(expected, 1)
    assert {name: found[name] for name in ("box outside", "box without area", "empty mask")} == {
        "box outside": 1,
        "box without area": 1,
        "empty mask": 2,  # that of the box without area too
    }
    assert found["nothing marked"] == 5  # the last image of train, and four of val
    assert found["class not marked"] == 1
    assert "5 images" in capsys.readouterr().out


def test_sound_data_has_no_faults(tmp_path: Path) -> None:
    for number in range(20):
        write_image(tmp_path / f"{number}.jpg", seed=number)
        (tmp_path / f"{number}.xml").write_text(voc_xml([("wheel", (2, 2, 5, 5))]))
    findings = check_data(tmp_path, labels="boxes")
    assert findings.is_fit
    assert findings.splits[0].class_counts == (18,)
    assert check_data("shapes:size=48,count=6,val=2", labels="masks").is_fit
    assert check_data("shapes:size=48,count=6,val=2", labels="boxes").is_fit


def test_data_with_masks_is_no_data_with_classes() -> None:
    assert {*SEGMENTATION_KINDS, *DETECTION_KINDS} == {*MARKED_KINDS, "shapes"}
    for spec in ("camvid:somewhere", "coco:/some/where", "voc"):
        with pytest.raises(ValueError, match="has masks or boxes, not labels of whole images"):
            open_source(spec)


def test_what_data_has_is_guessed(tmp_path: Path) -> None:
    assert guess_marks("camvid:anywhere") == "masks"
    assert guess_marks("coco:anywhere") == "boxes"
    assert guess_marks("shapes") == guess_marks("cifar100:/data") == guess_marks(str(tmp_path)) == "classes"
    with pytest.raises(ValueError, match="--labels masks or --labels boxes"):
        guess_marks("voc:anywhere")
    write_image(tmp_path / "images/a.jpg")
    (tmp_path / "labels").mkdir()
    assert guess_marks(str(tmp_path)) == "classes"
    (tmp_path / "labels/a.txt").touch()
    assert guess_marks(str(tmp_path)) == "boxes"
    (tmp_path / "labels/a.txt").rename(tmp_path / "data.yaml")
    assert guess_marks(str(tmp_path)) == "boxes"
    write_mask(tmp_path / "labels/a.png", make_mask(2, size=(HEIGHT, WIDTH)))
    assert guess_marks(str(tmp_path)) == "masks"


@pytest.mark.parametrize(("num_marked", "problem"), [(0, "no objects"), (1, "hardly any objects"), (2, None)])
def test_images_without_objects_must_be_fixed(tmp_path: Path, num_marked: int, problem: str | None) -> None:
    for number in range(30):
        write_image(tmp_path / f"images/train/{number:02d}.jpg", seed=number)
    write_image(tmp_path / "images/val/0.jpg", seed=99)
    (tmp_path / "labels/train").mkdir(parents=True)
    (tmp_path / "labels/val").mkdir()
    for name in ("val/0", *(f"train/{number:02d}" for number in range(num_marked))):
        (tmp_path / f"labels/{name}.txt").write_text("0 0.5 0.5 0.2 0.2\n")
    (tmp_path / "data.yaml").write_text("names: [cat]\n")
    findings = check_data(tmp_path)
    must = [finding.problem for finding in findings.findings if finding.severity is Severity.MUST_BE_FIXED]
    assert must == ([] if problem is None else [problem])


@pytest.mark.parametrize("is_outlined", [True, False])
def test_corners_in_the_place_of_width_and_height_must_be_fixed(tmp_path: Path, is_outlined: bool) -> None:
    names = [f"{number}.jpg" for number in range(6)]
    rows = []
    for number, name in enumerate(names, start=1):
        for split in ("train", "val"):
            write_image(tmp_path / split / name, seed=number + 50 * (split == "val"))
        row = box_row(number, 3, (6 + number % 3, 5, 4, 5))
        x, y, width, height = row["bbox"]
        rows.append(row | {"bbox": [x, y, x + width, y + height]} | ({} if is_outlined else {"segmentation": []}))
    write_coco(tmp_path / "annotations/val.json", names, [box_row(1, 3, (6, 5, 4, 5)), box_row(2, 3, (1, 1, 9, 9))])
    write_coco(tmp_path / "annotations/train.json", names, rows)
    findings = check_data(tmp_path, out=tmp_path.with_suffix(".out"))
    must = {one.problem: one for one in findings.findings if one.severity is Severity.MUST_BE_FIXED}
    [case] = must["boxes look like corners"].cases
    assert case.places[0].path == "train"
    assert ("6 of 6 outlines" if is_outlined else "6 of 6 boxes leave their image") in case.detail
    assert problems(findings).get("box beside its outline") == (6 if is_outlined else None)


def test_boxes_in_the_corner_of_large_images_are_no_corners(tmp_path: Path) -> None:
    for split in ("train", "val"):
        write_image(tmp_path / f"{split}/a.jpg", seed=len(split))
        write_coco(tmp_path / f"annotations/{split}.json", ["a.jpg"], [box_row(1, 3, (1, 2, 6, 7))])
    assert check_data(tmp_path).is_fit


@pytest.mark.parametrize("box", [(-4, -3, 12, 9), (-40, -30, 12, 9), (40, 2, 300, 9), (10, 9, -6, -5)])
def test_boxes_outside_and_inside_out_are_drawn(tmp_path: Path, box: tuple[int, int, int, int]) -> None:
    """In magenta, clipped to a margin around the image."""
    for name in ("a.jpg", "b.jpg"):
        write_image(tmp_path / "train" / name, size=(48, 64))
    rows = [{**box_row(number, 3, own), "segmentation": []} for number, own in ((1, box), (2, (2, 2, 9, 9)))]
    write_coco(tmp_path / "annotations/train.json", ["a.jpg", "b.jpg"], rows)
    source = open_detection_source(f"coco:{tmp_path}", DenseOpening(val_share=0.0, faults="noted"))
    found = []
    for index in range(2):
        address = make_thumbnails(source, limit=9).show(Place("", "train", index=index))
        assert address is not None
        picture = Image.open(io.BytesIO(base64.b64decode(address.partition("base64,")[2])))
        red, green, blue = np.asarray(picture.convert("RGB"), dtype=int).transpose(2, 0, 1)
        found.append(int(((red > 190) & (green < 60) & (blue > 80) & (blue < 170)).sum()))
    assert found[0] > 20 > found[1]
