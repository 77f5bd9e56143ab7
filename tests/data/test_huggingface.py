import io
import multiprocessing
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from vitrail.data.sources.huggingface import open_huggingface

datasets = pytest.importorskip("datasets", reason="needs the extra hf")


@pytest.fixture(autouse=True)
def _keep_to_this_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()


def encode(value: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (3, 2), (value, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


def table(values: list[int], columns: dict[str, tuple[Any, list[Any]]]) -> Any:
    features = {"image": datasets.Image(), **{name: feature for name, (feature, _) in columns.items()}}
    images = [{"bytes": encode(value), "path": None} for value in values]
    content = {"image": images, **{name: column for name, (_, column) in columns.items()}}
    return datasets.Dataset.from_dict(content, features=datasets.Features(features))


def save(path: Path, splits: dict[str, Any]) -> str:
    datasets.DatasetDict(splits).save_to_disk(str(path))
    return f"hf://{path}"


def labelled(values: list[int], labels: list[int | None]) -> Any:
    return table(values, {"label": (datasets.ClassLabel(names=["cat", "dog"]), labels)})


def test_images_stay_encoded_and_every_class_label_is_a_level(tmp_path: Path) -> None:
    fine, coarse = datasets.ClassLabel(names=["cat", "dog", "oak"]), datasets.ClassLabel(names=["animal", "plant"])
    note = datasets.Value("string")
    columns: dict[str, tuple[Any, list[Any]]] = {
        "coarse_label": (coarse, [1, 0]),
        "fine_label": (fine, [2, 0]),
        "note": (note, ["a", "b"]),
    }
    train = table([10, 20], columns)
    source = open_huggingface(save(tmp_path / "set", {"train": train, "validation": train}))
    assert source.splits == ("train", "val")
    dataset = source.open("train")
    assert list(dataset.levels) == ["label", "coarse"]
    assert dataset.level().classes == ("cat", "dog", "oak")
    assert dataset.level().labels.tolist() == [2, 0]
    assert dataset.level("coarse").labels.tolist() == [1, 0]
    assert dataset.read(1) == encode(20)
    assert dataset.locate(1) == f"hf://{tmp_path / 'set'}/train/1"
    assert source.notes == ()


def test_without_val_a_share_of_train_is_set_aside_and_test_stays(tmp_path: Path) -> None:
    location = save(tmp_path / "set", {"train": labelled(list(range(20)), [0, 1] * 10), "test": labelled([99], [1])})
    source = open_huggingface(location, val_share=0.2, seed=1)
    assert source.splits == ("train", "val", "test")
    train, val = source.open("train"), source.open("val")
    assert sorted(val.level().labels.tolist()) == [0, 0, 1, 1]
    assert len({part.locate(index) for part in (train, val) for index in range(len(part))}) == 20
    again = open_huggingface(location, val_share=0.2, seed=1).open("val")
    assert [again.read(index) for index in range(4)] == [val.read(index) for index in range(4)]


def test_rows_without_a_label_are_left_out(tmp_path: Path) -> None:
    splits = {"train": labelled([1, 2, 3], [0, None, 1]), "val": labelled([4], [0]), "test": labelled([5, 6], [-1, -1])}
    source = open_huggingface(save(tmp_path / "set", splits))
    assert source.splits == ("train", "val")
    train = source.open("train")
    assert train.level().labels.tolist() == [0, 1]
    assert train.read(1) == encode(3)
    noted = [(note.place, note.detail[:6]) for note in source.notes if note.problem == "label missing"]
    assert noted == [("train", "1 of 3"), ("test", "2 of 2")]


def test_splits_that_list_their_classes_in_other_orders_are_matched_by_name(tmp_path: Path) -> None:
    train = table([1, 2, 3], {"label": (datasets.ClassLabel(names=["cat", "dog", "ape"]), [0, 1, 2])})
    val = table([4, 5, 6, 7], {"label": (datasets.ClassLabel(names=["ape", "cow", "cat"]), [0, 1, 2, -1])})
    test = table([8, 9], {"label": (datasets.Value("string"), ["dog", None])})
    source = open_huggingface(save(tmp_path / "set", {"train": train, "validation": val, "test": test}))
    assert {source.open(split).level().classes for split in source.splits} == {("cat", "dog", "ape", "cow")}
    assert source.open("train").level().labels.tolist() == [0, 1, 2]
    assert source.open("val").level().labels.tolist() == [2, 3, 0]
    assert source.open("test").level().labels.tolist() == [1]


@pytest.mark.parametrize("order", [("train", "test", "val"), ("test", "train", "val")])
def test_a_split_without_the_label_column_is_left_out_and_noted(tmp_path: Path, order: tuple[str, ...]) -> None:
    tables = {"train": labelled([1, 2], [0, 1]), "val": labelled([3, 4], [1, 0]), "test": table([5], {})}
    source = open_huggingface(save(tmp_path / "set", {split: tables[split] for split in order}))
    assert source.splits == ("train", "val")
    ((problem, place, detail, is_serious),) = source.notes
    assert (problem, place, is_serious) == ("column missing", "test", False)
    assert detail == "no column 'label' in this split: it was left out"


def test_labels_beside_the_main_ones_that_a_split_lacks_are_left_out_and_noted(tmp_path: Path) -> None:
    fine, coarse = datasets.ClassLabel(names=["cat", "dog"]), datasets.ClassLabel(names=["pet"])
    train = table([1, 2], {"label": (fine, [0, 1]), "coarse_label": (coarse, [0, 0])})
    source = open_huggingface(save(tmp_path / "set", {"train": train, "val": labelled([3, 4], [0, 1])}))
    assert list(source.open("train").levels) == list(source.open("val").levels) == ["label"]
    assert [(note.place, note.detail) for note in source.notes] == [
        ("coarse_label", "not in val: these labels were left out")
    ]


def test_a_class_that_is_missing_or_misspelt_in_one_split_is_noted(tmp_path: Path) -> None:
    text = datasets.Value("string")
    train = table([1, 2, 3], {"label": (text, ["zebra", "Horse", "horse"])})
    val = table([4, 5, 6], {"label": (text, ["zebro", "Horse", "horse"])})
    notes = open_huggingface(save(tmp_path / "set", {"train": train, "val": val})).notes
    assert [(note.problem, note.place) for note in notes] == [
        ("class names alike", "Horse"),
        ("class missing", "zebra"),
        ("class missing", "zebro"),
    ]


@pytest.mark.parametrize(
    ("kind", "values", "classes", "labels"),
    [
        ("string", ["b", "a", "b"], ("a", "b"), [1, 0, 1]),
        ("int32", [10, 9, 10], ("9", "10"), [1, 0, 1]),
    ],
)
def test_a_plain_column_called_label_will_do(
    tmp_path: Path, kind: str, values: list[Any], classes: tuple[str, ...], labels: list[int]
) -> None:
    train = table([1, 2, 3], {"id": (datasets.Value("int64"), [7, 8, 9]), "label": (datasets.Value(kind), values)})
    val = table([1], {"id": (datasets.Value("int64"), [7]), "label": (datasets.Value(kind), values[:1])})
    source = open_huggingface(save(tmp_path / "set", {"train": train, "val": val}))
    assert source.open("train").level().classes == source.open("val").level().classes == classes
    assert source.open("train").level().labels.tolist() == labels


def test_a_single_table_on_disk_is_train(tmp_path: Path) -> None:
    labelled(list(range(10)), [0, 1] * 5).save_to_disk(str(tmp_path / "set"))
    source = open_huggingface(str(tmp_path / "set"))
    assert source.splits == ("train", "val")
    assert len(source.open("train")) == 8


def test_a_folder_of_images_is_read_from_its_files(tmp_path: Path) -> None:
    for split in ("train", "validation"):
        for value, name in enumerate(("cat", "dog")):
            path = tmp_path / "images" / split / name / "1.png"
            path.parent.mkdir(parents=True)
            path.write_bytes(encode(value))
    source = open_huggingface(f"hf://{tmp_path / 'images'}")
    assert source.splits == ("train", "val")
    val = source.open("val")
    assert val.level().classes == ("cat", "dog")
    assert [val.read(index) for index in range(2)] == [encode(label) for label in val.level().labels]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_data_set_reaches_other_processes(tmp_path: Path, method: str) -> None:
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"this system can't {method}")
    splits = {"train": labelled([1, 2], [0, 1]), "val": labelled([3], [0])}
    dataset = open_huggingface(save(tmp_path / "set", splits)).open("val")
    assert pickle.loads(pickle.dumps(dataset)).read(0) == encode(3)
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.apply(dataset.read, (0,)) == encode(3)


def test_a_missing_image_is_an_error_of_reading(tmp_path: Path) -> None:
    train = datasets.Dataset.from_dict(
        {"image": [None, {"bytes": encode(1), "path": None}], "label": [0, 1]},
        features=datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])}),
    )
    dataset = open_huggingface(save(tmp_path / "set", {"train": train, "val": train})).open("train")
    with pytest.raises(OSError, match="no image here"):
        dataset.read(0)


def test_tables_without_images_or_labels_are_errors(tmp_path: Path) -> None:
    text = datasets.Dataset.from_dict({"text": ["a"], "label": [1]})
    with pytest.raises(ValueError, match="has no column of images; its columns are: text, label"):
        open_huggingface(save(tmp_path / "text", {"train": text}))
    with pytest.raises(ValueError, match="has no column of class labels, nor one called label; it has: image"):
        open_huggingface(save(tmp_path / "images", {"train": table([1], {})}))
    with pytest.raises(ValueError, match="has no labelled images"):
        open_huggingface(save(tmp_path / "unlabelled", {"train": labelled([1], [None])}))


@pytest.mark.parametrize(
    "location", ["hf://name", "hf://a/b/c", "hf://a/b:", "hf://", "hf://..", "hf://../..", "hf://./a", "hf://~/a"]
)
def test_an_address_of_another_form_is_an_error(location: str) -> None:
    with pytest.raises(ValueError, match="is not of the form hf://owner/name"):
        open_huggingface(location)


def test_an_address_of_the_hub_never_means_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "owner/name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=rf"here lies a folder owner/name: write hf://{tmp_path}/owner/name for the"):
        open_huggingface("hf://owner/name")


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no folder .*nowhere"):
        open_huggingface(f"hf://{tmp_path}/nowhere")


@pytest.mark.parametrize(
    ("location", "arguments"),
    [
        ("hf://owner/name", ("owner/name", None, None)),
        ("hf://owner/name:small", ("owner/name", "small", None)),
        ("hf://owner/name@v1:small", ("owner/name", "small", "v1")),
    ],
)
def test_the_hub_is_asked_for_the_repository_the_configuration_and_the_revision(
    monkeypatch: pytest.MonkeyPatch, location: str, arguments: tuple[str | None, ...]
) -> None:
    asked: list[tuple[str | None, ...]] = []

    def load_dataset(path: str, *, name: str | None, revision: str | None) -> Any:
        asked.append((path, name, revision))
        return datasets.DatasetDict({"train": labelled([1], [0]), "validation": labelled([2], [1])})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    source = open_huggingface(location)
    assert asked == [arguments]
    assert source.name == location
    assert source.open("val").read(0) == encode(2)


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("Couldn't reach the Hub\nmore"),
        FileNotFoundError("Dataset 'owner/name' doesn't exist on the Hub\nmore"),
        ValueError("Config name is missing.\nPlease pick one among the available configs: ['a', 'b']"),
    ],
)
def test_errors_of_the_hub_are_one_line(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def load_dataset(path: str, *, name: str | None, revision: str | None) -> Any:
        raise error

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(ValueError, match="hf://owner/name could not be opened: ") as caught:
        open_huggingface("hf://owner/name")
    assert "\n" not in str(caught.value)
    assert str(error).splitlines()[0] in str(caught.value)


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r"pip install 'vitrail\[hf\]'"):
        open_huggingface("hf://owner/name")
