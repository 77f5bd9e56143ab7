"""Samples of tasks: several views of several sizes, and makers and batches of a task's own."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from vitrail.data.contract import NO_LABEL, Batch, CropsBatch, Dataset, ImageBatch, Level, Sample
from vitrail.data.decode import OpenedImage, open_image
from vitrail.data.draws import Draws
from vitrail.data.loader import ImageLoader, Loader
from vitrail.data.sampler import Ranks, Sampler
from vitrail.data.samples import Crops, SampleMaker
from vitrail.data.sources.files import ImageFiles
from vitrail.data.sources.shapes import ShapesDataset, open_shapes
from vitrail.data.stored import ArrayDataset, without_labels
from vitrail.evaluation.classify import ClassificationMeter
from vitrail.settings.images import AugmentationSettings, CropSettings

GLOBAL = AugmentationSettings(scale=(0.4, 1.0)).build(image_size=32)
LOCAL = AugmentationSettings(scale=(0.05, 0.4), policy="three").build(image_size=16)
MULTI_CROP = Crops([GLOBAL, GLOBAL, LOCAL, LOCAL, LOCAL, LOCAL])


@pytest.fixture(scope="module")
def noise() -> ArrayDataset:
    pixels = np.random.RandomState(0).randint(0, 256, (24, 40, 48, 3), dtype=np.uint8)
    return ArrayDataset(name="noise", split="train", images=pixels, levels={})


def crops_of(batches: Sequence[CropsBatch]) -> dict[int, list[Tensor]]:
    return {
        index: [crops[row] for crops in batch.crops]
        for batch in batches
        for row, index in enumerate(batch.indices.tolist())
    }


def load(
    data: Dataset, *, ranks: Ranks | None = None, parts: int = 1, workers: int = 0, batch_size: int = 8, start: int = 0
) -> list[CropsBatch]:
    sampler = Sampler(len(data), batch_size=batch_size, seed=3, ranks=ranks, num_micro_batches=parts)
    return list(Loader(data, make=MULTI_CROP, sampler=sampler, num_workers=workers).epoch(1, start_step=start))


def test_views_of_several_sizes_come_one_tensor_a_size(noise: ArrayDataset) -> None:
    [batch, *_] = batches = load(noise)
    assert [tuple(crops.shape) for crops in batch.crops] == [(8, 2, 3, 32, 32), (8, 4, 3, 16, 16)]
    assert all(crops.flatten(0, 1).is_contiguous(memory_format=torch.channels_last) for crops in batch.crops)
    assert batch.targets.tolist() == [NO_LABEL] * 8
    assert sum(batch.num_samples for batch in batches) == 24
    moved = batch.to("meta")
    assert (moved.crops[1].device.type, moved.targets.device.type, moved.indices.device.type) == ("meta", "meta", "cpu")


def test_a_view_depends_on_seed_epoch_index_and_view_alone(noise: ArrayDataset) -> None:
    whole = crops_of(load(noise))
    for index, (large, small) in whole.items():
        image = open_image(noise.read(index))
        for view, crop in enumerate([*large, *small]):
            assert torch.equal(crop, (GLOBAL if view < 2 else LOCAL)(image, Draws(3, 1, index, view)))
    divided = [batch for rank in range(3) for batch in load(noise, ranks=Ranks(rank, 3))]
    others = (load(noise, workers=2), load(noise, parts=3), load(noise, batch_size=12), divided, load(noise, start=1))
    for other in map(crops_of, others):
        assert len(other) >= 16
        for index, crops in other.items():
            assert all(map(torch.equal, crops, whole[index]))


def test_an_image_is_decoded_once_for_all_its_views(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [str(tmp_path / f"{number}.png") for number in range(4)]
    for path in paths:
        Image.new("RGB", (40, 40), "red").save(path)
    decoded: list[int] = []

    def counting(content: bytes | np.ndarray) -> OpenedImage:
        image = open_image(content)
        if isinstance(content, np.ndarray):  # pixels that are decoded already
            return image

        def decode(shrink: int) -> Tensor:
            decoded.append(shrink)
            return image._decode(shrink)

        return replace(image, _decode=decode)

    monkeypatch.setattr("vitrail.data.samples.open_image", counting)
    load(ImageFiles(paths), batch_size=2)
    assert decoded == [1] * 4


def test_a_photograph_is_decoded_as_small_as_its_largest_need(tmp_path: Path) -> None:
    path = str(tmp_path / "large.jpg")
    Image.radial_gradient("L").resize((640, 480)).convert("RGB").save(path)
    image = open_image(Path(path).read_bytes())
    whole, centre = (AugmentationSettings(scale=(share, share), flip=0.0) for share in (1.0, 0.25))
    for settings, expected in ((whole, 8), (centre, 4)):
        transforms = [whole.build(image_size=60), settings.build(image_size=60)]
        draws = [Draws(0, 0, 0, view) for view in range(2)]
        views = Crops(transforms).make(ImageFiles([path]), Sample(0, 0, 0), draws)
        exact = [one(image, Draws(0, 0, 0, view)) for view, one in enumerate(transforms)]
        assert min(one.plan((480, 640), Draws(0, 0, 0, view)).shrink for view, one in enumerate(transforms)) == expected
        for view, alone in zip(views, exact, strict=True):
            assert (view.float() - alone.float()).abs().mean() < 2.0  # of 255


def test_crops_of_self_supervision_have_their_own_operations() -> None:
    """Each probability is met, whatever the others are, and a crop of none of them is a crop alone."""
    rows, columns = torch.meshgrid(torch.arange(32), torch.arange(32), indexing="ij")
    pixels = torch.stack([rows * 5 + 40, columns * 5 + 20, (rows + columns) * 3 + 30], dim=2).to(torch.uint8)
    image = open_image(pixels.numpy())
    none: dict[str, Any] = dict.fromkeys(("flip", "jitter_probability", "grey", "blur", "solarise"), 0.0)
    alone = CropSettings(scale=(1.0, 1.0), **none)
    plain = [alone.build(image_size=32)(image, Draws(number)) for number in range(200)]
    for name, probability in (("jitter_probability", 0.8), ("grey", 0.2), ("blur", 0.5), ("solarise", 0.2)):
        changed = alone.model_copy(update={name: probability}).build(image_size=32)
        views = [changed(image, Draws(number)) for number in range(200)]
        share = sum(not torch.equal(view, one) for view, one in zip(views, plain, strict=True)) / 200
        assert share == pytest.approx(probability, abs=0.1), name
        if name == "grey":
            is_grey = [bool((view[0] == view[1]).all() and (view[1] == view[2]).all()) for view in views]
            assert sum(is_grey) / 200 == pytest.approx(share)
        if name == "solarise":
            inverted = [view for view, one in zip(views, plain, strict=True) if not torch.equal(view, one)]
            assert max(view.max().item() for view in inverted) < 128 <= plain[0].max().item()


@dataclass(frozen=True)
class MaskBatch:
    """Images and where their objects are."""

    images: Tensor  # uint8 [batch, 3, height, width]
    masks: Tensor  # uint8 [batch, height, width]
    indices: Tensor

    @property
    def num_samples(self) -> int:
        return len(self.indices)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "MaskBatch":
        images, masks = (part.to(device, non_blocking=non_blocking) for part in (self.images, self.masks))
        return MaskBatch(images, masks, self.indices)


class FlippedMasks(SampleMaker[tuple[Tensor, Tensor], MaskBatch]):
    """An image that is mirrored by chance, and its mask with it."""

    def make(self, dataset: Dataset, sample: Sample, draws: Sequence[Draws]) -> tuple[Tensor, Tensor]:
        assert isinstance(dataset, ShapesDataset)
        image = open_image(dataset.read(sample.index)).pixels()
        mask = torch.from_numpy(dataset.annotation(sample.index).mask)
        return (image.flip(-1), mask.flip(-1)) if draws[0].chance(0.5) else (image, mask)

    def collate(self, dataset: Dataset, made: Sequence[tuple[Tensor, Tensor]], indices: Tensor) -> MaskBatch:
        images, masks = map(torch.stack, zip(*made, strict=True))
        return MaskBatch(images, masks, indices)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_task_has_its_own_samples_and_batches(num_workers: int) -> None:
    data = open_shapes("size=16,count=16").open("train")
    assert isinstance(data, ShapesDataset)
    loader = Loader(data, make=FlippedMasks(), sampler=Sampler(16, batch_size=8), num_workers=num_workers)
    num_flipped = 0
    for batch in loader.epoch(0):
        assert isinstance(batch, MaskBatch)
        for image, mask, index in zip(batch.images, batch.masks, batch.indices.tolist(), strict=True):
            stored, drawn = torch.from_numpy(data.read(index)).permute(2, 0, 1), data.annotation(index).mask
            is_flipped = not torch.equal(image, stored)
            num_flipped += is_flipped
            assert torch.equal(image, stored.flip(-1) if is_flipped else stored)
            assert torch.equal(mask, torch.from_numpy(drawn[:, ::-1].copy() if is_flipped else drawn))
    assert 0 < num_flipped < 16


def test_batches_keep_the_contract() -> None:
    batches: list[Batch] = [
        ImageBatch(torch.zeros(2, 3, 4, 4), torch.zeros(2), torch.arange(2), answers=torch.zeros(2, 5)),
        MaskBatch(torch.zeros(2, 3, 4, 4), torch.zeros(2, 4, 4), torch.arange(2)),
    ]
    for batch in batches:
        moved = batch.to("meta", non_blocking=True)
        assert (moved.num_samples, moved.indices.tolist()) == (2, [0, 1])
    images = batches[0].to("meta")
    assert isinstance(images, ImageBatch)
    assert images.answers is not None
    assert {part.device.type for part in (images.images, images.targets, images.answers)} == {"meta"}


def test_images_without_labels_have_targets_that_no_evaluation_counts(tmp_path: Path, noise: ArrayDataset) -> None:
    level = Level(classes=("a", "b"), labels=np.arange(24) % 2)
    labelled = ArrayDataset(name="noise", split="val", images=noise.images, levels={"label": level})
    for data in (noise, without_labels(labelled)):
        loader = ImageLoader(data, transform=GLOBAL, sampler=Sampler(24, batch_size=24, is_training=False))
        assert loader.classes == ()
        [batch] = loader.epoch(0)
        assert batch.targets.tolist() == [NO_LABEL] * 24
        meter = ClassificationMeter(2)
        meter.update(torch.randn(24, 2), batch.targets)
        assert meter.count == 0
        with pytest.raises(ValueError, match="noise has no labels"):
            ImageLoader(data, transform=GLOBAL, sampler=Sampler(24, batch_size=24), level="label")
    assert len(labelled.levels) == 1
    (tmp_path / "a.jpg").write_bytes(b"")
    files = ImageFiles([str(tmp_path / "a.jpg"), "b.jpg"])
    assert (len(files), files.levels, files.locate(1)) == (2, {}, "b.jpg")
