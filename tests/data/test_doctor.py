"""The data doctor: what it finds in broken, mislabelled, repeated and odd data, and that it never fails itself."""

import csv
import json
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from vitrail.data.contract import Dataset, Level, Note
from vitrail.data.doctor import check
from vitrail.data.doctor.files import write_files
from vitrail.data.doctor.findings import Finding, Findings, Severity
from vitrail.data.stored import ArrayDataset, FileDataset, OpenedSource

MUST, LOOK, KNOW = Severity.MUST_BE_FIXED, Severity.WORTH_A_LOOK, Severity.GOOD_TO_KNOW


def scene(seed: int, *, width: int = 96, height: int = 72) -> Image.Image:
    """Soft random blobs: as different from one another as photographs are."""
    noise = np.random.RandomState(seed).randint(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC)


def jpeg(image: Image.Image, *, quality: int = 90, exif: Image.Exif | None = None) -> bytes:
    file = BytesIO()
    image.save(file, "JPEG", quality=quality, exif=exif or Image.Exif())
    return file.getvalue()


def png(image: Image.Image, *, comment: str = "") -> bytes:
    file = BytesIO()
    notes = PngImagePlugin.PngInfo()
    notes.add_text("comment", comment)
    image.save(file, "PNG", pnginfo=notes)
    return file.getvalue()


class Listed(Dataset):
    """Samples in a list: name, content (or the error of reading it) and class number."""

    def __init__(
        self,
        samples: Sequence[tuple[str, bytes | np.ndarray | Exception, int]],
        *,
        split: str = "train",
        classes: tuple[str, ...] = ("cat", "dog"),
    ) -> None:
        self.name, self.split, self.samples = "listed", split, samples
        labels = np.array([label for _, _, label in samples], dtype=np.int64)
        self.levels: Mapping[str, Level] = {"class": Level(classes=classes, labels=labels)}

    def read(self, index: int) -> bytes | np.ndarray:
        content = self.samples[index][1]
        if isinstance(content, Exception):
            raise content
        return content

    def locate(self, index: int) -> str:
        return f"{self.split}/{self.samples[index][0]}"


def sound_samples(count: int = 12, *, start: int = 1000) -> list[tuple[str, bytes | np.ndarray | Exception, int]]:
    """Samples that nothing is wrong with."""
    return [(f"sound{seed}.jpg", jpeg(scene(seed)), seed % 2) for seed in range(start, start + count)]


def check_train(*samples: tuple[str, bytes | np.ndarray | Exception, int]) -> Findings:
    """What is found in those samples among sound ones."""
    return check(OpenedSource([Listed([*sound_samples(), *samples])]))


def find(findings: Findings, problem: str) -> Finding:
    found = [finding for finding in findings.findings if finding.problem == problem]
    assert len(found) == 1, f"{problem} not in {[finding.problem for finding in findings.findings]}"
    return found[0]


def problems(findings: Findings) -> list[str]:
    return [finding.problem for finding in findings.findings]


def paths(finding: Finding) -> list[list[str]]:
    return [[place.path for place in case.places] for case in finding.cases]


def test_sound_data_has_no_findings() -> None:
    val = Listed(sound_samples(start=2000), split="val")
    findings = check(OpenedSource([Listed(sound_samples()), val]))
    assert findings.findings == ()
    assert findings.is_fit
    assert findings.verdict == "nothing must be fixed"
    assert [(split.split, split.num_images, split.class_counts) for split in findings.splits] == [
        ("train", 12, (6, 6)),
        ("val", 12, (6, 6)),
    ]
    assert findings.splits[0].median_size == "96 x 72"


# Files


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "broken file"),
        (b"I am a text", "broken file"),
        (jpeg(scene(1))[:900], "broken file"),
        (png(scene(1))[:-100], "broken file"),
        (PermissionError(13, "Permission denied"), "unreadable file"),
        (FileNotFoundError(2, "No such file or directory"), "unreadable file"),
        (KeyError("a bug of the source"), "unreadable file"),
        (np.zeros((4, 4), np.float32), "broken file"),
    ],
)
def test_a_sample_that_cannot_be_read_must_be_fixed_and_is_quarantined(
    content: bytes | np.ndarray | Exception, problem: str
) -> None:
    findings = check_train(("bad.jpg", content, 0))
    finding = find(findings, problem)
    assert (finding.severity, finding.count, paths(finding)) == (MUST, 1, [["train/bad.jpg"]])
    assert finding.cases[0].detail
    assert [(row.path, row.split, row.problem) for row in findings.quarantined] == [("train/bad.jpg", "train", problem)]
    assert not findings.is_fit


def test_a_decompression_bomb_is_named_as_such() -> None:
    findings = check_train(("bomb.png", png(Image.new("1", (20_000, 20_000))), 0))
    assert problems(findings) == ["decompression bomb"]
    assert "400 megapixels" in find(findings, "decompression bomb").cases[0].detail
    assert [row.path for row in findings.quarantined] == ["train/bomb.png"]


def test_the_system_s_reason_is_told() -> None:
    findings = check_train(("bad.jpg", PermissionError(13, "Permission denied"), 0))
    assert find(findings, "unreadable file").cases[0].detail == "permission denied"


# Copies


def test_a_copy_in_another_split_is_leakage_and_the_training_copy_goes() -> None:
    train = Listed([*sound_samples(), ("a.png", png(scene(1)), 0)])
    val = Listed([*sound_samples(start=2000), ("b.png", png(scene(1), comment="saved anew"), 0)], split="val")
    findings = check(OpenedSource([train, val]))
    assert problems(findings) == ["leakage"]
    leakage = find(findings, "leakage")
    assert (leakage.severity, paths(leakage)) == (MUST, [["train/a.png", "val/b.png"]])
    assert [(row.path, row.split) for row in findings.quarantined] == [("train/a.png", "train")]
    assert "val/b.png" in findings.quarantined[0].detail


def test_a_file_that_both_splits_list_is_leakage_but_not_quarantined(tmp_path: Path) -> None:
    for seed in range(12):
        (tmp_path / f"{seed}.jpg").write_bytes(jpeg(scene(seed)))
    splits = [
        FileDataset(
            name="pets",
            split=split,
            root=tmp_path,
            paths=[f"{seed}.jpg" for seed in seeds],
            levels={"class": Level(classes=("cat", "dog"), labels=np.array([seed % 2 for seed in seeds]))},
        )
        for split, seeds in (("train", range(10)), ("val", range(9, 12)))
    ]
    findings = check(OpenedSource(splits))
    assert paths(find(findings, "leakage")) == [[str(tmp_path / "9.jpg")] * 2]
    assert findings.quarantined == ()


def test_leakage_between_val_and_test_spares_the_test_split() -> None:
    splits = [Listed(sound_samples(start=start), split=name) for start, name in ((0, "train"), (100, "val"))]
    test = Listed([*sound_samples(start=200), sound_samples(1, start=100)[0]], split="test")
    findings = check(OpenedSource([*splits, test]))
    assert [(row.path, row.split) for row in findings.quarantined] == [("val/sound100.jpg", "val")]


def test_copies_with_different_labels_must_be_fixed_and_all_go() -> None:
    findings = check_train(("a.jpg", jpeg(scene(1)), 0), ("b.jpg", jpeg(scene(1)), 1))
    assert problems(findings) == ["conflicting labels"]
    finding = find(findings, "conflicting labels")
    assert finding.severity is MUST
    assert finding.cases[0].detail == "2 copies in train, labelled cat and dog"
    assert [row.path for row in findings.quarantined] == ["train/a.jpg", "train/b.jpg"]


def test_copies_with_one_label_in_one_split_are_worth_a_look_and_stay() -> None:
    findings = check_train(*((f"{name}.jpg", jpeg(scene(1)), 0) for name in "abc"))
    assert [(finding.problem, finding.severity, finding.count) for finding in findings.findings] == [
        ("duplicate", LOOK, 1)
    ]
    assert paths(findings.findings[0]) == [["train/a.jpg", "train/b.jpg", "train/c.jpg"]]
    assert findings.is_fit
    assert findings.quarantined == ()


def test_a_picture_compressed_anew_is_a_near_duplicate_or_near_leakage() -> None:
    smaller = scene(2).resize((72, 54), Image.Resampling.BILINEAR)
    pictures = {"a.jpg": jpeg(scene(1)), "b.jpg": jpeg(scene(2)), "c.jpg": jpeg(smaller, quality=70)}
    train = Listed([*sound_samples(), *((name, content, 0) for name, content in pictures.items())])
    val = Listed([*sound_samples(start=2000), ("d.jpg", jpeg(scene(1), quality=50), 0)], split="val")
    findings = check(OpenedSource([train, val]))
    assert [(finding.problem, finding.severity) for finding in findings.findings] == [
        ("near leakage", LOOK),
        ("near duplicate", LOOK),
    ]
    assert paths(find(findings, "near leakage")) == [["train/a.jpg", "val/d.jpg"]]
    assert paths(find(findings, "near duplicate")) == [["train/b.jpg", "train/c.jpg"]]
    assert findings.quarantined == ()


# Labels and notes


def test_very_uneven_classes_and_classes_of_a_few_images_are_worth_a_look() -> None:
    samples = [*((name, content, 0) for name, content, _ in sound_samples(30)), ("one.jpg", jpeg(scene(1)), 1)]
    findings = check(OpenedSource([Listed(samples)]))
    assert problems(findings) == ["imbalance", "few images"]
    assert "30 times as many: cat has 30, dog 1" in find(findings, "imbalance").cases[0].detail
    assert [(case.places[0].path, case.detail) for case in find(findings, "few images").cases] == [("dog", "1 image")]
    assert findings.is_fit


def test_a_single_class_must_be_fixed() -> None:
    samples = [(name, content, 0) for name, content, _ in sound_samples()]
    findings = check(OpenedSource([Listed(samples, classes=("cat",))]))
    assert [(finding.problem, finding.severity) for finding in findings.findings] == [("single class", MUST)]


def test_an_empty_split_must_be_fixed() -> None:
    findings = check(OpenedSource([Listed(sound_samples()), Listed([], split="val")]))
    assert [(finding.problem, finding.severity) for finding in findings.findings] == [("empty split", MUST)]


def test_what_the_source_noted_is_reported_with_its_seriousness() -> None:
    notes = [
        Note("class missing", "val/beagel", "in val but not in train", is_serious=True),
        Note("class missing", "train/beagle", "in train but not in val", is_serious=True),
        Note("stray folder", "old", "it was not read", is_serious=False),
        Note("moon phase", "full", "nobody has heard of it", is_serious=False),
    ]
    findings = check(OpenedSource([Listed(sound_samples())], notes=notes))
    assert [(finding.problem, finding.severity, finding.amount) for finding in findings.findings] == [
        ("class missing", MUST, "2 classes"),
        ("stray folder", LOOK, "1 folder"),
        ("moon phase", LOOK, "1 note"),
    ]


def test_hidden_folders_among_the_images_are_good_to_know(tmp_path: Path) -> None:
    names = []
    for seed in range(6):
        path = tmp_path / "train" / "cat" / f"{seed}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(scene(seed)))
        names.append(str(path.relative_to(tmp_path)))
    for hidden in ("train/.ipynb_checkpoints", "train/cat/.thumbnails"):
        (tmp_path / hidden).mkdir()
    level = Level(classes=("cat", "dog"), labels=np.array([0, 0, 0, 1, 1, 1]))
    data = FileDataset(name="pets", split="train", root=tmp_path, paths=names, levels={"class": level})
    findings = check(OpenedSource([data]))
    hidden_folders = find(findings, "hidden folder")
    assert hidden_folders.severity is KNOW
    assert [findings.shorten(path) for (path,) in paths(hidden_folders)] == [
        "train/.ipynb_checkpoints",
        "train/cat/.thumbnails",
    ]


def test_images_of_several_classes_or_none_can_be_checked() -> None:
    data = Listed([*sound_samples(), ("a.jpg", jpeg(scene(1)), 0), ("b.jpg", jpeg(scene(1)), 0)])
    labels = np.zeros((14, 3), bool)
    labels[:8, 0] = labels[4:12, 1] = labels[5:13, 2] = True
    data.levels = {"class": Level(classes=("cat", "dog", "owl"), labels=labels)}
    findings = check(OpenedSource([data]))
    assert problems(findings) == ["conflicting labels"]
    assert [place.label for place in findings.findings[0].cases[0].places] == ["owl", "no label"]
    assert findings.splits[0].class_counts == (8, 8, 8)


# Sizes and storage


def test_tiny_long_and_blank_images_are_worth_a_look() -> None:
    findings = check_train(
        ("tiny.png", png(scene(1, width=24, height=20)), 0),
        ("long.png", png(scene(2, width=400, height=70)), 0),
        ("blank.jpg", jpeg(Image.new("RGB", (96, 72), (200, 30, 40))), 0),
    )
    assert {finding.problem: paths(finding) for finding in findings.findings} == {
        "blank image": [["train/blank.jpg"]],
        "tiny image": [["train/tiny.png"]],
        "extreme shape": [["train/long.png"]],
    }
    assert {finding.severity for finding in findings.findings} == {LOOK}


def test_a_data_set_of_small_images_is_not_odd() -> None:
    images = np.stack([np.asarray(scene(seed, width=28, height=28).convert("L")) for seed in range(20)])
    level = Level(classes=("cat", "dog"), labels=np.arange(20) % 2)
    data = ArrayDataset(name="digits", split="train", images=images, levels={"class": level})
    assert check(OpenedSource([data])).findings == ()


def test_how_images_are_stored_is_good_to_know() -> None:
    turned = Image.Exif()
    turned[0x0112] = 6
    animation = BytesIO()
    scene(20).save(animation, "GIF", save_all=True, append_images=[scene(21)])
    deep = Image.fromarray(np.asarray(scene(22).convert("L"), np.uint16) * 256)
    findings = check_train(
        ("grey.jpg", jpeg(scene(23).convert("L")), 0),
        ("print.jpg", jpeg(scene(24).convert("CMYK")), 0),
        ("deep.png", png(deep), 0),
        ("glass.png", png(scene(25).convert("RGBA")), 0),
        ("table.png", png(scene(26).convert("P")), 0),
        ("moving.gif", animation.getvalue(), 0),
        ("turned.jpg", jpeg(scene(27), exif=turned), 0),
        ("really_a_png.jpg", png(scene(28)), 0),
    )
    names = {
        finding.problem: [path.removeprefix("train/") for (path,) in paths(finding)] for finding in findings.findings
    }
    assert names == {
        "misleading name": ["really_a_png.jpg"],
        "turned by EXIF": ["turned.jpg"],
        "animation": ["moving.gif"],
        "greyscale": ["grey.jpg"],
        "CMYK": ["print.jpg"],
        "16 bit": ["deep.png"],
        "transparency": ["glass.png"],
        "palette": ["table.png"],
    }
    assert {finding.severity for finding in findings.findings} == {KNOW}
    assert findings.is_fit


# The pass itself, and the files


def test_workers_change_nothing_and_progress_reaches_the_end() -> None:
    samples = [*sound_samples(70), ("bad.jpg", b"text", 0), ("copy.jpg", jpeg(scene(1000)), 0)]
    source = OpenedSource([Listed(samples), Listed(sound_samples(3, start=5000), split="val")])
    reports: list[tuple[int, int]] = []
    alone = check(source)
    together = check(source, num_workers=2, progress=lambda done, total: reports.append((done, total)))
    assert alone.findings == together.findings
    assert problems(alone) == ["broken file", "duplicate"]
    assert reports == sorted(reports)
    assert reports[-1] == (75, 75)


def damaged_source() -> OpenedSource:
    hostile = '<script>alert("1")</script>'
    train = [
        *sound_samples(),
        (f"{hostile}.jpg", b"text", 0),
        ("a\nb\x1b[31m.jpg", b"", 1),
        ("a.jpg", jpeg(scene(1)), 0),
    ]
    val = [*sound_samples(start=2000), ("b.jpg", jpeg(scene(1)), 0)]
    classes = (f"cat {hostile}", "dog & co")
    return OpenedSource([Listed(train, classes=classes), Listed(val, split="val", classes=classes)])


def test_the_page_shows_pictures_and_names_without_trusting_them(tmp_path: Path) -> None:
    source = damaged_source()
    page = write_files(check(source), source, folder=tmp_path).read_text(encoding="utf-8")
    assert page.count('<img src="data:image/jpeg;base64,') == 2
    assert "2 problems must be fixed" in page
    assert "&lt;script&gt;" in page
    assert "dog &amp; co" in page
    assert "<script" not in page
    assert "\x1b" not in page
    assert "http:" not in page.replace("http-equiv", "")
    assert "https:" not in page


def test_the_page_stays_small_whatever_is_found(tmp_path: Path) -> None:
    samples = [(f"copy{number}.jpg", jpeg(scene(number // 10)), 0) for number in range(400)]
    source = OpenedSource([Listed([*sound_samples(), *samples])])
    page = write_files(check(source), source, folder=tmp_path).read_text(encoding="utf-8")
    assert page.count("<img ") == 20 * 4
    assert "and 20 more: see findings.json" in page
    assert "and 6 more<" in page


def test_the_listing_and_the_record_hold_what_was_found(tmp_path: Path) -> None:
    source = damaged_source()
    (tmp_path / "quarantine.csv").write_text("an older one", encoding="utf-8")
    write_files(check(source), source, folder=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["findings.json", "quarantine.csv", "report.html"]
    with (tmp_path / "quarantine.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["path"], row["split"], row["problem"]) for row in rows] == [
        ('train/<script>alert("1")</script>.jpg', "train", "broken file"),
        ("train/a\nb\x1b[31m.jpg", "train", "broken file"),
        ("train/a.jpg", "train", "leakage"),
    ]
    record = json.loads((tmp_path / "findings.json").read_text(encoding="utf-8"))
    assert record["is_fit"] is False
    assert [(entry["problem"], entry["severity"], entry["count"]) for entry in record["findings"]] == [
        ("broken file", "must be fixed", 2),
        ("leakage", "must be fixed", 1),
    ]
    assert record["findings"][1]["cases"][0]["places"][1]["path"] == "val/b.jpg"
    assert [split["images"] for split in record["splits"]] == [15, 13]
