import errno
import io
import json
import multiprocessing
import os
import pickle
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitrail.data.contract import Dataset
from vitrail.data.sources.folder import EXTENSIONS
from vitrail.data.sources.shard_patterns import find_shards
from vitrail.data.sources.shards import ShardDataset, open_shards
from vitrail.data.sources.tar_index import read_members


def write_tar(path: Path, files: Mapping[str, bytes], *, format: int = tarfile.PAX_FORMAT) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=format) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def samples(labels: Mapping[str, int | str]) -> dict[str, bytes]:
    """An image, which holds its key here, and a `.cls` for each key."""
    files: dict[str, bytes] = {}
    for key, label in labels.items():
        files |= {f"{key}.jpg": key.encode(), f"{key}.cls": str(label).encode()}
    return files


def shard_of(dataset: Dataset) -> ShardDataset:
    assert isinstance(dataset, ShardDataset)
    return dataset


def write_train_and_val(folder: Path) -> str:
    write_tar(folder / "train-000.tar", samples({"a": 1, "b": 10}))
    write_tar(folder / "train-001.tar", samples({"c": 2, "d": 1}))
    write_tar(folder / "validation-000.tar", samples({"e": 10}))
    return f"{folder}/{{split}}-*.tar"


def test_every_split_is_read_with_one_class_list(tmp_path: Path) -> None:
    source = open_shards(write_train_and_val(tmp_path))
    assert source.splits == ("train", "val")
    train, val = source.open("train"), source.open("val")
    assert train.level().classes == val.level().classes == ("1", "2", "10")
    assert train.level().labels.tolist() == [0, 2, 1, 0]
    assert val.level().labels.tolist() == [2]
    assert [train.read(index) for index in range(len(train))] == [b"a", b"b", b"c", b"d"]
    assert val.read(0) == b"e"
    assert train.locate(2) == f"{tmp_path / 'train-001.tar'}!c.jpg"
    groups = shard_of(train).groups
    assert groups[0] == groups[1] != groups[2] == groups[3]
    assert [note.problem for note in source.notes] == ["class numbers with gaps", "class missing", "class missing"]


def test_without_a_split_in_the_pattern_a_share_of_each_class_is_set_aside(tmp_path: Path) -> None:
    for shard in range(2):
        keys = {f"{shard}_{number}": number % 2 for number in range(10)}
        write_tar(tmp_path / f"{shard}.tar", samples(keys))
    source = open_shards(f"{tmp_path}/{{0..1}}.tar", val_share=0.2)
    assert source.splits == ("train", "val")
    train, val = (shard_of(source.open(split)) for split in source.splits)
    assert np.bincount(val.level().labels).tolist() == [2, 2]
    for part in (train, val):
        assert len(part.groups) == len(part)
        for index in range(len(part)):
            key = part.read(index).decode()
            assert int(key[2:]) % 2 == part.level().labels[index]
            assert part.locate(index) == f"{tmp_path / key[0]}.tar!{key}.jpg"
    assert len({part.locate(index) for part in (train, val) for index in range(len(part))}) == 20


def test_json_gives_the_label_and_the_further_levels_whose_values_repeat(tmp_path: Path) -> None:
    files: dict[str, bytes] = {}
    for number in range(4):
        entries = {"cls": f"fine{number % 2}", "coarse": "ab"[number // 2], "width": 640, "filename": f"{number}.png"}
        entries |= {"score": 0.5, "tags": ["x"], "url": "u" * 200}
        files |= {f"dir/{number}.PNG": b"x", f"dir/{number}.json": json.dumps(entries).encode()}
    write_tar(tmp_path / "train.tar", files)
    write_tar(tmp_path / "val.tar", {"1.webp": b"y", "1.json": b'{"label": "fine1", "coarse": "a"}'})
    source = open_shards(f"{tmp_path}/{{split}}.tar")
    train = source.open("train")
    assert list(train.levels) == ["label", "coarse"]
    assert train.level().classes == ("fine0", "fine1")
    assert train.level("coarse").labels.tolist() == [0, 0, 1, 1]
    assert train.locate(0).endswith("!dir/0.PNG")
    assert source.open("val").level().labels.tolist() == [1]


def test_the_class_file_goes_before_json(tmp_path: Path) -> None:
    write_tar(tmp_path / "val-0.tar", {"a.json": b'{"label": 7}', "a.cls": b"3\n", "a.jpg": b"", "a.txt": b"a caption"})
    val = open_shards(f"{tmp_path}/{{split}}-{{0..0}}.tar").open("val")
    assert val.level().classes == ("3",)


@pytest.mark.parametrize(
    ("file", "content"), [("classes.txt", "ant\nbee\ncat\n"), ("classes.json", '["ant", "bee", "cat"]')]
)
@pytest.mark.parametrize("labels", [{"x": 2, "y": 0}, {"x": "cat", "y": "ant"}])
@pytest.mark.parametrize("is_beside", [True, False])
def test_a_class_list_beside_the_shards_names_the_numbers(
    tmp_path: Path, file: str, content: str, labels: dict[str, int | str], is_beside: bool
) -> None:
    for split in ("train", "val"):
        write_tar(tmp_path / split / "0.tar", samples(labels))
    place = (tmp_path / "train" if is_beside else tmp_path) / file
    place.write_text(content)
    source = open_shards(f"{tmp_path}/{{split}}/*.tar")
    assert source.open("val").level().classes == ("ant", "bee", "cat")
    assert source.open("val").level().labels.tolist() == [2, 0]
    assert [(note.problem, note.place, note.is_serious) for note in source.notes] == [("class list", str(place), False)]


def test_a_class_list_above_a_single_folder_is_of_something_else(tmp_path: Path) -> None:
    write_tar(tmp_path / "shards" / "val.tar", samples({"x": 0, "y": 1}))
    (tmp_path / "classes.txt").write_text("ant\nbee\n")
    source = open_shards(f"{tmp_path}/shards/{{split}}.tar")
    assert source.open("val").level().classes == ("0", "1")
    assert source.notes == ()


def test_folders_whose_class_lists_differ_are_an_error(tmp_path: Path) -> None:
    for split, content in (("train", "ant\nbee\n"), ("val", "bee\nant\n")):
        write_tar(tmp_path / split / "0.tar", samples({"x": 0, "y": 1}))
        (tmp_path / split / "classes.txt").write_text(content)
    with pytest.raises(ValueError, match=r"train/classes.txt and .*val/classes.txt list different classes"):
        open_shards(f"{tmp_path}/{{split}}/*.tar")


def test_a_class_list_that_is_not_utf8_is_an_error_of_one_line(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", samples({"x": 0}))
    (tmp_path / "classes.txt").write_bytes("b\u00eate\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"classes.txt is not in UTF-8: save it again in that encoding$"):
        open_shards(f"{tmp_path}/a.tar")


def test_a_class_that_is_missing_or_misspelt_in_one_split_is_noted(tmp_path: Path) -> None:
    write_tar(tmp_path / "train.tar", samples({"a": "zebra", "b": "Horse", "c": "horse"}))
    write_tar(tmp_path / "val.tar", samples({"d": "zebro", "e": "Horse", "f": "horse"}))
    notes = open_shards(f"{tmp_path}/{{split}}.tar").notes
    assert [(note.problem, note.place) for note in notes] == [
        ("class names alike", "Horse"),
        ("class missing", "zebra"),
        ("class missing", "zebro"),
    ]
    assert notes[1].detail == "in train but not in val; val has 'zebro': is it misspelt?"


@pytest.mark.parametrize("extension", EXTENSIONS)
def test_shards_and_folders_hold_images_of_the_same_extensions(tmp_path: Path, extension: str) -> None:
    write_tar(tmp_path / "val.tar", {f"a{extension}": b"x", "a.cls": b"0"})
    assert open_shards(f"{tmp_path}/{{split}}.tar").open("val").read(0) == b"x"


@pytest.mark.parametrize(
    "change",
    [
        {"names": [1, 2]},
        {"names": "ab"},
        {"offsets": [512, "1536"]},
        {"offsets": [512, 10**30]},
        {"sizes": [1, 10**12]},
        {"sizes": [1, -1]},
        {"sizes": [1, True]},
        {"labels": {"label": [0, [1]]}},
        {"labels": {"label": {"0": 1, "1": 1}}},
        {"labels": [["label"]]},
        {"num_without_image": "none"},
    ],
)
def test_a_kept_index_with_wrong_types_is_made_anew(tmp_path: Path, change: dict[str, Any]) -> None:
    write_tar(tmp_path / "val.tar", samples({"a": 0, "b": 1}))
    pattern, kept = f"{tmp_path}/{{split}}.tar", tmp_path / "val.tar.index"
    open_shards(pattern)
    whole = json.loads(kept.read_text())
    kept.write_text(json.dumps({**whole, "index": {**whole["index"], **change}}))
    val = open_shards(pattern).open("val")
    assert [val.read(index) for index in range(2)] == [b"a", b"b"]
    assert json.loads(kept.read_text()) == whole


def test_a_shard_that_may_not_be_read_is_an_error_of_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    write_tar(tmp_path / "a.tar", samples({"x": 0}))
    monkeypatch.setattr("vitrail.data.sources.shard_index.read_members", refuse)
    with pytest.raises(ValueError, match=r"^cannot read the shard .*a.tar: Permission denied$"):
        open_shards(f"{tmp_path}/a.tar")


def test_a_shard_in_a_locked_folder_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: object, **settings: object) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    with monkeypatch.context() as locked:
        locked.setattr(os, "stat", refuse)
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            find_shards("locked/a.tar")
    assert str(caught.value) == "no file matches locked/a.tar: Permission denied"


def test_a_label_beyond_the_class_list_is_an_error(tmp_path: Path) -> None:
    write_tar(tmp_path / "val.tar", samples({"x": 2}))
    (tmp_path / "classes.txt").write_text("ant\nbee\n")
    with pytest.raises(ValueError, match=r"the label 2 of the shards is not one of the 2 classes in .*classes.txt"):
        open_shards(f"{tmp_path}/val.tar")


def test_samples_without_an_image_or_a_label_are_left_out_and_noted(tmp_path: Path) -> None:
    files = samples({"a": 0, "b": -1}) | {"c.jpg": b"", "d.cls": b"1", "photo.v2.jpg": b"", "._a.jpg": b""}
    write_tar(tmp_path / "val-0.tar", files)
    source = open_shards(f"{tmp_path}/{{split}}-0.tar")
    assert source.open("val").level().labels.tolist() == [0]
    details = {note.problem: note.detail for note in source.notes}
    assert details["image missing"].startswith("2 groups of files")
    assert details["label missing"].startswith("2 of 3 images")


def test_shards_without_any_label_are_an_error(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"a.jpg": b"", "a.txt": b"a caption"})
    with pytest.raises(ValueError, match="no sample has both an image and a label"):
        open_shards(f"{tmp_path}/a.tar")


def test_the_index_is_kept_used_and_renewed_when_the_shard_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scanned: list[str] = []

    def scan(path: Path) -> Any:
        scanned.append(path.name)
        return read_members(path)

    monkeypatch.setattr("vitrail.data.sources.shard_index.read_members", scan)
    shard = tmp_path / "val-0.tar"
    write_tar(shard, samples({"a": 0, "b": 1}))
    pattern = f"{tmp_path}/{{split}}-*"
    first = open_shards(pattern).open("val")
    again = open_shards(pattern).open("val")
    assert scanned == ["val-0.tar"]
    assert [again.locate(index) for index in range(2)] == [first.locate(index) for index in range(2)]
    assert [again.read(index) for index in range(2)] == [b"a", b"b"]

    shard.unlink()
    write_tar(shard, samples({"longer": 0, "b": 1, "c": 0}))
    renewed = open_shards(pattern).open("val")
    assert [renewed.read(index) for index in range(3)] == [b"longer", b"b", b"c"]
    assert len(scanned) == 2

    (tmp_path / "val-0.tar.index").write_text("{")
    assert len(open_shards(pattern).open("val")) == 3
    assert len(scanned) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["val-0.tar", "val-0.tar.index"]


def test_a_folder_that_can_not_be_written_is_read_without_keeping_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, *arguments: object, **settings: object) -> int:
        raise PermissionError("read-only")

    pattern = write_train_and_val(tmp_path)
    monkeypatch.setattr(Path, "replace", refuse)
    assert len(open_shards(pattern).open("train")) == 4
    assert not list(tmp_path.glob("*.index"))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_data_set_reaches_other_processes_after_it_was_read_here(tmp_path: Path, method: str) -> None:
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"this system can't {method}")
    train = open_shards(write_train_and_val(tmp_path)).open("train")
    assert train.read(3) == b"d"
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.map(train.read, range(4)) == [b"a", b"b", b"c", b"d"]
    assert pickle.loads(pickle.dumps(train)).locate(3) == train.locate(3)
    assert train.read(0) == b"a"


def test_a_shard_that_was_cut_after_it_was_indexed_is_an_error_of_reading(tmp_path: Path) -> None:
    shard = tmp_path / "val.tar"
    write_tar(shard, {"a.cls": b"0", "a.jpg": b"x" * 1000})
    val = open_shards(f"{tmp_path}/{{split}}.tar").open("val")
    shard.write_bytes(shard.read_bytes()[:1700])
    with pytest.raises(OSError, match="of 1000 bytes; it was changed or cut short"):
        val.read(0)


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_members_are_found_where_tarfile_finds_them(tmp_path: Path, format: int) -> None:
    path = tmp_path / "a.tar"
    names = ["a.jpg", "folder/b.jpg", "d" * 90 + "/" + "n" * 60 + ".jpg", "é/ü.cls", "empty.cls"]
    if format != tarfile.USTAR_FORMAT:
        names.append("e" * 400 + ".jpg")
    contents = {name: name.encode() * 50 for name in names} | {"empty.cls": b""}
    with tarfile.open(path, "w", format=format) as archive:
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for place, (name, content) in enumerate(contents.items()):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            member.mtime = place + 0.5 if format == tarfile.PAX_FORMAT else place
            archive.addfile(member, io.BytesIO(content))
        link = tarfile.TarInfo("link.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "l" * 300 if format != tarfile.USTAR_FORMAT else "a.jpg"
        archive.addfile(link)
    with tarfile.open(path) as archive:
        expected = [(member.name, member.offset_data, member.size) for member in archive if member.isreg()]
    members = list(read_members(path))
    assert [tuple(member) for member in members] == expected
    data = path.read_bytes()
    assert {member.name: data[member.offset : member.offset + member.size] for member in members} == contents


@pytest.mark.parametrize(
    ("start", "stop", "message"),
    [
        (0, 1000, r"is cut short: a member at byte 512 goes beyond its end"),
        (0, 2048, r"is cut short: it ends at byte 2048 without tar's closing block"),
        (0, 0, r"is damaged, or is no tar file"),
        (100, 10240, r"is damaged, or is no tar file: there is no header at byte 0"),
    ],
)
def test_a_damaged_shard_is_an_error_that_names_it(tmp_path: Path, start: int, stop: int, message: str) -> None:
    path = tmp_path / "train-007.tar"
    write_tar(path, {"a.jpg": b"x" * 1300}, format=tarfile.GNU_FORMAT)
    path.write_bytes(path.read_bytes()[start:stop])
    with pytest.raises(ValueError, match=rf"train-007.tar {message}"):
        open_shards(str(path))


@pytest.mark.parametrize("kind", [b"0", b"x", b"L"])
@pytest.mark.parametrize(
    "size", [b"-0000001000\0", b"-2000      \0", b"\xff" * 10 + b"\xfe\0", b"+0000000100\0", b"0000_000100\0"]
)
def test_a_size_below_zero_does_not_lead_back(tmp_path: Path, kind: bytes, size: bytes) -> None:
    path = tmp_path / "a.tar"
    write_tar(path, samples({"a": 0}), format=tarfile.USTAR_FORMAT)
    data = bytearray(path.read_bytes())
    header = data[1024:1536]
    header[124:136], header[148:156], header[156:157] = size, b" " * 8, kind
    header[148:156] = b"%06o\0 " % sum(header)
    data[1024:1536] = header
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"a.tar is damaged, .* no header at byte 1024"):
        open_shards(str(path))


@pytest.mark.parametrize("records", [b"13 size=-512\n", b"12 size=\xc2\xb2\n", b"9999999999999999999999 a=b\n"])
def test_odd_numbers_in_an_extended_header_are_damage(tmp_path: Path, records: bytes) -> None:
    path = tmp_path / "a.tar"
    member = tarfile.TarInfo("header")
    member.size, member.type = len(records), b"x"
    padded = records.ljust(512, b"\0")
    path.write_bytes(member.tobuf(tarfile.USTAR_FORMAT) + padded + bytes(1024))
    with pytest.raises(ValueError, match=r"a.tar is damaged"):
        open_shards(str(path))


def test_a_changed_byte_in_a_header_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    write_tar(path, samples({"a": 0}))
    data = bytearray(path.read_bytes())
    data[1024 + 3] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"a.tar is damaged, .* no header at byte 1024"):
        open_shards(str(path))


def test_a_compressed_shard_is_an_error_that_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("a.jpg"))
    with pytest.raises(ValueError, match=r"a.tar is compressed with gzip: unpack it"):
        open_shards(str(path))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a.jpg": b"", "a.json": b"{"}, r"the labels of .*a.tar!a.jpg can't be read"),
        ({"a.jpg": b"", "a.cls": b"\xff"}, r"the labels of .*a.tar!a.jpg can't be read"),
        ({"a.jpg": b"", "a.JPG": b""}, r"a.tar holds a.JPG twice"),
    ],
)
def test_odd_members_are_errors_that_name_the_shard(tmp_path: Path, files: dict[str, bytes], message: str) -> None:
    write_tar(tmp_path / "a.tar", files)
    with pytest.raises(ValueError, match=message):
        open_shards(f"{tmp_path}/a.tar")


def test_a_missing_shard_of_a_range_is_named(tmp_path: Path) -> None:
    for number in (8, 10):
        write_tar(tmp_path / f"train-{number:03d}.tar", samples({"a": 0}))
    with pytest.raises(ValueError, match=r"2 of the 4 files of .* are missing, the first is .*train-009.tar"):
        open_shards(f"{tmp_path}/train-{{008..011}}.tar")


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("x-*.tar", r"no file matches .*x-\*.tar"),
        ("x.tar", r"no file matches .*x.tar"),
        ("", r"no file matches .*: it is a folder, so write .*/\*.tar"),
        ("{split}-*.tar", r"no files match .*: \{split\} stands for train, val, test"),
        ("{9..3}.tar", r"\{9..3\} must count upwards"),
        ("{0..99999999}.tar", r"must count upwards, and not beyond 1000000 files"),
        ("{spilt}-0.tar", r"\{spilt\} is not \{split\}, a range such as \{000..127\} or a list"),
    ],
)
def test_patterns_that_name_nothing_are_errors(tmp_path: Path, pattern: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        open_shards(f"{tmp_path}/{pattern}")


def test_lists_and_ranges_in_braces_are_combined(tmp_path: Path) -> None:
    for disk in "ab":
        for number in range(9, 11):
            write_tar(tmp_path / disk / f"{number}.tar", samples({f"{disk}{number}": 0}))
    source = open_shards(f"{tmp_path}/{{a,b}}/{{9..10}}.tar", val_share=0.25)
    found = {source.open(split).read(index) for split in source.splits for index in range(len(source.open(split)))}
    assert found == {b"a9", b"a10", b"b9", b"b10"}


def test_splits_with_ranges_are_told_apart(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for number in range(2):
            write_tar(tmp_path / split / f"{split}-extra-{number}.tar", samples({f"{split}{number}": number}))
    source = open_shards(f"{tmp_path}/{{split}}/{{split}}-extra-{{0..1}}.tar")
    assert source.splits == ("train", "test")
    assert source.open("test").read(1) == b"test1"


def test_what_webdataset_writes_is_read(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset", reason="needs webdataset, to compare with it")
    path = tmp_path / "val-000000.tar"
    with webdataset.TarWriter(str(path)) as writer:
        for number in range(3):
            writer.write({"__key__": f"sample{number}", "jpg": bytes([number]), "cls": number, "json": {"note": "x"}})
    val = open_shards(f"{tmp_path}/{{split}}-{{000000..000000}}.tar").open("val")
    assert [val.read(index) for index in range(3)] == [b"\x00", b"\x01", b"\x02"]
    assert val.level().labels.tolist() == [0, 1, 2]
