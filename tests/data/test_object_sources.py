"""Annotations of objects in COCO's, YOLO's and VOC's form are read, and what is wrong with them is told in one line."""

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dense_folders import HEIGHT, WIDTH, box_row, make_mask, voc_xml, write_coco, write_image, write_mask
from pycocotools import mask as coco_mask

from vitrail.data.dense.contract import DetectionData
from vitrail.data.dense.dense_sources import DenseOpening
from vitrail.data.dense.opening import open_detection, open_detection_source
from vitrail.data.dense.samples import ObjectSamples
from vitrail.data.loader import Loader
from vitrail.data.sampler import Sampler
from vitrail.settings.data import DataSettings

ROWS = [box_row(1, 7, (2, 3, 4, 5)), box_row(1, 3, (0, 0, 8, 6), iscrowd=1), box_row(2, 3, (1, 1, 3, 3))]


def open_it(spec: object) -> DetectionData:
    return open_detection(DataSettings(spec=str(spec)))


def write_small_coco(root: Path, annotations: list[dict] | None = None) -> None:
    for split in ("train", "val"):
        for number in (1, 2):
            write_image(root / f"{split}2017/{number}.jpg", seed=number)
        write_coco(
            root / f"annotations/instances_{split}2017.json",
            ["1.jpg", "2.jpg"],
            ROWS if annotations is None else annotations,
        )


def test_coco_as_published(tmp_path: Path) -> None:
    write_small_coco(tmp_path)
    for spec in (f"coco:{tmp_path}", tmp_path):
        data = open_it(spec)
        assert (data.num_train, data.num_val, data.is_held_out) == (2, 2, False)
        assert (data.classes, data.category_ids, data.has_masks) == (("cat", "dog"), (3, 7), True)
    objects = data.train.read_objects(0)
    assert objects.boxes.tolist() == [[2, 3, 6, 8], [0, 0, 8, 6]]
    assert objects.labels.tolist() == [1, 0]
    assert objects.is_crowd.tolist() == [False, True]
    assert objects.areas.tolist() == [20, 48]
    assert objects.masks.shape == (2, HEIGHT, WIDTH)
    assert objects.masks.sum(axis=(1, 2)).tolist() == [20, 48]
    assert (data.train.image_id(1), data.train.size(0)) == (2, (HEIGHT, WIDTH))
    assert data.describe()["category_ids"] == [3, 7]


def test_roboflow_and_single_files(tmp_path: Path) -> None:
    for split in ("train", "valid"):
        write_image(tmp_path / f"robo/{split}/a.jpg")
        write_coco(tmp_path / f"robo/{split}/_annotations.coco.json", ["a.jpg"], [box_row(1, 3, (1, 1, 2, 2))])
    assert open_it(f"coco:{tmp_path}/robo").num_val == 1
    names = [f"{number}.jpg" for number in range(10)]
    for name in names:
        write_image(tmp_path / "one" / "images" / name)
    write_coco(tmp_path / "one/annotations/default.json", names, [box_row(1, 3, (1, 1, 2, 2))])
    data = open_it(f"coco:{tmp_path}/one")
    assert (data.num_train, data.num_val, data.is_held_out) == (9, 1, True)


def test_run_lengths_of_both_forms(tmp_path: Path) -> None:
    mask = np.zeros((HEIGHT, WIDTH), dtype=np.uint8)
    mask[2:5, 3:9], mask[3, 4] = 1, 0
    text = coco_mask.encode(np.asfortranarray(mask))
    flat = mask.T.reshape(-1)
    edges = np.flatnonzero(np.diff(flat)) + 1
    numbers = np.diff([0, *edges, len(flat)]).tolist()
    runs = [{"size": [HEIGHT, WIDTH], "counts": text["counts"].decode()}, {"size": [HEIGHT, WIDTH], "counts": numbers}]
    write_small_coco(tmp_path, [box_row(1, 3, (3, 2, 6, 3), segmentation=run) for run in runs])
    found = open_it(f"coco:{tmp_path}").train.read_objects(0)
    assert np.array_equal(found.masks[0], mask)
    assert np.array_equal(found.masks[1], mask)


def test_what_has_no_area_is_left_out_and_what_sticks_out_is_cut_off(tmp_path: Path) -> None:
    boxes = [(2, 2, 0, 5), (-3, -2, 8, 8), (100, 100, 5, 5), (10, 8, 50, 50)]
    write_small_coco(tmp_path, [box_row(1, 3, box) for box in boxes])
    data = open_it(f"coco:{tmp_path}")
    assert data.train.read_objects(0).boxes.tolist() == [[0, 0, 5, 6], [10, 8, 16, 12]]
    [batch] = Loader(data.train, make=ObjectSamples(), sampler=Sampler(2, batch_size=2, is_training=False)).epoch(0)
    assert [len(objects.labels) for objects in batch.objects] == [2, 0]
    assert batch.images.shape == (2, 3, 32, 32)


def test_objects_without_masks_leave_boxes_alone(tmp_path: Path) -> None:
    write_small_coco(tmp_path, [box_row(1, 3, (1, 1, 3, 3)), box_row(1, 3, (2, 2, 3, 3), segmentation=[])])
    data = open_it(f"coco:{tmp_path}")
    assert not data.has_masks
    assert data.train.read_objects(0).masks is None
    assert [note.problem for note in data.notes] == ["objects without mask"] * 2


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([box_row(1, 9, (1, 1, 2, 2))], "annotation 1 has the category 9, which is not in the list"),
        ([box_row(5, 3, (1, 1, 2, 2))], "annotation 1 is of the image 5, which is not there"),
        ([box_row(1, 3, (5, 5, -2, 2))], "size -2 x 2: write x, y, width, height"),
        ([box_row(1, 3, (1, 1, 2, 2), bbox=[1, 2])], "its bbox is [1, 2]: write four numbers"),
        ([box_row(1, 3, (1, 1, 2, 2), bbox=["a", 1, 2, 3])], "its bbox is ['a', 1, 2, 3]: write four numbers"),
        ([{"image_id": 1, "category_id": 3}], "annotation 1: it has no bbox"),
        ([box_row(1, 3, (1, 1, 2, 2), area="b")], "its area is 'b', which is no number"),
        ([box_row(1, 3, (1, 1, 2, 2), segmentation=[["a"] * 6])], "no list of polygons"),
        ([box_row(1, 3, (1, 1, 2, 2), segmentation={"size": [3, 3], "counts": [9]})], "its mask is [3, 3]"),
        ([box_row(1, 3, (1, 1, 2, 2), segmentation={"size": [12, 16], "counts": [9]})], "have 9 pixels"),
        ([box_row(1, 3, (1, 1, 2, 2), segmentation=[[1, 2, 3, 4, 5, 6, 7]])], "a polygon has 7 numbers"),
    ],
)
def test_annotations_that_are_wrong(tmp_path: Path, rows: list[dict], told: str) -> None:
    write_small_coco(tmp_path, rows)
    with pytest.raises(ValueError, match="instances_train2017") as caught:
        open_it(f"coco:{tmp_path}")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
    source = open_detection_source(f"coco:{tmp_path}", DenseOpening(faults="noted"))
    assert len(source.notes) == 2
    assert all(note.is_serious for note in source.notes)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({"annotations": [], "categories": [{"id": 1, "name": "a"}]}, "lists no images"),
        ({"images": [{"id": 1, "file_name": "1.jpg"}], "annotations": []}, "lists no categories"),
        ([], "must hold an object"),
        ({"images": [{"id": "x", "file_name": "1.jpg"}], "categories": [{"id": 1, "name": "a"}]}, "not a whole number"),
        ({"images": [{"id": 1}], "categories": [{"id": 1, "name": "a"}]}, "an image has no file_name"),
        (
            {"images": [{"id": 1, "file_name": "x.jpg"}], "categories": [{"id": 1, "name": "a"}]},
            "are not there: looked in",
        ),
        ({"images": [{"id": 1, "file_name": "1.jpg"}] * 2, "categories": [{"id": 1, "name": "a"}]}, "of one id"),
    ],
)
def test_coco_files_that_are_wrong(tmp_path: Path, content: object, told: str) -> None:
    write_small_coco(tmp_path)
    (tmp_path / "annotations/instances_train2017.json").write_text(json.dumps(content))
    (tmp_path / "annotations/instances_val2017.json").unlink()
    with pytest.raises(ValueError, match=told) as caught:
        open_it(f"coco:{tmp_path}")
    assert "instances_train2017.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_whatever_a_file_holds_is_read_or_refused_in_a_line(tmp_path: Path) -> None:
    write_small_coco(tmp_path)
    path = tmp_path / "annotations/instances_train2017.json"
    sound = json.loads(path.read_text())
    random = np.random.RandomState(0)
    values: list[Any] = [
        None,
        -1,
        10**30,
        1e300,
        "x",
        [],
        {},
        [[]],
        True,
        [1, 2, 3, 4, 5, 6, 7, 8],
        {"size": [12, 16], "counts": "1"},
    ]
    told: list[str] = []
    for _ in range(150):
        content = json.loads(json.dumps(sound))
        node = content
        while True:  # to any place in it
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            key = keys[random.randint(len(keys))]
            if not isinstance(node[key], (dict, list)) or not node[key] or random.uniform() < 0.25:
                break
            node = node[key]
        node[key] = values[random.randint(len(values))]
        path.write_text(json.dumps(content))
        try:
            data = open_it(f"coco:{tmp_path}")
        except ValueError as error:
            told.append(str(error))
            with contextlib.suppress(ValueError):  # as `vitrail check` opens it
                open_detection_source(f"coco:{tmp_path}", DenseOpening(faults="noted"))
        else:
            loader = Loader(data.train, make=ObjectSamples(), sampler=Sampler(2, batch_size=1, is_training=False))
            with contextlib.suppress(ValueError):  # that too many samples are broken
                list(loader.epoch(0))
    assert len(told) > 30
    assert all("instances_" in line and "\n" not in line for line in told)


def test_an_image_of_another_size_is_left_out(tmp_path: Path) -> None:
    write_small_coco(tmp_path)
    write_image(tmp_path / "train2017/2.jpg", size=(9, 9))
    data = open_it(f"coco:{tmp_path}")
    loader = Loader(data.train, make=ObjectSamples(), sampler=Sampler(2, batch_size=2, is_training=False))
    with pytest.raises(ValueError, match="1 of 2 readings of samples failed"):
        list(loader.epoch(0))


# YOLO


@pytest.mark.parametrize("layout", ["images/{}", "{}/images"])
def test_yolo_with_splits(tmp_path: Path, layout: str) -> None:
    for split in ("train", "val"):
        place = layout.format(split)
        write_image(tmp_path / place / "a.jpg")
        write_image(tmp_path / place / "b.jpg")
        labels = tmp_path / place.replace("images", "labels")
        labels.mkdir(parents=True)
        (labels / "a.txt").write_text("1 0.5 0.5 0.25 0.5\n\n0 0.125 0.25 0.25 0.5\n")
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    data = open_it(f"yolo:{tmp_path}")
    assert (data.num_train, data.num_val, data.classes, data.has_masks) == (2, 2, ("cat", "dog"), False)
    assert data.category_ids == (0, 1)
    assert data.train.read_objects(0).boxes.tolist() == [[6, 3, 10, 9], [0, 0, 4, 6]]
    assert data.train.read_objects(0).labels.tolist() == [1, 0]
    assert len(data.train.read_objects(1).labels) == 0  # an image without a text file


def test_yolo_by_its_table_with_polygons(tmp_path: Path) -> None:
    for split in ("train", "valid"):
        write_image(tmp_path / f"{split}/images/a.jpg")
        (tmp_path / f"{split}/labels").mkdir()
        (tmp_path / f"{split}/labels/a.txt").write_text("0 0.25 0.25 0.75 0.25 0.75 0.75 0.25 0.75\n")
    (tmp_path / "data.yaml").write_text("train: ../train/images\nval: ../valid/images\nnames: {0: cat, 1: dog}\n")
    for spec in (f"yolo:{tmp_path}", f"yolo:{tmp_path}/data.yaml", tmp_path):
        data = open_it(spec)
        assert (data.num_train, data.num_val, data.has_masks) == (1, 1, True)
    objects = data.val.read_objects(0)
    assert objects.boxes.tolist() == [[4, 3, 12, 9]]
    assert objects.masks[0, 3:9, 4:12].all()
    assert objects.masks.sum() == 48


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("2 0.5 0.5 0.1 0.1", "its class is 2: there are 2, from 0"),
        ("-1 0.5 0.5 0.1 0.1", "its class is -1"),
        ("0 0.5 0.5 0.1", "it has 4 numbers"),
        ("0 100 50 30 30", "its places are in pixels"),
        ("0 0.5 0.5 -0.1 0.1", "the size -0.1 x 0.1"),
        ("cat 0.5 0.5 0.1 0.1", "not all of it are numbers"),
        ("0 nan 0.5 0.1 0.1", "it has 5 numbers"),
    ],
)
def test_lines_that_are_wrong(tmp_path: Path, line: str, told: str) -> None:
    write_image(tmp_path / "images/a.jpg")
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels/a.txt").write_text(f"0 0.5 0.5 0.1 0.1\n{line}\n")
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    with pytest.raises(ValueError, match=r"labels/a\.txt: line 2: ") as caught:
        open_it(f"yolo:{tmp_path}")
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ("train: images\n", "it has no `names`"),
        ("names: [a\n", "is not valid YAML"),
        ("names: {1: a}\n", "numbered from 0"),
        ("names: [a]\ntrain: elsewhere\n", "names elsewhere, which is not there"),
    ],
)
def test_tables_that_are_wrong(tmp_path: Path, table: str, told: str) -> None:
    write_image(tmp_path / "images/a.jpg")
    (tmp_path / "data.yaml").write_text(table)
    with pytest.raises(ValueError, match=told) as caught:
        open_it(f"yolo:{tmp_path}")
    assert str(tmp_path) in str(caught.value)


# Pascal VOC


def test_voc_by_its_lists(tmp_path: Path) -> None:
    base = tmp_path / "VOC2007"
    (base / "Annotations").mkdir(parents=True)
    (base / "ImageSets/Main").mkdir(parents=True)
    for split in ("train", "val"):
        write_image(base / f"JPEGImages/{split}.jpg")
        (base / f"ImageSets/Main/{split}.txt").write_text(f"{split}\n")
        text = voc_xml([("dog", (1, 1, 4, 6)), ("person", (3, 2, 16, 12))])
        (base / f"Annotations/{split}.xml").write_text(text.replace("<difficult>0", "<difficult>1", 1))
    data = open_it(f"voc:{tmp_path}")
    assert (data.num_train, data.num_val, len(data.classes), data.has_masks) == (1, 1, 20, False)
    objects = data.train.read_objects(0)
    assert objects.boxes.tolist() == [[0, 0, 4, 6], [2, 1, 16, 12]]
    assert [data.classes[label] for label in objects.labels] == ["dog", "person"]
    assert objects.is_crowd.tolist() == [True, False]  # the first is difficult
    assert data.train.size(0) == (HEIGHT, WIDTH)


@pytest.mark.parametrize("folders", [("images", "annotations"), ("", "")])
def test_xml_files_of_ones_own(tmp_path: Path, folders: tuple[str, str]) -> None:
    for number in range(10):
        write_image(tmp_path / folders[0] / f"{number}.jpg")
        path = tmp_path / folders[1] / f"{number}.xml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(voc_xml([("wheel", (2, 2, 5, 5)), ("bolt", (1, 1, 2, 2))]))
    data = open_it(f"voc:{tmp_path}")
    assert (data.num_train, data.num_val, data.classes) == (9, 1, ("bolt", "wheel"))
    assert data.train.read_objects(0).labels.tolist() == [1, 0]


BOMB = '<!DOCTYPE a [<!ENTITY b "bbbbbbbbbb"><!ENTITY c "&b;&b;&b;&b;&b;&b;">]><annotation>&c;</annotation>'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (BOMB, "declares a document type, which is not allowed"),
        ("<annotation>", "it is not XML"),
        (voc_xml([("dog", (9, 1, 3, 6))]), "the box 9, 1, 3, 6 ends before it begins"),
        (voc_xml([("", (1, 1, 3, 6))]), "an object has no name"),
        ("<annotation><object><name>a</name></object></annotation>", "an object has no bndbox/xmin"),
    ],
)
def test_xml_files_that_are_wrong(tmp_path: Path, text: str, told: str) -> None:
    write_image(tmp_path / "a.jpg")
    (tmp_path / "a.xml").write_text(text)
    with pytest.raises(ValueError, match=r"a\.xml") as caught:
        open_it(f"voc:{tmp_path}")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_without_annotations(tmp_path: Path) -> None:
    write_image(tmp_path / "a.jpg")
    for spec, told in ((tmp_path, "no annotations of objects"), (f"coco:{tmp_path}", "no annotations in")):
        with pytest.raises(ValueError, match=told):
            open_it(spec)


# Data without a single object


def write_bare_yolo(root: Path) -> None:
    for number in range(4):
        write_image(root / f"train/images/{number}.jpg", seed=number)
    (root / "classes.txt").write_text("cat\ndog\n")


def test_yolo_without_objects_is_refused_and_says_where_labels_were_looked_for(tmp_path: Path) -> None:
    write_bare_yolo(tmp_path)
    with pytest.raises(
        ValueError, match=r"none of the 4 images of train has an object: looked for train/labels/0\.txt"
    ):
        open_it(f"yolo:{tmp_path}")
    (tmp_path / "annotated").mkdir()
    (tmp_path / "annotated/2.txt").write_text("0 0.5 0.5 0.2 0.2\n")
    with pytest.raises(ValueError, match="such files lie in annotated: move them there"):
        open_it(f"yolo:{tmp_path}")
    (tmp_path / "annotated").rename(tmp_path / "train/labels")
    assert open_it(f"yolo:{tmp_path}").num_train == 3


def test_masks_are_no_objects(tmp_path: Path) -> None:
    write_bare_yolo(tmp_path)
    write_mask(tmp_path / "train/masks/0.png", make_mask(2))
    with pytest.raises(
        ValueError, match=r"none of the 4 images .* has masks, from which task=segment learns"
    ) as caught:
        open_it(tmp_path)
    assert "\n" not in str(caught.value)


def test_coco_and_voc_without_objects_are_refused(tmp_path: Path) -> None:
    write_small_coco(tmp_path / "coco", [])
    with pytest.raises(ValueError, match=r"instances_train2017\.json: none of the 2 images of train has an object"):
        open_it(f"coco:{tmp_path / 'coco'}")
    write_small_coco(tmp_path / "outside", [box_row(1, 3, (100, 100, 5, 5)), box_row(2, 3, (2, 2, 0, 5))])
    with pytest.raises(ValueError, match=r"none of the 2 images of train has an object: every box lies outside its"):
        open_it(f"coco:{tmp_path / 'outside'}")
    write_image(tmp_path / "voc/a.jpg")
    (tmp_path / "voc/a.xml").write_text(voc_xml([]))
    with pytest.raises(ValueError, match=r"none of the 1 images of train has an object: looked for object in .*a\.xml"):
        open_it(f"voc:{tmp_path / 'voc'}")


def test_data_of_other_tasks_is_told_which(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"camvid has masks: recipes for segmentation learn it.* there are: coco:FOLDER"
    ):
        open_it(f"camvid:{tmp_path}")
