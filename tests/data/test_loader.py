"""Batches: the same pixels for the same sample however the work is divided; broken files never stop a run."""

import os
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from vitrail.data.contract import ImageBatch, Level
from vitrail.data.decode import OpenedImage
from vitrail.data.draws import Draws
from vitrail.data.loader import ImageLoader, check_workers
from vitrail.data.quarantine import Quarantine, QuarantineSettings
from vitrail.data.sampler import Ranks, Sampler
from vitrail.data.stored import ArrayDataset, FileDataset

SIZE = 8


class JitteredCrop:
    """A crop whose place and brightness are random."""

    def __call__(self, image: OpenedImage, draws: Draws) -> Tensor:
        top, left = draws.integer(image.height - SIZE + 1), draws.integer(image.width - SIZE + 1)
        crop = image.pixels()[:, top : top + SIZE, left : left + SIZE]
        return (crop * draws.uniform(0.5, 1.0)).to(torch.uint8)


def write_images(folder: Path, *, count: int = 24, broken: tuple[int, ...] = ()) -> FileDataset:
    """Noise with the sample's index as its class; some files cut off in the middle."""
    generator = np.random.RandomState(0)
    paths = []
    for index in range(count):
        buffer = BytesIO()
        Image.fromarray(generator.randint(0, 256, (16, 20, 3), dtype=np.uint8)).save(buffer, "JPEG")
        content = buffer.getvalue()
        (folder / f"{index}.jpg").write_bytes(content[: len(content) // 2] if index in broken else content)
        paths.append(f"{index}.jpg")
    level = Level(classes=tuple(map(str, range(count))), labels=np.arange(count))
    return FileDataset(name="noise", split="train", root=folder, paths=paths, levels={"label": level})


def collect(batches: list[ImageBatch]) -> dict[int, list[Tensor]]:
    """The images made of each sample."""
    images: dict[int, list[Tensor]] = {}
    for batch in batches:
        for image, index in zip(batch.images, batch.indices.tolist(), strict=True):
            images.setdefault(index, []).append(image)
    return images


def assert_same(first: list[ImageBatch], second: list[ImageBatch]) -> None:
    assert len(first) == len(second) > 0
    for one, other in zip(first, second, strict=True):
        for tensor, twin in zip(one[:3], other[:3], strict=True):
            assert torch.equal(tensor, twin)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_workers_change_nothing(tmp_path: Path, num_workers: int) -> None:
    dataset = write_images(tmp_path, broken=(5,))

    def run(workers: int) -> list[ImageBatch]:
        quarantine = Quarantine(QuarantineSettings(max_share=0.5))
        sampler = Sampler(len(dataset), batch_size=5, seed=7)
        loader = ImageLoader(
            dataset, transform=JitteredCrop(), sampler=sampler, num_workers=workers, quarantine=quarantine
        )
        return [batch for number in (0, 1) for batch in loader.epoch(number)]

    assert_same(run(0), run(num_workers))


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_ranks_give_the_same_pixels_for_the_same_sample(tmp_path: Path, num_ranks: int) -> None:
    dataset = write_images(tmp_path)

    def run(ranks: Ranks) -> list[ImageBatch]:
        sampler = Sampler(len(dataset), batch_size=6, seed=7, ranks=ranks)
        return list(ImageLoader(dataset, transform=JitteredCrop(), sampler=sampler).epoch(3))

    whole = run(Ranks())
    parts = [run(Ranks(rank, num_ranks)) for rank in range(num_ranks)]
    for step, batch in enumerate(whole):
        assert torch.equal(torch.cat([rank[step].images for rank in parts]), batch.images)
        assert torch.equal(torch.cat([rank[step].indices for rank in parts]), batch.indices)


def test_a_restart_in_the_middle_goes_on_with_the_same_batches(tmp_path: Path) -> None:
    dataset = write_images(tmp_path)
    sampler = Sampler(len(dataset), batch_size=4, seed=1)
    whole = list(ImageLoader(dataset, transform=JitteredCrop(), sampler=sampler).epoch(2))
    rest = list(ImageLoader(dataset, transform=JitteredCrop(), sampler=sampler).epoch(2, start_step=4))
    assert_same(whole[4:], rest)


def test_an_epoch_left_early_does_not_disturb_the_next(tmp_path: Path) -> None:
    dataset = write_images(tmp_path)
    sampler = Sampler(len(dataset), batch_size=4, seed=1)
    loader = ImageLoader(dataset, transform=JitteredCrop(), sampler=sampler, num_workers=1)
    next(iter(loader.epoch(0)))
    assert_same(list(loader.epoch(1)), list(ImageLoader(dataset, transform=JitteredCrop(), sampler=sampler).epoch(1)))


def test_every_epoch_and_repeat_is_another_view(tmp_path: Path) -> None:
    dataset = write_images(tmp_path)
    sampler = Sampler(len(dataset), batch_size=12, seed=1, num_repeats=3)
    loader = ImageLoader(dataset, transform=JitteredCrop(), sampler=sampler)
    repeats = collect(list(loader.epoch(0)))
    assert all(len(images) == 3 for images in repeats.values())
    assert all(not torch.equal(images[0], images[1]) for images in repeats.values())
    later = collect(list(loader.epoch(1)))
    assert all(not torch.equal(later[index][0], repeats[index][0]) for index in later.keys() & repeats.keys())


def test_several_views_are_those_of_their_keys(tmp_path: Path) -> None:
    dataset = write_images(tmp_path)
    sampler = Sampler(len(dataset), batch_size=6, seed=1)
    [batch, *_] = ImageLoader(dataset, transform=JitteredCrop(), sampler=sampler, num_views=2).epoch(0)
    assert batch.images.shape == (6, 2, 3, SIZE, SIZE)
    [single, *_] = ImageLoader(dataset, transform=JitteredCrop(), sampler=sampler).epoch(0)
    assert torch.equal(batch.images[:, 0], single.images)
    assert not torch.equal(batch.images[:, 1], single.images)


def test_batches_hold_uint8_images_channels_last_with_their_labels(tmp_path: Path) -> None:
    dataset = write_images(tmp_path)
    loader = ImageLoader(dataset, transform=JitteredCrop(), sampler=Sampler(24, batch_size=6, is_training=False))
    batches = list(loader.epoch(0))
    assert len(batches) == len(loader) == 4
    for batch in batches:
        assert batch.images.dtype == torch.uint8
        assert batch.images.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(batch.targets, batch.indices)
        assert batch.targets.dtype == torch.int64


def test_a_broken_file_is_replaced_counted_and_listed(tmp_path: Path) -> None:
    dataset = write_images(tmp_path, count=60, broken=(3, 11))
    (tmp_path / "20.jpg").unlink()
    quarantine = Quarantine(QuarantineSettings(listing=tmp_path / "quarantine.csv"))
    sampler = Sampler(60, batch_size=10, seed=0)
    loader = ImageLoader(dataset, transform=JitteredCrop(), sampler=sampler, quarantine=quarantine)
    batches = list(loader.epoch(0))
    seen = torch.cat([batch.indices for batch in batches]).tolist()
    assert len(seen) == 60
    assert not {3, 11, 20} & set(seen)
    assert all(torch.equal(batch.targets, batch.indices) for batch in batches)
    listing = (tmp_path / "quarantine.csv").read_text().splitlines()
    assert listing[0] == "path,split,problem,detail"
    assert sorted(line.split(",")[0] for line in listing[1:]) == [
        str(tmp_path / name) for name in ("11.jpg", "20.jpg", "3.jpg")
    ]
    assert sorted(line.split(",")[2] for line in listing[1:]) == ["broken", "broken", "unreadable"]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_what_decoders_print_goes_to_the_log_once_with_the_file(
    tmp_path: Path, num_workers: int, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    dataset = write_images(tmp_path, count=4)
    whole = (tmp_path / "2.jpg").read_bytes()
    (tmp_path / "2.jpg").write_bytes(whole[:-2] + b"\x11" * 9 + whole[-2:])
    sampler = Sampler(4, batch_size=2, seed=0)
    loader = ImageLoader(dataset, transform=JitteredCrop(), sampler=sampler, num_workers=num_workers)
    with caplog.at_level("INFO", logger="vitrail"):
        for epoch in range(2):
            assert sum(batch.num_samples for batch in loader.epoch(epoch)) == 4
    assert [record.message[: len(f"{tmp_path}/2.jpg: Corrupt")] for record in caplog.records] == [
        f"{tmp_path}/2.jpg: Corrupt"
    ]
    assert capfd.readouterr().err == ""


def test_evaluation_leaves_broken_files_out_and_counts_no_image_twice(tmp_path: Path) -> None:
    dataset = write_images(tmp_path, count=12, broken=(1, 4, 5, 6, 7))
    quarantine = Quarantine(QuarantineSettings(max_share=0.5))
    sampler = Sampler(12, batch_size=4, is_training=False)
    loader = ImageLoader(dataset, transform=JitteredCrop(), sampler=sampler, quarantine=quarantine)
    assert [batch.indices.tolist() for batch in loader.epoch(0)] == [[0, 2, 3], [8, 9, 10, 11]]
    assert quarantine.num_broken == 5


@pytest.mark.parametrize("num_workers", [0, 1])
def test_too_many_broken_files_end_the_epoch_with_one_line(tmp_path: Path, num_workers: int) -> None:
    dataset = write_images(tmp_path, broken=(1, 2))
    loader = ImageLoader(dataset, transform=JitteredCrop(), sampler=Sampler(24, batch_size=6), num_workers=num_workers)
    with pytest.raises(ValueError, match=r"^3 of 27 readings of samples failed, more than the 5% allowed.*$"):
        list(loader.epoch(0))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_data_set_that_is_gone_is_said_at_once(tmp_path: Path, num_workers: int) -> None:
    dataset = write_images(tmp_path, broken=tuple(range(24)))
    loader = ImageLoader(dataset, transform=JitteredCrop(), sampler=Sampler(24, batch_size=6), num_workers=num_workers)
    with pytest.raises(ValueError, match=r"^.*\.jpg and 20 others in its place could not be read .*`vitrail check`$"):
        list(loader.epoch(0))


def test_several_valid_labels_become_rows_of_zeros_and_ones() -> None:
    labels = np.array([[True, False, True], [False, False, False], [False, True, False], [True, True, True]])
    dataset = ArrayDataset(
        name="several",
        split="val",
        images=np.zeros((4, 9, 9), dtype=np.uint8),
        levels={"label": Level(classes=("a", "b", "c"), labels=labels)},
    )
    loader = ImageLoader(dataset, transform=JitteredCrop(), sampler=Sampler(4, batch_size=4, is_training=False))
    [batch] = loader.epoch(0)
    assert batch.targets.tolist() == labels.astype(float).tolist()


def test_a_level_of_labels_can_be_chosen_and_a_wrong_one_is_named() -> None:
    levels = {
        "label": Level(classes=("a", "b"), labels=np.array([0, 1])),
        "coarse": Level(classes=("c",), labels=np.array([0, 0])),
    }
    images = np.zeros((2, 9, 9), dtype=np.uint8)
    dataset = ArrayDataset(name="tiny", split="train", images=images, levels=levels)
    sampler, transform = Sampler(2, batch_size=2), JitteredCrop()
    loader = ImageLoader(dataset, transform=transform, sampler=sampler, level="coarse")
    assert loader.classes == ("c",)
    assert next(loader.epoch(0)).targets.tolist() == [0, 0]
    with pytest.raises(ValueError, match="tiny has no labels 'corse'; it has: label, coarse"):
        ImageLoader(dataset, transform=transform, sampler=sampler, level="corse")
    with pytest.raises(ValueError, match="the sampler is for 3 samples, the data set has 2"):
        ImageLoader(dataset, transform=transform, sampler=Sampler(3, batch_size=2))


def test_fixed_views_come_by_turns_and_do_not_depend_on_the_seed(tmp_path: Path) -> None:
    dataset = write_images(tmp_path, count=8)
    by_view: dict[tuple[int, int], torch.Tensor] = {}
    for seed in (0, 1):
        sampler = Sampler(len(dataset), batch_size=4, seed=seed, num_repeats=2)
        loader = ImageLoader(dataset, transform=JitteredCrop(), sampler=sampler, fixed_views=3)
        for epoch in range(6):
            for batch in loader.epoch(epoch):
                assert batch.views is not None
                for image, index, view in zip(batch.images, batch.indices.tolist(), batch.views.tolist(), strict=True):
                    assert torch.equal(by_view.setdefault((index, view), image.clone()), image)
    assert set(by_view) == {(index, view) for index in range(8) for view in range(3)}
    assert not torch.equal(by_view[0, 0], by_view[0, 1])


def test_as_many_workers_as_no_machine_can_use_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert check_workers(64) == 64
    with pytest.raises(ValueError, match="workers=500 on a machine of 2 cores: at most 64 processes may read images"):
        check_workers(500)
    monkeypatch.setattr(os, "cpu_count", lambda: 128)
    assert check_workers(500) == 500
