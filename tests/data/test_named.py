import json
import pickle
import sys
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
import torchvision

from vitrail.data.contract import Dataset
from vitrail.data.datasets import open_source
from vitrail.data.sources.cifar import COARSE_CLASSES
from vitrail.data.sources.named import default_root, open_named
from vitrail.data.sources.names import NAMED


def write_cifar(root: Path, monkeypatch: pytest.MonkeyPatch, *, number: int, fine: list[int], names: list[str]) -> None:
    """Files like those of CIFAR, small; torchvision's checksums are those of the real ones, so they are taken away."""
    reader = {10: torchvision.datasets.CIFAR10, 100: torchvision.datasets.CIFAR100}[number]
    key = "labels" if number == 10 else "fine_labels"
    meta_key = "label_names" if number == 10 else "fine_label_names"
    folder = root / reader.base_folder
    folder.mkdir(parents=True)
    for file, value in (("train", 10), ("test", 200)):
        planes = np.full((len(fine), 3, 32, 32), value, dtype=np.uint8)
        planes[:, 0] += np.arange(len(fine), dtype=np.uint8)[:, None, None]
        (folder / file).write_bytes(pickle.dumps({"data": planes.reshape(len(fine), -1), key: fine}))
    (folder / "names").write_bytes(pickle.dumps({meta_key: names}))
    monkeypatch.setattr(reader, "train_list", [["train", None]])
    monkeypatch.setattr(reader, "test_list", [["test", None]])
    monkeypatch.setattr(reader, "meta", {"filename": "names", "key": meta_key, "md5": None})


def write_idx(path: Path, array: np.ndarray) -> None:
    header = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    path.write_bytes(header + array.tobytes())


def test_cifar10_is_read_as_arrays_and_its_test_is_val(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"class{index}" for index in range(10)]
    write_cifar(tmp_path, monkeypatch, number=10, fine=[3, 1, 4], names=names)
    source = open_named("cifar10", tmp_path, download=False)
    assert source.splits == ("train", "val")
    train, val = source.open("train"), source.open("val")
    image = train.read(2)
    assert isinstance(image, np.ndarray)
    assert image.shape == (32, 32, 3)
    assert image[0, 0].tolist() == [12, 10, 10]
    assert np.asarray(val.read(0))[5, 5].tolist() == [200, 200, 200]
    assert train.level().labels.tolist() == [3, 1, 4]
    assert train.level("label").classes == tuple(names)
    assert source.open("test") is val


def test_cifar100_has_its_fine_labels_first_and_then_the_coarse_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = sorted(name for fine in COARSE_CLASSES.values() for name in fine)
    write_cifar(tmp_path, monkeypatch, number=100, fine=[0, 99, 4], names=names)
    train = open_named("cifar100", tmp_path, download=False).open("train")
    assert list(train.levels) == ["label", "coarse"]
    fine, coarse = train.level("label"), train.level("coarse")
    assert [fine.classes[label] for label in fine.labels] == ["apple", "worm", "beaver"]
    assert [coarse.classes[label] for label in coarse.labels] == [
        "fruit_and_vegetables",
        "non-insect_invertebrates",
        "aquatic_mammals",
    ]


def test_the_superclasses_of_cifar100_are_twenty_of_five_different_classes_in_alphabetical_order() -> None:
    assert [len(fine) for fine in COARSE_CLASSES.values()] == [5] * 20
    assert len({name for fine in COARSE_CLASSES.values() for name in fine}) == 100
    assert list(COARSE_CLASSES) == sorted(COARSE_CLASSES)


def test_fashion_mnist_is_read_as_grey_arrays(tmp_path: Path) -> None:
    folder = tmp_path / "FashionMNIST" / "raw"
    folder.mkdir(parents=True)
    for file, count in (("train", 3), ("t10k", 2)):
        write_idx(folder / f"{file}-images-idx3-ubyte", np.full((count, 28, 28), count, dtype=np.uint8))
        write_idx(folder / f"{file}-labels-idx1-ubyte", np.arange(count, dtype=np.uint8))
    source = open_named("fashion_mnist", tmp_path, download=False)
    assert [len(source.open(split)) for split in source.splits] == [3, 2]
    val = source.open("val")
    assert np.asarray(val.read(1)).shape == (28, 28)
    assert val.level().labels.dtype == np.int64
    assert val.level().classes[1] == "Trouser"


def test_food101_gives_the_files_without_decoding_them(tmp_path: Path) -> None:
    folder = tmp_path / "food-101"
    (folder / "meta").mkdir(parents=True)
    lists = {"train": {"waffles": ["waffles/1"], "baklava": ["baklava/2", "baklava/3"]}}
    lists["test"] = {"waffles": ["waffles/9"], "baklava": ["baklava/8"]}
    for split, content in lists.items():
        (folder / "meta" / f"{split}.json").write_text(json.dumps(content))
        for path in [path for paths in content.values() for path in paths]:
            image = folder / "images" / f"{path}.jpg"
            image.parent.mkdir(parents=True, exist_ok=True)
            image.write_bytes(path.encode())
    source = open_named("food101", tmp_path, download=False)
    train = source.open("train")
    assert train.level().classes == ("baklava", "waffles")
    assert train.level().labels.tolist() == [1, 0, 0]
    assert train.read(0) == b"waffles/1"
    assert train.locate(0) == str(folder / "images" / "waffles" / "1.jpg")
    assert len(source.open("test")) == 2


def test_oxford_pets_has_breeds_and_species(tmp_path: Path) -> None:
    folder = tmp_path / "oxford-iiit-pet"
    (folder / "images").mkdir(parents=True)
    (folder / "annotations").mkdir()
    (folder / "annotations" / "trainval.txt").write_text("great_dane_2 2 2 1\nSphynx_1 1 1 1\n")
    (folder / "annotations" / "test.txt").write_text("Sphynx_7 1 1 1\npug_3 3 2 2\n")
    source = open_source(f"oxford_pets:{tmp_path}")
    train, val = source.open("train"), source.open("val")
    assert train.level().classes == val.level().classes == ("Sphynx", "great_dane", "pug")
    assert (train.level().labels.tolist(), val.level().labels.tolist()) == ([1, 0], [0, 2])
    assert (train.level("species").labels.tolist(), val.level("species").labels.tolist()) == ([1, 0], [0, 1])
    assert train.locate(0) == str(folder / "images" / "great_dane_2.jpg")
    assert source.open("test") is val


def write_flowers(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six images in the layout of Flowers-102, two a split."""
    savemat = pytest.importorskip("scipy.io", reason="needs the extra scipy").savemat
    folder = root / "flowers-102"
    (folder / "jpg").mkdir(parents=True)
    for number in range(1, 7):
        (folder / "jpg" / f"image_{number:05d}.jpg").write_bytes(bytes([number]))
    savemat(folder / "imagelabels.mat", {"labels": np.array([[1, 102, 7, 7, 3, 9]])})
    savemat(folder / "setid.mat", {"trnid": [[4, 1]], "valid": [[5, 6]], "tstid": [[3, 2]]})
    files = {name: (file, None) for name, (file, _) in torchvision.datasets.Flowers102._file_dict.items()}
    monkeypatch.setattr(torchvision.datasets.Flowers102, "_file_dict", files)


def read_all(dataset: Dataset) -> list[bytes | np.ndarray]:
    return [dataset.read(index) for index in range(len(dataset))]


def test_flowers102_trains_on_train_and_val_and_reports_test_as_the_papers_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_flowers(tmp_path, monkeypatch)
    source = open_source(f"flowers102:{tmp_path}")
    train, val = source.open("train"), source.open("val")
    assert source.splits == ("train", "val")
    assert read_all(train) == [b"\x04", b"\x01", b"\x05", b"\x06"]
    assert train.level().labels.tolist() == [6, 0, 2, 8]
    assert read_all(val) == [b"\x03", b"\x02"]
    assert val.level().labels.tolist() == [6, 101]
    assert source.open("test") is val
    assert len(val.level().classes) == 102


def test_flowers102_has_its_three_official_splits_where_they_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_flowers(tmp_path, monkeypatch)
    source = open_source(f"flowers102:{tmp_path},protocol=official")
    assert source.splits == ("train", "val", "test")
    assert [len(source.open(split)) for split in source.splits] == [2, 2, 2]
    monkeypatch.setenv("VITRAIL_DATA", str(tmp_path))
    assert len(open_source("flowers102:protocol=official").open("train")) == 2


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("cifar10:/x,protocol=official", "cifar10 has no protocol 'official': only flowers102 has two"),
        ("flowers102:/x,protocol=mine", "flowers102 has no protocol 'mine'"),
        ("flowers102:/x,split=official", "flowers102 has no option 'split': it has protocol, and coarse"),
    ],
)
def test_a_protocol_that_is_none_is_an_error(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        open_source(spec)


def test_stanford_cars_are_read_where_they_were_put(tmp_path: Path) -> None:
    savemat = pytest.importorskip("scipy.io", reason="needs the extra scipy").savemat
    folder = tmp_path / "stanford_cars"
    for name in ("devkit", "cars_train", "cars_test"):
        (folder / name).mkdir(parents=True)
    fields = np.dtype([("class", "i4"), ("fname", "O")])
    train = np.array([(2, "00001.jpg"), (1, "00002.jpg")], dtype=fields)
    test = np.array([(1, "00001.jpg"), (2, "00002.jpg")], dtype=fields)
    savemat(folder / "devkit" / "cars_train_annos.mat", {"annotations": train})
    savemat(folder / "cars_test_annos_withlabels.mat", {"annotations": test})
    savemat(folder / "devkit" / "cars_meta.mat", {"class_names": np.array(["Acura", "Audi"], dtype=object)})
    (folder / "cars_train" / "00001.jpg").write_bytes(b"first")
    source = open_named("stanford_cars", tmp_path, download=False)
    assert source.open("train").level().labels.tolist() == [1, 0]
    assert source.open("train").level().classes == ("Acura", "Audi")
    assert source.open("train").read(0) == b"first"
    assert source.open("val").level().labels.tolist() == [0, 1]


@pytest.mark.parametrize("name", NAMED)
def test_a_data_set_that_is_not_there_is_an_error_of_one_line(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"{tmp_path}|scipy") as caught:
        open_named(name, tmp_path, download=False)
    assert "\n" not in str(caught.value)


def test_the_error_says_how_to_download(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cifar10 is not .* in .*: get it with download=True \(.*--download\)"):
        open_named("cifar10", tmp_path, download=False)


def test_stanford_cars_can_not_be_downloaded_and_the_error_says_what_to_put_where(
    tmp_path: Path,
) -> None:
    pytest.importorskip("scipy.io", reason="needs the extra scipy")
    with pytest.raises(ValueError, match=r"put cars_train/, .*devkit/cars_meta.mat into .*stanford_cars yourself"):
        open_named("stanford_cars", tmp_path, download=True)


@pytest.mark.parametrize("error", [URLError("no network"), RuntimeError("Error downloading x:\nTried y")])
def test_a_failed_download_is_an_error_of_one_line(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: object) -> None:
        raise error

    monkeypatch.setattr(torchvision.datasets.FashionMNIST, "download", fail)
    with pytest.raises(ValueError, match=r"fashion_mnist could not be .*downloaded to .*: ") as caught:
        open_named("fashion_mnist", tmp_path, download=True)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["flowers102", "stanford_cars"])
def test_without_scipy_the_error_names_the_extra(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(ValueError, match=r"scipy reads: pip install 'vitrail\[scipy\]'"):
        open_named(name, tmp_path, download=False)


def test_an_unknown_name_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no data set is called 'cifar1000'"):
        open_named("cifar1000", tmp_path, download=False)


def test_the_default_folder_is_the_environments_or_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_DATA", str(tmp_path / "sets"))
    assert default_root() == tmp_path / "sets"
    with pytest.raises(ValueError, match=r"inaturalist2018 is not in .*sets.inaturalist2018"):
        open_named("inaturalist2018", None, download=False)
    monkeypatch.delenv("VITRAIL_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_root() == tmp_path / ".cache" / "vitrail" / "data"
