"""Folders of images with masks: every layout opens, and what is wrong is told in one line."""

from pathlib import Path

import numpy as np
import pytest
from dense_folders import HEIGHT, WIDTH, make_mask, write_image, write_mask
from PIL import Image

from vitrail.data.decode import BrokenImageError
from vitrail.data.dense.contract import IGNORED
from vitrail.data.dense.dense_sources import DenseOpening
from vitrail.data.dense.mask_files import MaskCode, read_stored
from vitrail.data.dense.opening import open_segmentation, open_segmentation_source
from vitrail.data.dense.samples import MaskSamples
from vitrail.data.loader import Loader
from vitrail.data.quarantine import Quarantine, QuarantineSettings
from vitrail.data.sampler import Sampler
from vitrail.settings.data import DataSettings


def write_pairs(
    root: Path, *, count: int = 2, num_values: int = 3, folders: tuple[str, str] = ("images", "masks")
) -> None:
    for number in range(count):
        write_image(root / folders[0] / f"{number}.jpg", seed=number)
        write_mask(root / folders[1] / f"{number}.png", make_mask(num_values))


def encode(image: Image.Image, path: Path) -> bytes:
    image.save(path, "PNG")
    return path.read_bytes()


@pytest.mark.parametrize(
    "folders",
    [
        {"train": ("train", "trainannot"), "val": ("val", "valannot")},
        {"train": ("train/images", "train/masks"), "val": ("valid/images", "valid/masks")},
        {"train": ("images/training", "annotations/training"), "val": ("images/validation", "annotations/validation")},
    ],
)
def test_layouts_with_splits(tmp_path: Path, folders: dict[str, tuple[str, str]]) -> None:
    for split, pair in folders.items():
        write_pairs(tmp_path, count=3 if split == "train" else 2, folders=pair)
    (tmp_path / "classes.txt").write_text("sky\nroad\nvoid\n")
    data = open_segmentation(DataSettings(spec=f"pairs:{tmp_path}"))
    assert (data.num_train, data.num_val, data.is_held_out) == (3, 2, False)
    assert data.classes == ("sky", "road")
    assert len(data.colours) == 2
    mask = data.val.read_mask(0)
    assert mask[0, :3].tolist() == [0, 1, IGNORED]  # void is not learnt
    assert data.val.read(0)[:2] == b"\xff\xd8"
    assert data.locate(0).endswith("0.jpg")


def test_a_plain_folder_is_divided_the_same_way_everywhere(tmp_path: Path) -> None:
    for place in ("here", "there"):
        write_pairs(tmp_path / place, count=20)
        (tmp_path / place / "classes.txt").write_text("a\nb\nc\n")
    found = []
    for place in ("here", "there"):
        data = open_segmentation(DataSettings(spec=str(tmp_path / place)))
        assert (data.num_train, data.num_val, data.is_held_out) == (18, 2, True)
        found.append([Path(data.val.locate(index)).name for index in range(2)])
    assert found[0] == found[1]
    everything = open_segmentation(DataSettings(spec=str(tmp_path / "here"), val="none"))
    assert (everything.num_train, everything.num_val) == (20, 0)
    other = open_segmentation(DataSettings(spec=str(tmp_path / "here"), val=str(tmp_path / "there")))
    assert (other.num_train, other.num_val) == (20, 20)


def test_what_is_in_quarantine_is_left_out(tmp_path: Path) -> None:
    write_pairs(tmp_path / "data", count=20)
    (tmp_path / "data/classes.txt").write_text("a\nb\nc\n")
    plain = open_segmentation(DataSettings(spec=str(tmp_path / "data")))
    (tmp_path / "quarantine.csv").write_text(f"path,split,problem,detail\r\n{plain.locate(3)},train,broken,\r\n")
    data = open_segmentation(DataSettings(spec=str(tmp_path / "data"), quarantine=str(tmp_path / "quarantine.csv")))
    assert data.num_train == 17
    assert data.locate(3) == plain.locate(4)
    assert np.array_equal(data.train.read_mask(3), plain.train.read_mask(4))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("classes.csv", "name,red,green,blue\nroad,10,20,30\nsky,40,50,60\nvoid,0,0,0\n"),
        ("class_dict.csv", "name,r,g,b\nroad,10,20,30\nsky,40,50,60\nVoid,0,0,0\n"),
        ("classes.txt", "road 10 20 30\nsky 40 50 60\nvoid 0 0 0\n"),
        ("classes.txt", "10 20 30\troad\n40 50 60\tsky\n0 0 0\tunlabelled\n"),
        ("labelmap.txt", "# label:color_rgb:parts:actions\nroad:10,20,30::\nsky:40,50,60::\nvoid:0,0,0::\n"),
    ],
)
def test_masks_in_colours(tmp_path: Path, name: str, text: str) -> None:
    colours = np.array([[10, 20, 30], [40, 50, 60], [0, 0, 0]], dtype=np.uint8)
    for number in range(4):
        write_image(tmp_path / f"images/{number}.png", seed=number)
        write_mask(tmp_path / f"masks/{number}_mask.png", colours[make_mask(3)])
    (tmp_path / name).write_text(text)
    data = open_segmentation(DataSettings(spec=str(tmp_path)))
    assert data.classes == ("road", "sky")
    assert data.colours == ((10, 20, 30), (40, 50, 60))
    assert data.train.read_mask(0)[5, :4].tolist() == [0, 1, IGNORED, 0]


def test_a_table_of_values(tmp_path: Path) -> None:
    write_image(tmp_path / "images/a.jpg")
    write_mask(tmp_path / "masks/a.png", make_mask(2) * 255)  # as many binary masks are
    (tmp_path / "classes.csv").write_text("name,value\nbackground,0\nship,255\n")
    source = open_segmentation_source(str(tmp_path), DenseOpening(val_share=0.0))
    assert source.open("train").read_mask(0)[0, :2].tolist() == [0, 1]


@pytest.mark.parametrize("mode", ["L", "P", "1", "RGB", "LA", "I;16", "RGBA"])
def test_values_are_read_from_any_kind_of_png(tmp_path: Path, mode: str) -> None:
    values = make_mask(2)
    image = Image.fromarray(values)
    if mode == "P":
        image = Image.fromarray(values, "P")
        image.putpalette([9, 9, 9, 200, 0, 0])
    elif mode == "1":
        image = Image.fromarray(values * 255).convert("1")
    elif mode == "I;16":
        image = Image.fromarray(values.astype(np.uint16))
    else:
        image = image.convert(mode)
    code = MaskCode({0: 0, 1: 1})
    assert np.array_equal(code.decode(encode(image, tmp_path / "mask.png")), values)


def test_grey_of_four_bits_is_not_spread(tmp_path: Path) -> None:
    import struct
    import zlib

    def part(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + bytes([0x01, 0x23]) for _ in range(2))
    header = struct.pack(">IIBBBBB", 4, 2, 4, 0, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + part(b"IHDR", header) + part(b"IDAT", zlib.compress(rows)) + part(b"IEND", b"")
    assert read_stored(png).tolist() == [[0, 1, 2, 3]] * 2


def test_ade20k(tmp_path: Path) -> None:
    base = tmp_path / "ADEChallengeData2016"
    for split in ("training", "validation"):
        write_image(base / f"images/{split}/a.jpg")
        mask = np.zeros((HEIGHT, WIDTH), dtype=np.uint8)
        mask[:, 1], mask[:, 2] = 1, 150
        write_mask(base / f"annotations/{split}/a.png", mask)
    for root in (tmp_path, base):
        data = open_segmentation(DataSettings(spec=f"ade20k:{root}"))
        assert len(data.classes) == 150
        assert (data.classes[0], data.classes[149]) == ("wall", "flag")
        assert data.train.read_mask(0)[0, :4].tolist() == [IGNORED, 0, 149, IGNORED]


def test_camvid(tmp_path: Path) -> None:
    for split in ("train", "val", "test"):
        write_image(tmp_path / split / "a.jpg")
        write_mask(tmp_path / f"{split}annot" / "a.png", make_mask(12))
    source = open_segmentation_source(f"camvid:{tmp_path}")
    assert source.splits == ("train", "val", "test")
    assert len(source.classes) == len(source.colours) == 11
    assert source.open("test").read_mask(0)[0, :13].tolist() == [*range(11), IGNORED, 0]


def test_cityscapes(tmp_path: Path) -> None:
    for split in ("train", "val"):
        write_image(tmp_path / f"leftImg8bit/{split}/ulm/ulm_000000_000019_leftImg8bit.png")
        mask = np.zeros((HEIGHT, WIDTH), dtype=np.uint8)
        mask[:, 1], mask[:, 2] = 7, 33
        write_mask(tmp_path / f"gtFine/{split}/ulm/ulm_000000_000019_gtFine_labelIds.png", mask)
    data = open_segmentation(DataSettings(spec=f"cityscapes:{tmp_path}"))
    assert len(data.classes) == 19
    assert (data.classes[0], data.colours[0], data.classes[18]) == ("road", (128, 64, 128), "bicycle")
    assert data.train.read_mask(0)[0, :3].tolist() == [IGNORED, 0, 18]


def test_voc_masks(tmp_path: Path) -> None:
    base = tmp_path / "VOCdevkit/VOC2012"
    (base / "ImageSets/Segmentation").mkdir(parents=True)
    for split in ("train", "val"):
        write_image(base / f"JPEGImages/{split}.jpg")
        mask = make_mask(21)
        mask[:, 2] = 255
        image = Image.fromarray(mask, "P")
        image.putpalette([value // 3 for value in range(768)])
        (base / "SegmentationClass").mkdir(exist_ok=True)
        image.save(base / f"SegmentationClass/{split}.png")
        (base / f"ImageSets/Segmentation/{split}.txt").write_text(f"{split}\n")
    data = open_segmentation(DataSettings(spec=f"voc:{tmp_path}"))
    assert len(data.classes) == 21
    assert (data.colours[0], data.colours[1], data.colours[15]) == ((0, 0, 0), (128, 0, 0), (192, 128, 128))
    assert data.train.read_mask(0)[0, :4].tolist() == [0, 1, IGNORED, 3]


# What is wrong is told in one line.


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("camvid:{}", "no folders of images and masks"),
        ("cityscapes:{}", "leftImg8bit/train/ and gtFine/train/ must be in it"),
        ("voc:{}", "is not Pascal VOC"),
        ("pairs:{}", "has no images/ and masks/"),
        ("pairs:{}/nothing", "no folder"),
        ("nothing", "there are: pairs:FOLDER, .*, shapes$"),
        ("coco:{}", "coco has objects in boxes: recipes for detection learn it, such as detect_small_photos; for this"),
        ("cifar100", "cifar100 has labels of whole images: recipes for classification learn it"),
        ("pairs:", "pairs need the folder"),
    ],
)
def test_folders_that_are_none_of_these(tmp_path: Path, spec: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        open_segmentation(DataSettings(spec=spec.format(tmp_path)))


def test_without_a_table_the_values_are_named(tmp_path: Path) -> None:
    write_pairs(tmp_path)
    with pytest.raises(ValueError, match=r"no classes\.txt: write the names.*hold 0, 1, 2\)"):
        open_segmentation(DataSettings(spec=str(tmp_path)))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("name,red,green,blue\na,1,2,999\n", "999 is no colour"),
        ("name,red,green,blue\na,1,2\n", "the line 'a,1,2' has no blue"),
        ("colour\n1\n", "no column `name`"),
        ("name,value\na,0\nb,0\n", "must differ"),
        ("name\nvoid\n", "names no class"),
        ("name\na\na\n", "two classes of the name 'a'"),
    ],
)
def test_tables_that_are_wrong(tmp_path: Path, text: str, told: str) -> None:
    write_pairs(tmp_path)
    (tmp_path / "classes.csv").write_text(text)
    with pytest.raises(ValueError, match=told) as caught:
        open_segmentation(DataSettings(spec=str(tmp_path)))
    assert "\n" not in str(caught.value)


def test_images_without_masks_are_refused_or_noted(tmp_path: Path) -> None:
    write_pairs(tmp_path, count=3)
    (tmp_path / "classes.txt").write_text("a\nb\nc\n")
    (tmp_path / "masks/1.png").rename(tmp_path / "masks/1.bmp")
    write_mask(tmp_path / "masks/9.png", make_mask(3))
    with pytest.raises(ValueError, match=r"1\.jpg: its mask masks/1\.bmp is no PNG"):
        open_segmentation(DataSettings(spec=str(tmp_path)))
    source = open_segmentation_source(str(tmp_path), DenseOpening(val_share=0.0, faults="noted"))
    assert {note.problem for note in source.notes} == {"image without mask", "mask without image"}
    assert len(source.open("train")) == 2


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("jpeg", "is no PNG"),
        ("value", "the value 7, which is no class: those are 0 to 2"),
        ("colours", "is in colours"),
        ("size", "is 16 x 12 pixels, but its mask 5 x 12"),
        ("cut", "is cut off or damaged"),
        ("gone", "can't be read: No such file"),
    ],
)
def test_masks_that_are_wrong_are_left_out_and_named(tmp_path: Path, fault: str, told: str) -> None:
    write_pairs(tmp_path, count=30)
    (tmp_path / "classes.txt").write_text("a\nb\nc\n")
    path = tmp_path / "masks/4.png"
    if fault == "jpeg":
        Image.fromarray(make_mask(3)).save(path, "JPEG")
    elif fault == "value":
        write_mask(path, make_mask(8) // 7 * 7)
    elif fault == "colours":
        write_mask(path, np.random.RandomState(0).randint(0, 3, (HEIGHT, WIDTH, 3)).astype(np.uint8))
    elif fault == "size":
        write_mask(path, make_mask(3, size=(HEIGHT, 5)))
    elif fault == "cut":
        path.write_bytes(path.read_bytes()[:60])
    source = open_segmentation_source(str(tmp_path), DenseOpening(val_share=0.0))
    if fault == "gone":
        path.unlink()
    quarantine = Quarantine(QuarantineSettings(listing=tmp_path / "quarantine.csv", max_share=0.5))
    (tmp_path / "quarantine.csv").touch()
    sampler = Sampler(30, batch_size=30, is_training=False)
    [batch] = Loader(source.open("train"), make=MaskSamples(), sampler=sampler, quarantine=quarantine).epoch(0)
    assert batch.num_samples == 29
    listed = (tmp_path / "quarantine.csv").read_text()
    assert "images/4.jpg" in listed
    assert told in listed
    assert len(listed.splitlines()) == 2


def test_unknown_colours_are_named(tmp_path: Path) -> None:
    code = MaskCode(colours={(1, 2, 3): 0})
    image = Image.fromarray(np.array([[[1, 2, 3], [255, 0, 16]]], dtype=np.uint8))
    with pytest.raises(BrokenImageError, match="the colour #ff0010, which the table of classes has not"):
        code.decode(encode(image, tmp_path / "mask.png"))
