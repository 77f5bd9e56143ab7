"""The data doctor: what it finds in broken, mislabelled, repeated and odd data, and that it never fails itself."""

import csv
import json
import os
import shutil
import tracemalloc
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, PngImagePlugin
from torch.utils.data import get_worker_info

from vitrail.data.contract import Dataset, Level, Note
from vitrail.data.datasets import open_dataset, open_source
from vitrail.data.doctor import check, duplicates
from vitrail.data.doctor.check_copies import check_copies
from vitrail.data.doctor.check_files import write_files
from vitrail.data.doctor.examine import RECORD, Examination, ExaminedSplit, examine_splits
from vitrail.data.doctor.findings import Finding, Findings, Severity
from vitrail.data.stored import ArrayDataset, FileDataset, OpenedSource, Subset

MUST, LOOK, KNOW = Severity.MUST_BE_FIXED, Severity.WORTH_A_LOOK, Severity.GOOD_TO_KNOW


def scene(seed: int, *, width: int = 96, height: int = 72) -> Image.Image:
    """Soft random blobs: as different from one another as photographs are."""
    noise = np.random.RandomState(seed).randint(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC)


def jpeg(image: Image.Image, *, quality: int = 90, exif: Image.Exif | None = None) -> bytes:
    file = BytesIO()
    image.save(file, "JPEG", quality=quality, exif=exif or Image.Exif())
    return file.getvalue()


def encode(image: Image.Image, image_format: str, *, exif: Image.Exif) -> bytes:
    file = BytesIO()
    image.save(file, image_format, exif=exif)
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

    def __len__(self) -> int:
        return len(self.samples)

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
    return check(with_val(Listed([*sound_samples(), *samples])))


def with_val(train: Dataset, *, notes: Sequence[Note] = ()) -> OpenedSource:
    """That data set beside a sound val of the same classes."""
    level = train.level()
    val = Listed(sound_samples(start=9000), split="val", classes=level.classes)
    if level.is_multiple:
        val.levels = {"class": Level(classes=level.classes, labels=np.ones((len(val), len(level.classes)), bool))}
    return OpenedSource([train, val], notes=notes)


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
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "unread format"),
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


def test_of_copies_with_different_labels_those_outside_train_are_reported_but_stay() -> None:
    train = Listed([*sound_samples(), ("a.jpg", jpeg(scene(1)), 0)])
    copies = [("b.jpg", jpeg(scene(1)), 1), ("c.jpg", jpeg(scene(2)), 0), ("d.jpg", jpeg(scene(2)), 1)]
    val = Listed([*sound_samples(start=2000), *copies], split="val")
    findings = check(OpenedSource([train, val]))
    assert paths(find(findings, "conflicting labels")) == [["train/a.jpg", "val/b.jpg"], ["val/c.jpg", "val/d.jpg"]]
    assert [row.path for row in find(findings, "conflicting labels").quarantined] == ["train/a.jpg"]
    assert {row.split for row in findings.quarantined} == {"train"}


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
    findings = check(with_val(Listed(samples)))
    assert problems(findings) == ["imbalance", "few images"]
    assert "30 times as many: cat has 30, dog 1" in find(findings, "imbalance").cases[0].detail
    assert [(case.places[0].path, case.detail) for case in find(findings, "few images").cases] == [("dog", "1 image")]
    assert findings.is_fit


def test_a_single_class_must_be_fixed() -> None:
    splits = [
        Listed([(name, content, 0) for name, content, _ in sound_samples(start=start)], split=split, classes=("cat",))
        for split, start in (("train", 0), ("val", 100))
    ]
    findings = check(OpenedSource(splits))
    assert [(finding.problem, finding.severity) for finding in findings.findings] == [("single class", MUST)]


def test_an_empty_split_must_be_fixed() -> None:
    findings = check(OpenedSource([Listed(sound_samples()), Listed([], split="val")]))
    assert [(finding.problem, finding.severity) for finding in findings.findings] == [("empty split", MUST)]


@pytest.mark.parametrize(
    ("splits", "missing"),
    [(["val"], ["train"]), (["train", "test"], ["val"]), (["0", "1"], ["train", "val"]), (["train"], ["val"])],
)
def test_without_train_or_val_nothing_can_be_trained(splits: list[str], missing: list[str]) -> None:
    datasets = [Listed(sound_samples(start=100 * place), split=split) for place, split in enumerate(splits)]
    findings = check(OpenedSource(datasets))
    assert [(finding.problem, finding.severity) for finding in findings.findings] == [("split missing", MUST)]
    assert [path for (path,) in paths(findings.findings[0])] == missing
    assert " and ".join(splits) in findings.findings[0].cases[0].detail
    assert not findings.is_fit


def test_what_the_source_noted_is_reported_with_its_seriousness() -> None:
    notes = [
        Note("class missing", "val/beagel", "in val but not in train", is_serious=True),
        Note("class missing", "train/beagle", "in train but not in val", is_serious=True),
        Note("stray folder", "old", "it was not read", is_serious=False),
        Note("moon phase", "full", "nobody has heard of it", is_serious=False),
    ]
    findings = check(with_val(Listed(sound_samples()), notes=notes))
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
    findings = check(with_val(data))
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
    level = Level(classes=("cat", "dog"), labels=np.arange(10) % 2)
    splits = [
        ArrayDataset(name="digits", split=split, images=part, levels={"class": level})
        for split, part in (("train", images[:10]), ("val", images[10:]))
    ]
    assert check(OpenedSource(splits)).findings == ()


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
        ("turned.png", encode(scene(29), "PNG", exif=turned), 0),
        ("turned.webp", encode(scene(30), "WEBP", exif=turned), 0),
        ("turned.tif", encode(scene(31), "TIFF", exif=turned), 0),
        ("levels.tif", encode(scene(32).convert("F"), "TIFF", exif=Image.Exif()), 0),
        ("counts.tif", encode(scene(33).convert("I"), "TIFF", exif=Image.Exif()), 0),
        ("really_a_png.jpg", png(scene(28)), 0),
    )
    names = {
        finding.problem: [path.removeprefix("train/") for (path,) in paths(finding)] for finding in findings.findings
    }
    assert names == {
        "misleading name": ["really_a_png.jpg"],
        "turned by EXIF": ["turned.jpg", "turned.png", "turned.webp", "turned.tif"],
        "animation": ["moving.gif"],
        "greyscale": ["grey.jpg"],
        "CMYK": ["print.jpg"],
        "16 bit": ["deep.png"],
        "32 bit": ["counts.tif"],
        "floating point": ["levels.tif"],
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


class Failing(Listed):
    """Fails in a worker where no sample is to blame."""

    def __len__(self) -> int:
        if get_worker_info() is not None:
            raise RuntimeError("the worker has failed")
        return super().__len__()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_what_decoders_print_is_not_seen(num_workers: int, capfd: pytest.CaptureFixture[str]) -> None:
    whole = jpeg(scene(1))
    data = Listed([("a.jpg", whole[:-2] + b"\x11" * 9 + whole[-2:], 0), *sound_samples(2)])
    assert check(OpenedSource([data]), num_workers=num_workers).splits[0].num_images == 3
    assert capfd.readouterr().err == ""


def test_an_error_in_a_worker_still_arrives() -> None:
    with pytest.raises(RuntimeError, match="the worker has failed"):
        check(OpenedSource([Failing(sound_samples(3))]), num_workers=1)


def test_the_records_are_in_memory_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "_CHUNK", 64)
    datasets = [Listed(sound_samples(3, start=start), split=split) for split, start in (("train", 0), ("val", 10))]
    small = examine_splits(datasets, num_workers=0)
    assert all(np.shares_memory(split.records, small.records) for split in small.splits)
    count = 4000
    records = np.zeros(count, RECORD)
    random = np.random.RandomState(0)
    records["is_whole"] = True
    records["digest"], records["look"] = random.permutation(count), random.randint(0, 2**63, count)
    records["thumbnail"] = random.randint(0, 256, (count, 16, 16, 3))
    split = ExaminedSplit(Listed([("a.jpg", b"", 0)] * count), records, {})
    tracemalloc.start()
    try:
        assert list(check_copies(Examination((split,), records))) == []
        assert tracemalloc.get_traced_memory()[1] < records.nbytes / 2
    finally:
        tracemalloc.stop()


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
    files = [jpeg(scene(number)) for number in range(40)]
    samples = [(f"copy{number}.jpg", files[number // 10], 0) for number in range(400)]
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


def fill(folder: Path) -> None:
    """Class folders in train and val; one file is cut off, one of train is in val as well."""
    for seed in range(24):
        path = folder / ("train", "val")[seed >= 12] / ("cat", "dog")[seed % 2] / f"{seed}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(scene(seed)))
    (folder / "train" / "cat" / "0.jpg").write_bytes(jpeg(scene(0))[:900])
    shutil.copy(folder / "train" / "dog" / "1.jpg", folder / "val" / "dog" / "copy.jpg")


def names_of(data: Dataset) -> set[str]:
    return {Path(data.locate(index)).name for index in range(len(data))}


@pytest.mark.parametrize("kind", ["folder", "manifest", "manifest elsewhere"])
def test_the_listing_holds_where_the_data_is_moved_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    place, other = tmp_path / "here", tmp_path / "there"
    fill(place / "pets")
    below = {"folder": "pets", "manifest": "list.csv", "manifest elsewhere": "lists/list.csv"}[kind]
    if kind != "folder":
        manifest = place / below
        manifest.parent.mkdir(exist_ok=True)
        files = sorted((place / "pets").rglob("*.jpg"))
        lines = [
            f"{os.path.relpath(path, manifest.parent)},{path.parent.name},{path.parts[-3]}\n".replace("\\", "/")
            for path in files
        ]
        manifest.write_text("path,label,split\n" + "".join(lines), encoding="utf-8")
    monkeypatch.chdir(place)
    source = open_source(below)
    write_files(check(source), source, folder=tmp_path)
    listing = tmp_path / "quarantine.csv"
    assert str(place) not in listing.read_text(encoding="utf-8")
    for folder in (place, other):
        if folder is other:
            monkeypatch.chdir(tmp_path)
            place.rename(other)
        spec = folder / below
        kept = names_of(open_dataset(spec, exclude=listing))
        assert names_of(open_dataset(spec)) - kept == {"0.jpg", "1.jpg"}
        assert len(open_dataset(spec, "val", exclude=listing)) == len(open_dataset(spec, "val"))


def test_files_of_a_part_of_a_data_set_are_listed_by_their_path_below_the_data(tmp_path: Path) -> None:
    fill(tmp_path)
    source = open_source(tmp_path)
    train = Subset(source.open("train"), np.arange(len(source.open("train")))[::-1])
    findings = check(OpenedSource([train, source.open("val")]))
    assert sorted(row.path for row in findings.quarantined) == ["train/cat/0.jpg", "train/dog/1.jpg"]


def test_a_path_that_means_another_file_in_another_split_is_listed_in_full(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "train" / "dog" / "copy.jpg").write_bytes(b"cut off")
    splits = []
    for split in ("train", "val"):
        files = sorted((tmp_path / split).rglob("*.jpg"))
        level = Level(classes=("cat", "dog"), labels=np.array([int(path.parent.name == "dog") for path in files]))
        names = [path.relative_to(tmp_path / split).as_posix() for path in files]
        root = tmp_path / split
        splits.append(FileDataset(name="pets", split=split, root=root, paths=names, levels={"label": level}))
    findings = check(OpenedSource(splits))
    listed = {row.path for row in findings.quarantined}
    assert listed == {"cat/0.jpg", "dog/1.jpg", str(tmp_path / "train" / "dog" / "copy.jpg")}
