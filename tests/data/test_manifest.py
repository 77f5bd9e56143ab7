import builtins
import errno
import json
import pickle
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitrail.data.contract import Dataset, Level, Note, Source
from vitrail.data.sources.manifest import open_manifest
from vitrail.data.sources.manifest_labels import rarest_of_each
from vitrail.data.stored import FileDataset

ROWS = """path,label,split
a/1.jpg,cat,train
a/2.jpg,dog,train
a/3.jpg,dog,val
a/4.jpg,cat,val
"""


def write(folder: Path, text: str, *, name: str = "list.csv", encoding: str = "utf-8") -> Path:
    """A manifest, with one file that it may list."""
    (folder / "a").mkdir(parents=True, exist_ok=True)
    (folder / "a/1.jpg").write_bytes(b"one")
    (folder / name).write_bytes(text.encode(encoding))
    return folder / name


def opened(path: Path, *, val_share: float = 0.1, levels: Sequence[str] | None = None) -> Source:
    return open_manifest(path, name="pets", val_share=val_share, seed=0, levels=levels)


def paths_of(dataset: Dataset) -> list[str]:
    assert isinstance(dataset, FileDataset)
    return list(dataset.paths)


def many(label: str = "{row}", *, count: int = 40, header: str = "path,label") -> str:
    return f"{header}\n" + "".join(f"a/{row}.jpg,{label.format(row=row % 4)}\n" for row in range(1, count + 1))


def test_rows_are_read_in_their_order(tmp_path: Path) -> None:
    source = opened(write(tmp_path, ROWS))
    assert (source.name, source.splits, source.notes) == ("pets", ("train", "val"), ())
    train, val = source.open("train"), source.open("val")
    assert paths_of(val) == ["a/3.jpg", "a/4.jpg"]
    assert list(train.levels) == ["label"]
    assert train.level().classes == val.level().classes == ("cat", "dog")
    assert (train.level().labels.tolist(), val.level().labels.tolist()) == ([0, 1], [1, 0])
    assert train.level().labels.dtype == np.int64
    assert train.read(0) == b"one"
    assert train.locate(0) == str(tmp_path / "a/1.jpg")


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_forms_of_csv(tmp_path: Path, delimiter: str, encoding: str, ending: str) -> None:
    text = ROWS.replace("dog", "chien d'été").replace(",", delimiter).replace("\n", ending) + ending
    source = opened(write(tmp_path, text, encoding=encoding))
    assert source.open("train").level().classes == ("cat", "chien d'été")
    assert paths_of(source.open("train")) == ["a/1.jpg", "a/2.jpg"]


def test_quotes_and_spaces(tmp_path: Path) -> None:
    rows = [
        "path, label , split",
        ' "a/1.jpg", "cat, black" , train',
        'a/2.jpg,"say ""dog""",train',
        " a/3.jpg , cat, val ",
    ]
    source = opened(write(tmp_path, "\n".join(rows)))
    assert source.open("train").level().classes == ("cat", "cat, black", 'say "dog"')
    assert paths_of(source.open("train")) == ["a/1.jpg", "a/2.jpg"]


def test_commas_in_the_cells_of_a_file_with_semicolons(tmp_path: Path) -> None:
    source = opened(write(tmp_path, "path;label\na/1.jpg;cat, black, small\na/2.jpg;dog, white, big\n"))
    assert source.open("train").level().classes == ("cat, black, small", "dog, white, big")


def test_paths_written_on_windows(tmp_path: Path) -> None:
    source = opened(write(tmp_path, ROWS.replace("/", "\\")))
    assert source.open("train").read(0) == b"one"


def test_absolute_paths(tmp_path: Path) -> None:
    listed = write(tmp_path / "images", ROWS).parent
    text = ROWS.replace("a/", f"{listed}/a/")
    source = opened(write(tmp_path / "lists", text))
    assert source.open("train").locate(0) == str(listed / "a/1.jpg")


def test_other_names_of_columns_are_understood_and_noted(tmp_path: Path) -> None:
    source = opened(write(tmp_path, ROWS.replace("path,label,split", "File_Name,Target,SPLIT")))
    assert list(source.open("train").levels) == ["label"]
    assert source.notes == (
        Note("column name", "File_Name", "taken as the column 'path', which is not there", False),
        Note("column name", "Target", "taken as the column 'label', which is not there", False),
    )


def test_other_names_of_splits(tmp_path: Path) -> None:
    text = ROWS.replace(",train", ",Training").replace(",val", ",validation") + "a/5.jpg,cat,extra\na/6.jpg,dog,extra\n"
    assert opened(write(tmp_path, text)).splits == ("train", "val", "extra")


def test_integer_labels_are_sorted_by_number(tmp_path: Path) -> None:
    rows = "".join(f"a/{label}.jpg,{label},{split}\n" for label in (10, 9, 2, 1) for split in ("train", "val"))
    text = "path,label,split\n" + rows.replace("a/10.jpg,10,train", "a/1.jpg,10,train")
    train = opened(write(tmp_path, text)).open("train")
    assert train.level().classes == ("1", "2", "9", "10")
    assert train.level().labels.tolist() == [3, 2, 1, 0]


def test_without_splits_each_class_is_split(tmp_path: Path) -> None:
    source = opened(write(tmp_path, many()), val_share=0.2)
    assert source.splits == ("train", "val")
    assert np.bincount(source.open("val").level().labels).tolist() == [2, 2, 2, 2]
    assert [note.problem for note in source.notes] == ["automatic split"]


def test_split_depends_neither_on_the_order_of_rows_nor_on_absolute_paths(tmp_path: Path) -> None:
    header, *rows = many().splitlines(keepends=True)
    first = opened(write(tmp_path / "first", many())).open("val")
    second = opened(write(tmp_path / "second", header + "".join(reversed(rows)))).open("val")
    assert sorted(paths_of(first)) == sorted(paths_of(second))
    places = [tmp_path / "third", tmp_path / "fourth/deeper"]
    vals = [opened(write(place, many().replace("a/", f"{place}/a/"))).open("val") for place in places]
    assert [Path(path).name for path in paths_of(vals[0])] == [Path(path).name for path in paths_of(vals[1])]


def test_columns_whose_values_repeat_are_further_levels(tmp_path: Path) -> None:
    rows = [
        f"a/{row}.jpg,breed{row % 4},{'cat' if row % 2 else 'dog'},{row},0.{row % 3},{row % 2},x," for row in range(8)
    ]
    text = "path,label,coarse,identifier,score,group,constant,remark\n" + "\n".join(rows)
    train = opened(write(tmp_path, text), val_share=0.5).open("train")
    assert list(train.levels) == ["label", "coarse", "group"]
    assert train.level("coarse").classes == ("cat", "dog")
    fine, coarse = train.level().labels, train.level("coarse").labels
    assert (coarse == 1 - fine % 2).all()


def test_further_levels_may_be_named(tmp_path: Path) -> None:
    text = "path,label,order,genus\na/1.jpg,x,b,c\na/2.jpg,y,b,d\na/3.jpg,x,b,c\na/4.jpg,y,b,d\n"
    assert list(opened(write(tmp_path, text), levels=["order"]).open("train").levels) == ["label", "order"]
    assert list(opened(write(tmp_path, text), levels=[]).open("train").levels) == ["label"]
    with pytest.raises(ValueError, match=r"has no column 'genius'; its columns are named: .*; is 'genus' meant\?"):
        opened(write(tmp_path, text), levels=["genius"])


def test_class_on_one_side_only_is_noted_and_keeps_its_index(tmp_path: Path) -> None:
    source = opened(write(tmp_path, ROWS.replace("4.jpg,cat", "4.jpg,catt")))
    assert source.open("train").level().classes == source.open("val").level().classes == ("cat", "catt", "dog")
    assert source.notes == (
        Note("class missing", "cat", "in train but not in val; val has 'catt': is it misspelt?", True),
        Note("class missing", "catt", "in val but not in train; train has 'cat': is it misspelt?", True),
    )


def test_labels_that_differ_in_capitals_only(tmp_path: Path) -> None:
    source = opened(write(tmp_path, ROWS.replace("2.jpg,dog", "2.jpg,Cat")))
    assert [note.place for note in source.notes if note.problem == "class names alike"] == ["Cat"]


def test_single_label(tmp_path: Path) -> None:
    source = opened(write(tmp_path, ROWS.replace("dog", "cat")))
    assert source.notes == (Note("single class", "cat", "all images are of one class", False),)


def test_path_that_is_listed_twice(tmp_path: Path) -> None:
    source = opened(write(tmp_path, ROWS + "./a/2.jpg,dog,val\na//3.jpg,dog,val\n"))
    detail = "listed again in line 6 after line 3; paths that are listed more than once: 2; keep one line of each"
    assert source.notes == (Note("path listed twice", "a/2.jpg", detail, True),)


def test_path_that_is_listed_with_two_labels(tmp_path: Path) -> None:
    source = opened(write(tmp_path, ROWS + "a/2.jpg,cat,train\n"))
    (note,) = source.notes
    assert note.detail == (
        "listed again in line 6 after line 3, as 'cat' after 'dog' "
        "(call the column 'labels' where a file may have several); keep one line of each"
    )


def test_single_missing_files_are_left_to_the_reader(tmp_path: Path) -> None:
    assert len(opened(write(tmp_path, ROWS)).open("train")) == 2


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    manifest = write(tmp_path, many().replace("a/", "elsewhere/"))
    with pytest.raises(ValueError, match=r"none of 20 files of .*list\.csv that were looked for exists") as caught:
        opened(manifest)
    assert f"the first being {tmp_path.resolve()}/elsewhere/1.jpg: paths start at" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"list\.csv is empty: its first line must name the columns, such as path,label"),
        ("path,label\n", r"list\.csv lists no images"),
        ("paths,label\na/1.jpg,cat\n", r"no column 'path'; its columns are named: paths, label; is 'paths' meant\?"),
        ("path,lable\na/1.jpg,cat\n", r"no column 'label'; its columns are named: path, lable; is 'lable' meant\?"),
        ("a/1.jpg,cat\na/2.jpg,dog\n", r"no column 'path': its first line must name the columns, such as path,label$"),
        ("path,label\na/1.jpg,cat\na/2.jpg,\n", r"list\.csv, line 3: no label given"),
        ("path,label\na/1.jpg,cat\n\n ,dog\n", r"list\.csv, line 4: no path given"),
        ("path,label,split\na/1.jpg,cat,\n", r"list\.csv, line 2: no split given"),
        ("path,label\na/1.jpg,cat,black\n", r"line 2: 3 cells, but the header names 2 columns"),
        ("path,label\na/1.jpg,cat\na/2.jpg\n", r"line 3: 1 cells, but the header names 2 columns"),
        ("path,label,label\na/1.jpg,cat,dog\n", r"two columns of one name, number 2 and number 3"),
    ],
)
def test_errors_of_csv(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        opened(write(tmp_path, text))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_other_encodings_are_an_error(tmp_path: Path, encoding: str) -> None:
    with pytest.raises(ValueError, match=r"list\.csv is not in UTF-8: save it again in that encoding"):
        opened(write(tmp_path, ROWS.replace("cat", "bête"), encoding=encoding))


def test_manifest_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no file .*nothing\.csv"):
        opened(tmp_path / "nothing.csv")


def write_parquet(path: Path, columns: Mapping[str, Any], *, metadata: Mapping[str, Any] | None = None) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table(dict(columns))
    if metadata is not None:
        table = table.replace_schema_metadata({"huggingface": json.dumps(metadata)})
    parquet.write_table(table, path, row_group_size=2)
    return path


def test_parquet_of_paths(tmp_path: Path) -> None:
    write(tmp_path, "")
    columns = {
        "path": ["a/1.jpg", "a/2.jpg", "a/3.jpg", "a/4.jpg"],
        "label": [10, 9, 10, 9],
        "coarse": ["x", "x", "y", "y"],
        "score": [0.5, 0.5, 1.0, 1.0],
        "split": ["train", "train", "valid", "valid"],
    }
    source = opened(write_parquet(tmp_path / "list.parquet", columns))
    train = source.open("train")
    assert source.splits == ("train", "val")
    assert list(train.levels) == ["label", "coarse"]
    assert train.level().classes == ("9", "10")
    assert train.level().labels.tolist() == [1, 0]
    assert train.read(0) == b"one"


def test_parquet_row_without_a_label(tmp_path: Path) -> None:
    write(tmp_path, "")
    path = write_parquet(tmp_path / "list.parquet", {"path": ["a/1.jpg", "a/2.jpg"], "label": ["cat", None]})
    with pytest.raises(ValueError, match=r"list\.parquet, row 2: no label given"):
        opened(path)


@pytest.mark.parametrize("is_structure", [True, False])
def test_parquet_that_holds_the_images(tmp_path: Path, is_structure: bool) -> None:
    contents = [b"zero", b"one", b"two", b"three", b"four"]
    images = [{"bytes": content, "path": "x.jpg"} for content in contents] if is_structure else contents
    columns = {"image": images, "label": [2, 0, 2, 0, 0], "split": ["train", "val", "val", "train", "val"]}
    metadata = {"info": {"features": {"label": {"names": ["wolf", "cow", "ape"]}, "image": {"_type": "Image"}}}}
    path = write_parquet(tmp_path / "held.parquet", columns, metadata=metadata)
    val = pickle.loads(pickle.dumps(opened(path).open("val")))
    assert [val.read(index) for index in range(len(val))] == [b"one", b"two", b"four"]
    assert val.locate(1) == f"{path}!3"
    assert val.level().classes == ("wolf", "cow", "ape")
    assert val.level().labels.tolist() == [0, 2, 0]


def test_parquet_label_outside_of_its_classes(tmp_path: Path) -> None:
    metadata = {"info": {"features": {"label": {"names": ["wolf", "cow"]}}}}
    path = write_parquet(tmp_path / "held.parquet", {"image": [b"a", b"b"], "label": [0, -1]}, metadata=metadata)
    with pytest.raises(ValueError, match=r"held\.parquet, row 2: label is -1, but the file names 2 classes"):
        opened(path)


def test_file_that_is_not_parquet(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    with pytest.raises(ValueError, match=r"list\.parquet cannot be read as Parquet"):
        opened(write(tmp_path, ROWS, name="list.parquet"))


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def refuse(name: str, *arguments: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real_import(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ValueError, match=r"reading Parquet needs pyarrow: pip install 'vitrail\[parquet\]'"):
        opened(write(tmp_path, ROWS, name="list.parquet"))


@pytest.mark.parametrize("name", ["list.csv", "list.parquet"])
def test_manifest_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def refuse(path: Path) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    for reader in ("read_csv", "read_parquet"):
        monkeypatch.setattr(f"vitrail.data.sources.manifest.{reader}", refuse)
    with pytest.raises(ValueError, match=rf"^cannot read .*{name}: Permission denied$"):
        opened(write(tmp_path, ROWS, name=name))


def test_path_with_a_nul_byte(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"list\.csv, line 3: .*NUL"):
        opened(write(tmp_path, ROWS.replace("a/2.jpg", "a/\0.jpg")))


def test_parquet_path_with_a_nul_byte(tmp_path: Path) -> None:
    write(tmp_path, "")
    path = write_parquet(tmp_path / "list.parquet", {"path": ["a/1.jpg", "a\0"], "label": ["cat", "dog"]})
    with pytest.raises(ValueError, match=r"list\.parquet, row 2: the path 'a\\x00' has a NUL byte in it"):
        opened(path)


def test_cell_that_is_too_long_for_csv_is_named_by_its_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"list\.csv, line 6: cannot be read as CSV: field larger"):
        opened(write(tmp_path, ROWS + "a/5.jpg," + "x" * 200_000 + ",train\n"))


def test_images_in_a_table_are_named_by_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_parquet(tmp_path / "held.parquet", {"image": [b"a", b"b"], "label": [0, 0]})
    monkeypatch.chdir(tmp_path)
    dataset = opened(Path("held.parquet")).open("train")
    assert dataset.locate(0).startswith(f"{path}!")


@pytest.mark.parametrize(
    ("column", "values", "kind"),
    [
        ("label", [0.0, 1.0], "double"),
        ("Label", [b"x", b"y"], "binary"),
        ("label", [["cat"], ["dog"]], r"list<.*>"),
        ("split", [0.0, 1.0], "double"),
    ],
)
def test_parquet_column_of_a_type_that_is_no_label(tmp_path: Path, column: str, values: list[Any], kind: str) -> None:
    write(tmp_path, "")
    labels = {"class": ["cat", "dog"]} if column == "split" else {}
    path = write_parquet(tmp_path / "list.parquet", {"path": ["a/1.jpg", "a/2.jpg"], **labels, column: values})
    with pytest.raises(ValueError, match=f"the column '{column}' holds {kind}, where text or integers are needed$"):
        opened(path)


@pytest.mark.parametrize("images", [[b"a", None], [{"bytes": b"a"}, None], [{"bytes": b"a"}, {"bytes": None}]])
def test_parquet_without_one_image_has_one_sample_that_can_not_be_read(tmp_path: Path, images: list[Any]) -> None:
    columns = {"image": images, "label": [0, 0], "split": ["train", "train"]}
    train = opened(write_parquet(tmp_path / "held.parquet", columns), val_share=0.5)
    read = {}
    for split in train.splits:
        dataset = train.open(split)
        for index in range(len(dataset)):
            read[dataset.locate(index)[-1]] = (dataset, index)
    assert read["1"][0].read(read["1"][1]) == b"a"
    with pytest.raises(OSError, match="no image here"):
        read["2"][0].read(read["2"][1])


@pytest.mark.parametrize(
    "metadata",
    [
        b"{",
        b"\xff",
        b"[]",
        b'{"info": null}',
        b'{"info": {"features": [1]}}',
        b'{"info": {"features": {"label": "names"}}}',
        b'{"info": {"features": {"label": {"names": 3}}}}',
        b'{"info": {"features": {"label": {"names": ["cat", "cat"]}}}}',
    ],
)
def test_broken_metadata_of_hugging_face_is_ignored(tmp_path: Path, metadata: bytes) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"image": [b"a", b"b"], "label": [3, 4]}).replace_schema_metadata({b"huggingface": metadata})
    parquet.write_table(table, tmp_path / "held.parquet")
    assert opened(tmp_path / "held.parquet").open("train").level().classes == ("3", "4")


def test_a_manifest_without_labels_opens_where_none_are_needed(tmp_path: Path) -> None:
    path = write(tmp_path, "path,split\na/1.jpg,train\na/2.jpg,val\n")
    source = open_manifest(path, name="pets", needs_labels=False)
    assert [(source.open(split).levels, len(source.open(split))) for split in source.splits] == [({}, 1), ({}, 1)]
    with pytest.raises(ValueError, match="'label'"):
        open_manifest(path, name="pets")


# Faults


def test_several_faults_are_counted_or_noted_one_by_one(tmp_path: Path) -> None:
    rows = [
        "path,label,split",
        "a/1.jpg,cat,train",
        "a/2.jpg,,train",
        "a/3.jpg,dog",
        "a/\0.jpg,dog,val",
        "a/4.jpg,dog,val",
    ]
    path = write(tmp_path, "\n".join(rows))
    with pytest.raises(
        ValueError, match=r"list\.csv, line 3: no label given; it is the first of 3 faulty lines: `vitrail"
    ):
        opened(path)
    source = open_manifest(path, name="pets", faults="noted")
    assert [paths_of(source.open(split)) for split in source.splits] == [["a/1.jpg"], ["a/4.jpg"]]
    assert [note[:3] for note in source.notes if note.is_serious and note.problem == "faulty line"] == [
        ("faulty line", "line 3", "no label given"),
        ("faulty line", "line 4", "2 cells, but the header names 3 columns"),
        ("faulty line", "line 5", "the path 'a/\\x00.jpg' has a NUL byte in it, as no file's name has"),
    ]


def test_a_manifest_whose_lines_are_all_faulty_is_an_error_in_any_case(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the first of 2 faulty lines"):
        open_manifest(write(tmp_path, "path,label\na\n,b\n"), name="pets", faults="noted")


def test_faulty_rows_of_a_table_of_images_are_left_out(tmp_path: Path) -> None:
    columns = {"image": [b"one", b"two", b"three", b"four"], "label": ["x", None, "y", "y"], "split": ["train"] * 4}
    source = open_manifest(write_parquet(tmp_path / "held.parquet", columns), name="h", val_share=0.0, faults="noted")
    train = source.open("train")
    assert [(train.read(index), train.locate(index)[-2:]) for index in range(3)] == [
        (b"one", "!1"),
        (b"three", "!3"),
        (b"four", "!4"),
    ]


@pytest.mark.parametrize(
    "content",
    [
        "root:x:0:0:root:/root:/bin/bash\ndaemon:x:1:1::/usr/sbin:/bin/false\n",
        "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBg\n",
        "correct horse battery staple\nanother\n",
        "aws_key=AKIA123,secret=abc\n1,2\n",
        "AKIA1234/x,label,label\n",
    ],
)
def test_a_file_that_is_no_manifest_is_not_shown(tmp_path: Path, content: str) -> None:
    with pytest.raises(ValueError, match=r"list\.csv has") as caught:
        opened(write(tmp_path, content))
    words = [word for word in re.split(r"\W+", content) if len(word) > 3 and word != "label"]
    assert not [word for word in words if word in str(caught.value).replace(str(tmp_path), "")]


# Several labels


MANY = """path,{column},split
a/1.jpg,cat{mark}dog,train
a/2.jpg,dog,train
a/3.jpg,cat,train
a/4.jpg,dog{mark} cat,val
"""


@pytest.mark.parametrize("mark", [";", "|"])
@pytest.mark.parametrize("column", ["label", "Labels", "tags"])
def test_cells_of_several_labels(tmp_path: Path, mark: str, column: str) -> None:
    source = opened(write(tmp_path, MANY.format(mark=mark, column=column)))
    level = source.open("train").level()
    assert (level.classes, level.is_multiple) == (("cat", "dog"), True)
    assert level.labels.tolist() == [[True, True], [False, True], [True, False]]
    assert source.open("val").level().labels.tolist() == [[True, True]]
    assert "several labels" in [note.problem for note in source.notes]


def test_a_mark_in_the_name_of_a_class_is_left_there(tmp_path: Path) -> None:
    source = opened(write(tmp_path, ROWS.replace("cat", "cat|small")))
    assert source.open("train").level().classes == ("cat|small", "dog")
    assert [note.problem for note in source.notes] == ["mark in labels"]


def test_a_column_of_several_labels_may_be_empty(tmp_path: Path) -> None:
    source = opened(write(tmp_path, "path,labels,split\na/1.jpg,,train\na/2.jpg,cat,train\na/3.jpg,dog,val\n"))
    assert source.open("train").level().labels.tolist() == [[False, False], [True, False]]


def test_a_column_of_several_labels_that_has_one_a_row_is_a_column_of_labels(tmp_path: Path) -> None:
    assert not opened(write(tmp_path, ROWS.replace("label", "labels"))).open("train").level().is_multiple


@pytest.mark.parametrize("column", ["labels", "label"])
def test_several_rows_of_a_file(tmp_path: Path, column: str) -> None:
    rows = "a/1.jpg,cat\na/1.jpg,dog\n./a/2.jpg,dog\na/2.jpg,bird\na/3.jpg,cat\n"
    source = opened(write(tmp_path, f"path,{column}\n{rows}"), val_share=0.0)
    train = source.open("train")
    assert paths_of(train) == ["a/1.jpg", "./a/2.jpg", "a/3.jpg"]
    assert train.level().labels.tolist() == [[False, True, True], [True, False, True], [False, True, False]]
    assert not [note for note in source.notes if note.is_serious]


def test_rows_of_a_file_in_two_splits_are_noted(tmp_path: Path) -> None:
    rows = "a/1.jpg,cat,train\na/1.jpg,dog,val\na/2.jpg,dog,val\na/3.jpg,cat,train\n"
    source = opened(write(tmp_path, f"path,labels,split\n{rows}"))
    assert [(note.problem, note.place) for note in source.notes if note.is_serious and "split" in note.problem] == [
        ("file in two splits", "a/1.jpg")
    ]


def test_a_column_for_each_class(tmp_path: Path) -> None:
    text = "path,zebra,ant,split\na/1.jpg,1,1,train\na/2.jpg,0,0,train\na/3.jpg,0,1,val\n"
    source = opened(write(tmp_path, text))
    assert source.open("train").level().classes == ("zebra", "ant")
    assert source.open("train").level().labels.tolist() == [[True, True], [False, False]]
    assert "columns of classes" in [note.problem for note in source.notes]
    one_hot = opened(write(tmp_path, "path,a,b,c\na/1.jpg,0,1,0\na/2.jpg,0.0,0,1\na/3.jpg,true,0,0\n"), val_share=0.0)
    assert one_hot.open("train").level().labels.tolist() == [1, 2, 0]


def test_parquet_columns_of_yes_and_no(tmp_path: Path) -> None:
    columns = {"image": [b"a", b"b", b"c"], "cat": [True, True, False], "dog": [False, True, True]}
    train = opened(write_parquet(tmp_path / "held.parquet", columns), val_share=0.0).open("train")
    assert train.level().labels.tolist() == [[True, False], [True, True], [False, True]]


def test_images_of_several_labels_are_split_by_their_rarest(tmp_path: Path) -> None:
    rows = "".join(f"a/{row}.jpg,common{';rare' * (row % 10 == 0)}\n" for row in range(1, 101))
    source = opened(write(tmp_path, f"path,labels\n{rows}"), val_share=0.2)
    assert source.open("val").level().labels.sum(axis=0).tolist() == [20, 2]


def test_images_of_no_class_at_all_are_split_like_others() -> None:
    assert rarest_of_each(Level((), np.zeros((3, 0), dtype=bool))).tolist() == [-1, -1, -1]
