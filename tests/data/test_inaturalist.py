import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from vitrail.data.sources.inaturalist import open_inaturalist

SPECIES = [
    # name, genus, family, order, class, phylum, kingdom
    ("Corvus corax", "Corvus", "Corvidae", "Passeriformes", "Aves", "Chordata", "Animalia"),
    ("Corvus corone", "Corvus", "Corvidae", "Passeriformes", "Aves", "Chordata", "Animalia"),
    ("Rosa canina", "Rosa", "Rosaceae", "Rosales", "Magnoliopsida", "Tracheophyta", "Plantae"),
]
RANKS = ("name", "genus", "family", "order", "class", "phylum", "kingdom")
TAXONOMY = [{"id": number, **dict(zip(RANKS, names, strict=True))} for number, names in enumerate(SPECIES)]
OBFUSCATED = [{"id": number, "name": str(number), "supercategory": "x"} for number in range(3)]


def write(root: Path, *, year: int, split: str, labels: list[int], categories: list[dict[str, Any]]) -> None:
    images, annotations = [], []
    for place, label in enumerate(labels):
        number = 100 * len(split) + place
        name = f"train_val{year}/Group/{label}/{split}{place}.jpg"
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (label, place, 0)).save(root / name)
        images.append({"id": number, "file_name": name})
        annotations.append({"id": number, "image_id": number, "category_id": label})
    content = {"images": images, "annotations": annotations[::-1], "categories": categories[::-1]}
    (root / f"{split}{year}.json").write_text(json.dumps(content))


def check_seven_levels(root: Path, year: int) -> None:
    source = open_inaturalist(root, year=year)
    assert source.splits == ("train", "val")
    assert source.notes == ()
    train, val = source.open("train"), source.open("val")
    assert list(train.levels) == ["label", "genus", "family", "order", "class", "phylum", "kingdom"]
    assert train.level().classes == ("Corvus corax", "Corvus corone", "Rosa canina")
    assert train.level().labels.tolist() == [2, 0, 1, 0]
    assert train.level("genus").classes == ("Corvus", "Rosa")
    assert train.level("genus").labels.tolist() == [1, 0, 0, 0]
    assert train.level("kingdom").classes == val.level("kingdom").classes == ("Animalia", "Plantae")
    assert val.level("phylum").labels.tolist() == [0, 1]
    path = root / f"train_val{year}" / "Group" / "2" / "train0.jpg"
    assert train.locate(0) == str(path)
    assert train.read(0) == path.read_bytes()


def test_2019_has_its_seven_levels_in_its_lists(tmp_path: Path) -> None:
    write(tmp_path, year=2019, split="train", labels=[2, 0, 1, 0], categories=TAXONOMY)
    write(tmp_path, year=2019, split="val", labels=[1, 2], categories=TAXONOMY)
    check_seven_levels(tmp_path, 2019)


@pytest.mark.parametrize("content", [TAXONOMY, {"categories": TAXONOMY}])
def test_2018_has_its_seven_levels_in_a_file_of_their_own(tmp_path: Path, content: Any) -> None:
    write(tmp_path, year=2018, split="train", labels=[2, 0, 1, 0], categories=OBFUSCATED)
    write(tmp_path, year=2018, split="val", labels=[1, 2], categories=OBFUSCATED)
    (tmp_path / "categories.json").write_text(json.dumps(content))
    check_seven_levels(tmp_path, 2018)


def test_levels_that_are_not_named_are_left_out_and_noted(tmp_path: Path) -> None:
    write(tmp_path, year=2018, split="train", labels=[2, 0], categories=OBFUSCATED)
    write(tmp_path, year=2018, split="val", labels=[1, 2], categories=OBFUSCATED)
    source = open_inaturalist(tmp_path, year=2018)
    assert list(source.open("val").levels) == ["label"]
    assert source.open("val").level().classes == ("0", "1", "2")
    assert {note.place for note in source.notes} == set(RANKS[1:])
    assert "put categories.json" in source.notes[0].detail


def test_species_of_one_name_stay_apart(tmp_path: Path) -> None:
    categories = [{**category, "name": "alba"} for category in TAXONOMY]
    write(tmp_path, year=2019, split="val", labels=[1, 2], categories=categories)
    val = open_inaturalist(tmp_path, year=2019).open("val")
    assert val.level().classes == ("alba (0)", "alba (1)", "alba (2)")


def test_without_val_a_share_of_train_is_set_aside(tmp_path: Path) -> None:
    write(tmp_path, year=2019, split="train", labels=[0, 0, 0, 2, 2, 2], categories=TAXONOMY)
    source = open_inaturalist(tmp_path, year=2019)
    assert source.open("val").level().labels.tolist() == [0, 2]
    assert len(source.open("train")) == 4
    assert list(source.open("val").levels) == ["label", *RANKS[1:]]


def test_data_that_is_not_there_is_an_error_that_names_the_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"inaturalist2018 is not in .*: unpack train_val2018.tar.gz, train2018.json"):
        open_inaturalist(tmp_path, year=2018)


def test_lists_without_the_images_are_an_error(tmp_path: Path) -> None:
    write(tmp_path, year=2019, split="val", labels=[1], categories=TAXONOMY)
    (tmp_path / "train_val2019" / "Group" / "1" / "val0.jpg").unlink()
    with pytest.raises(ValueError, match=r"val0.jpg is missing: unpack train_val2019.tar.gz"):
        open_inaturalist(tmp_path, year=2019)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"val2019.json can't be read \(it is not JSON: .*\): unpack it anew"),
        ("[]", r"val2019.json holds no list of categories"),
        ('{"categories": [{"id": 0}]}', r"val2019.json holds no list of categories with id and name"),
        ('{"categories": [{"id": 0, "name": "a"}]}', r"is not a list of images and annotations"),
        (
            '{"categories": [{"id": 0, "name": "a"}], "images": [{"id": 1, "file_name": "a"}],'
            ' "annotations": [{"image_id": 1, "category_id": 7}]}',
            r"that fit its categories \(7\)",
        ),
        ('{"categories": [{"id": 0, "name": "a"}], "images": [], "annotations": []}', r"lists no images"),
    ],
)
def test_a_wrong_list_is_an_error_of_one_line(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "val2019.json").write_text(content)
    with pytest.raises(ValueError, match=message) as caught:
        open_inaturalist(tmp_path, year=2019)
    assert "\n" not in str(caught.value)
