"""The cache of a teacher's answers: what is stored, when it may be used again, and what happens when it is damaged."""

import json
import math
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from warm import WarmProgram

from vitrail.data.augment import Augmentation
from vitrail.data.contract import Dataset, Level
from vitrail.data.datasets import open_dataset
from vitrail.data.policies import ColourJitter
from vitrail.data.stored import ArrayDataset
from vitrail.evaluation.lanes import Lanes
from vitrail.settings.images import AugmentationSettings
from vitrail.tasks.distill.teacher_cache import TeacherCache
from vitrail.tasks.teaching.answer_store import ANSWERS_FILE, KNOWN_FILE, PARTS_FILE, default_folder
from vitrail.tasks.teaching.view_fingerprints import fingerprint_augmentation, fingerprint_data

PARTS: dict[str, Any] = {
    "teacher": "aa",
    "data": "bb",
    "augmentation": "cc",
    "num_samples": 6,
    "num_views": 2,
    "num_classes": 5,
    "top": 2,
}


def make(folder: Path, **changes: Any) -> TeacherCache:
    return TeacherCache.open(folder, **(PARTS | changes))


def places(*pairs: tuple[int, int]) -> tuple[Tensor, Tensor]:
    indices, views = zip(*pairs, strict=True)
    return torch.tensor(indices), torch.tensor(views)


def random_logits(num_answers: int, num_classes: int = 5) -> Tensor:
    return 3 * torch.randn(num_answers, num_classes, generator=torch.Generator().manual_seed(0))


def never() -> Tensor:
    raise AssertionError("the teacher was asked")


def counting_teacher() -> tuple[Callable[[Tensor], Tensor], list[int]]:
    """A teacher of five classes, and how many images it was asked about each time."""
    asked: list[int] = []

    def teacher(pixels: Tensor) -> Tensor:
        asked.append(len(pixels))
        return pixels.flatten(1)[:, :5]

    return teacher, asked


def test_the_likeliest_classes_are_as_stored_and_the_rest_is_spread_evenly(tmp_path: Path) -> None:
    cache, place = make(tmp_path), places((3, 1))
    cache.write(*place, torch.tensor([[0.5, 0.05, 0.25, 0.15, 0.05]]).log())
    stored = np.log(np.array([0.5, 0.25], dtype=np.float32)).astype(np.float16)
    answer = cache.read(*place)
    assert answer.dtype == torch.float32
    assert answer[0, [0, 2]].tolist() == stored.astype(np.float32).tolist()
    torch.testing.assert_close(answer[0, [1, 3, 4]].exp(), torch.full((3,), 0.25 / 3), atol=1e-4, rtol=1e-3)
    assert answer.exp().sum().item() == pytest.approx(1.0, abs=1e-3)


def test_all_classes_may_be_stored(tmp_path: Path) -> None:
    logits = random_logits(2)
    cache, place = make(tmp_path, top=10), places((0, 0), (1, 1))
    cache.write(*place, logits)
    torch.testing.assert_close(cache.read(*place), logits.log_softmax(dim=-1), atol=5e-3, rtol=0)


def test_a_certain_teacher_leaves_no_probability_of_zero(tmp_path: Path) -> None:
    cache, place = make(tmp_path), places((0, 0), (1, 0))
    cache.write(*place, torch.tensor([[200.0, 0.0, 0.0, 0.0, 0.0], [0.0, -math.inf, -math.inf, -math.inf, -math.inf]]))
    answer = cache.read(*place)
    assert answer.isfinite().all()
    assert answer.argmax(dim=-1).tolist() == [0, 0]
    # What is left is kept apart: of 1 minus the rest, rounding would leave nothing.
    assert answer[0, 4].item() == pytest.approx(-200, rel=1e-2)


def test_rounding_never_makes_another_class_the_likeliest(tmp_path: Path) -> None:
    cache, place = make(tmp_path, num_classes=1000, top=10), places((0, 0))
    cache.write(*place, torch.linspace(1e-4, 0, 1000).view(1, -1))
    assert cache.read(*place).argmax().item() < 10


def test_many_classes(tmp_path: Path) -> None:
    cache, place = make(tmp_path, num_classes=70_000, top=3), places((0, 0))
    logits = torch.zeros(1, 70_000)
    logits[0, 69_999] = 20.0
    cache.write(*place, logits)
    assert cache.read(*place).argmax().item() == 69_999


def test_views_and_samples_are_told_apart(tmp_path: Path) -> None:
    cache = make(tmp_path)
    everywhere = places(*[(index, view) for index in range(6) for view in range(2)])
    assert not cache.lookup(*everywhere).any()
    logits = random_logits(12)
    for place in range(12):
        cache.write(everywhere[0][place : place + 1], everywhere[1][place : place + 1], logits[place : place + 1])
        assert cache.lookup(*everywhere).sum() == place + 1
    assert torch.equal(cache.read(*everywhere).argmax(dim=-1), logits.argmax(dim=-1))


def test_the_teacher_is_asked_only_about_what_is_not_known(tmp_path: Path) -> None:
    cache, (teacher, asked) = make(tmp_path), counting_teacher()
    pixels = torch.rand(3, 3, 4, 4)
    first = cache.answer(*places((0, 0), (1, 0)), pixels=lambda: pixels[:2], teacher=teacher)
    second = cache.answer(*places((1, 0), (2, 1), (0, 0)), pixels=lambda: pixels[[1, 2, 0]], teacher=teacher)
    third = cache.answer(*places((0, 0), (2, 1)), pixels=never, teacher=teacher)
    assert asked == [2, 1]
    assert torch.equal(second[[2, 0]], first)
    assert torch.equal(third, second[[2, 1]])
    assert torch.equal(second.argmax(dim=-1), pixels[[1, 2, 0]].flatten(1)[:, :5].argmax(dim=-1))


def test_a_fresh_answer_is_the_same_as_the_stored_one(tmp_path: Path) -> None:
    logits, place = random_logits(2), places((4, 0), (5, 1))
    fresh = make(tmp_path).answer(*place, pixels=lambda: logits, teacher=lambda pixels: pixels)
    assert torch.equal(make(tmp_path).answer(*place, pixels=never, teacher=lambda pixels: pixels), fresh)
    assert not torch.equal(fresh, logits.log_softmax(dim=-1))


def test_lanes_that_ask_about_one_image_at_a_time_get_one_answer(tmp_path: Path) -> None:
    cache, place, meeting = make(tmp_path), places((3, 1)), threading.Barrier(2)

    def answer(logits: Tensor) -> Tensor:
        def teacher(pixels: Tensor) -> Tensor:
            meeting.wait(timeout=30)  # both have found that it is not known
            return pixels

        return cache.answer(*place, pixels=lambda: logits, teacher=teacher)

    with Lanes(2) as lanes:
        first, second = lanes.map(answer, random_logits(2).split(1))
    assert torch.equal(first, second)
    assert torch.equal(cache.read(*place), first)


@pytest.mark.parametrize(
    "change",
    [
        {"teacher": "other"},
        {"data": "other"},
        {"augmentation": "other"},
        {"num_samples": 7},
        {"num_views": 3},
        {"num_classes": 6},
        {"top": 3},
    ],
    ids=str,
)
def test_anything_else_has_a_cache_of_its_own(tmp_path: Path, change: dict[str, Any]) -> None:
    cache, place = make(tmp_path), places((0, 0))
    cache.write(*place, random_logits(1))
    other = make(tmp_path, **change)
    assert other.folder != cache.folder
    assert not other.lookup(*place).any()
    assert make(tmp_path).lookup(*place).all()


def test_an_answer_without_its_mark_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, place = make(tmp_path), places((0, 0), (1, 0))
    from vitrail.tasks.teaching import answer_store

    write_at, num_writes = answer_store._write_at, 0

    def end_after_three(*words: Any) -> None:
        nonlocal num_writes
        num_writes += 1
        if num_writes > 3:
            raise KeyboardInterrupt
        write_at(*words)

    monkeypatch.setattr(answer_store, "_write_at", end_after_three)
    with pytest.raises(KeyboardInterrupt):
        cache.write(*place, random_logits(2))
    again = make(tmp_path)
    assert again.lookup(*place).tolist() == [True, False]
    whole = make(tmp_path / "whole")
    monkeypatch.undo()
    whole.write(*place, random_logits(2))
    assert torch.equal(again.read(*places((0, 0))), whole.read(*places((0, 0))))
    with pytest.raises(ValueError, match="has no answer yet"):
        again.read(*place)


FILLING = """
import sys, json, torch
from pathlib import Path
from vitrail.tasks.distill.teacher_cache import TeacherCache

cache = TeacherCache.open(Path(sys.argv[1]), **json.loads(sys.argv[2]))
for index in range(int(sys.argv[3]), 40, 2):
    cache.write(torch.tensor([index]), torch.tensor([index % 2]), torch.tensor([[0.0, 1.0, index + 2.0, 0.0, 0.0]]))
"""


def test_processes_share_a_cache(tmp_path: Path) -> None:
    parts = json.dumps(PARTS | {"num_samples": 40})
    processes = [WarmProgram(FILLING, str(tmp_path), parts, first) for first in ("0", "1")]
    cache = make(tmp_path, num_samples=40)
    assert [process.wait() for process in processes] == [0, 0]
    everything = places(*[(index, index % 2) for index in range(40)])
    assert cache.lookup(*everything).all()
    assert cache.read(*everything).argmax(dim=-1).tolist() == [2] * 40
    assert [path.name for path in tmp_path.iterdir()] == [cache.folder.name]


def test_a_cache_made_by_another_process_in_the_same_moment_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make(tmp_path / "other")
    other.write(*places((0, 0)), random_logits(1))
    rename = Path.rename

    def rename_too_late(draft: Path, place: Path) -> Path:
        shutil.copytree(other.folder, place)
        return rename(draft, place)

    monkeypatch.setattr(Path, "rename", rename_too_late)
    cache = make(tmp_path / "here")
    assert cache.lookup(*places((0, 0))).all()
    assert [path.name for path in (tmp_path / "here").iterdir()] == [cache.folder.name]


def cut(folder: Path) -> None:
    with (folder / ANSWERS_FILE).open("r+b") as file:
        file.truncate(5)


def rewrite(folder: Path) -> None:
    (folder / PARTS_FILE).write_text(json.dumps(json.loads((folder / PARTS_FILE).read_text()) | {"data": "other"}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut, r"answers\.bin has 5 bytes instead of 120"),
        (lambda folder: (folder / KNOWN_FILE).unlink(), r"known\.bin is missing"),
        (lambda folder: (folder / PARTS_FILE).write_text("{"), r"cache\.json can't be read"),
        (lambda folder: (folder / PARTS_FILE).unlink(), r"cache\.json can't be read"),
        (rewrite, r"it was made for another data"),
    ],
)
def test_a_damaged_cache_names_the_folder_to_delete(
    tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    folder = make(tmp_path).folder
    damage(folder)
    with pytest.raises(ValueError, match=message) as caught:
        make(tmp_path)
    assert str(caught.value).endswith(f"delete the folder {folder}")
    shutil.rmtree(folder)
    assert not make(tmp_path).lookup(*places((0, 0))).any()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    cache = make(tmp_path)
    (cache.folder / ANSWERS_FILE).unlink()
    (cache.folder / ANSWERS_FILE).symlink_to("/dev/full")
    with pytest.raises(ValueError, match=r"can't be kept \(No space left on device\): make room, or delete the folder"):
        cache.write(*places((0, 0)), random_logits(1))
    assert not cache.lookup(*places((0, 0))).any()


def test_a_place_that_takes_no_cache_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"can't be made in .*file \(.*\): .*teacher\.cache_folder or VITRAIL_CACHE"):
        make(tmp_path / "file")


def test_wrong_input_is_one_line(tmp_path: Path) -> None:
    cache = make(tmp_path)
    with pytest.raises(ValueError, match="is for 2 views: 2 "):
        cache.lookup(*places((0, 2)))
    with pytest.raises(ValueError, match="is for 6 samples: -1 "):
        cache.lookup(*places((-1, 0)))
    with pytest.raises(ValueError, match=r"takes a teacher's answers \[1, 5\], not \[1, 4\]"):
        cache.write(*places((0, 0)), torch.zeros(1, 4))
    with pytest.raises(ValueError, match="not finite"):
        cache.write(*places((0, 0)), torch.full((1, 5), math.nan))
    with pytest.raises(ValueError, match="num_views of at least 1, not 0"):
        make(tmp_path, num_views=0)
    assert not cache.lookup(*places((0, 0))).any()


def test_a_cache_says_how_full_it_is(tmp_path: Path) -> None:
    cache = make(tmp_path, num_samples=100_000)
    cache.write(*places((0, 0), (9, 1)), random_logits(2))
    # A mark, two classes of two bytes, three probabilities of two bytes.
    assert cache.describe() == f"teacher's answers in {cache.folder}: 2 of 200000 known, 2.2 MB when full"


def test_the_default_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", "/somewhere")
    assert default_folder() == Path("/somewhere/teachers")
    monkeypatch.delenv("VITRAIL_CACHE")
    assert default_folder() == Path.home() / ".cache/vitrail/teachers"


def write_images(root: Path) -> Dataset:
    for split in ("train", "val"):
        for name in ("cat", "dog"):
            (root / split / name).mkdir(parents=True)
            for number in range(3):
                colour = (number * 40, len(name + split) * 9, ord(name[0]))
                Image.new("RGB", (8, 8), colour).save(root / split / name / f"{number}.png")
    return open_dataset(str(root), "train")


def test_data_is_known_again_in_another_folder(tmp_path: Path) -> None:
    first = fingerprint_data(write_images(tmp_path / "here"))
    shutil.copytree(tmp_path / "here", tmp_path / "elsewhere" / "there")
    assert fingerprint_data(open_dataset(str(tmp_path / "elsewhere" / "there"), "train")) == first
    assert fingerprint_data(open_dataset(str(tmp_path / "here"), "val")) != first


@pytest.mark.parametrize("change", ["renamed", "added", "removed", "longer", "repainted", "moved"])
def test_changed_data_is_other_data(tmp_path: Path, change: str) -> None:
    first = fingerprint_data(write_images(tmp_path))
    image = tmp_path / "train" / "cat" / "1.png"
    if change == "renamed":
        image.rename(image.with_name("7.png"))
    elif change == "added":
        shutil.copy(image, image.with_name("7.png"))
    elif change == "removed":
        image.unlink()
    elif change == "longer":
        image.write_bytes(image.read_bytes() + b" ")
    elif change == "repainted":
        content = bytearray(image.read_bytes())
        content[-20] ^= 1
        image.write_bytes(content)
    else:
        image.rename(tmp_path / "train" / "dog" / "7.png")
    assert fingerprint_data(open_dataset(str(tmp_path), "train")) != first


def arrays(labels: list[int], *, name: str = "pixels", value: int = 0) -> ArrayDataset:
    images = np.full((len(labels), 4, 4), value, dtype=np.uint8)
    return ArrayDataset(
        name=name, split="train", images=images, levels={"label": Level(("a", "b"), np.array(labels, dtype=np.int64))}
    )


def test_data_in_memory_is_known_by_its_labels_and_pixels() -> None:
    first = fingerprint_data(arrays([0, 1]))
    assert fingerprint_data(arrays([0, 1], name="another name")) == first
    assert len({first, *map(fingerprint_data, (arrays([1, 0]), arrays([0, 1, 1]), arrays([0, 1], value=1)))}) == 4


def test_every_setting_of_an_augmentation_counts() -> None:
    changes: list[dict[str, Any]] = [
        {"crop": "simple"},
        {"scale": (0.1, 1.0)},
        {"ratio": (0.5, 2.0)},
        {"crop_ratio": 0.9},
        {"interpolation": "bilinear"},
        {"flip": 0.0},
        {"vertical_flip": 0.5},
        {"policy": "three"},
        {"policy": "rand", "magnitude": 7},
        {"policy": "rand", "magnitude": 8},
        {"policy": "rand", "magnitude_noise": 0.1},
        {"colour_jitter": 0.3},
        {"erasing": 0.25},
    ]
    of_sampling = {"repeats"}  # how often an image is seen, not how
    assert AugmentationSettings.model_fields.keys() == {name for change in changes for name in change} | of_sampling
    usual = Augmentation(224)
    others = [AugmentationSettings(**change).build(image_size=224) for change in changes]
    others += [Augmentation(112), Augmentation(224, own_steps=(ColourJitter(0.3, 0.3, 0.3),))]
    prints = {fingerprint_augmentation(other) for other in others}
    assert len({fingerprint_augmentation(usual), *prints}) == 1 + len(others)
    assert fingerprint_augmentation(Augmentation(224)) == fingerprint_augmentation(usual)
    assert fingerprint_augmentation(usual, seed=1) != fingerprint_augmentation(usual)


def test_a_new_setting_of_augmentation_leaves_old_answers_good() -> None:
    class Longer(AugmentationSettings):
        solarise: float = 0.0

    for settings in ({}, {"policy": "rand", "magnitude": 7.0, "erasing": 0.25}):
        known = fingerprint_augmentation(AugmentationSettings.model_validate(settings).build(image_size=96))
        assert fingerprint_augmentation(Longer.model_validate(settings).build(image_size=96)) == known
        changed = Longer.model_validate({**settings, "solarise": 0.1})
        assert fingerprint_augmentation(changed.build(image_size=96)) != known
