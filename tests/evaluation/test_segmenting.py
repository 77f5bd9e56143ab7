"""Masks measured and made: parity with torchmetrics, windows and scales, strips that are the whole."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from vitrail.data.blend import Normalize
from vitrail.evaluation import segmenting
from vitrail.evaluation.segmentation import MaskMeter, describe_counts
from vitrail.evaluation.segmenting import Looking, Segmenter, fit_sides
from vitrail.heads.segment import SegmentModel, SegmentSettings
from vitrail.models.catalog import create_model
from vitrail.models.contract import Model
from vitrail.tasks.segment.evaluator import WorstMask, WorstMasks


def test_figures_are_those_of_torchmetrics() -> None:
    from torchmetrics.classification import MulticlassAccuracy, MulticlassJaccardIndex

    generator = torch.Generator().manual_seed(0)
    truth = torch.randint(4, (3, 20, 30), generator=generator, dtype=torch.uint8)
    answers = torch.where(torch.rand(truth.shape, generator=generator) < 0.6, truth, truth.flip(0))
    truth[:, :4] = 255
    meters = [MaskMeter(6), MaskMeter(6)]  # classes 4 and 5 are never there
    for place in range(3):
        meters[place % 2].update(answers[place], truth[place])
    meters[0].counts += meters[1].counts
    found = dict(meters[0].results())
    arguments: Any = {"num_classes": 6, "ignore_index": 255}
    said, known = answers.long(), truth.long()
    assert found["mean_iou"] == pytest.approx(100 * float(MulticlassJaccardIndex(**arguments)(said, known)), abs=1e-4)
    accuracy = MulticlassAccuracy(average="micro", **arguments)(said, known)
    assert found["pixel_accuracy"] == pytest.approx(100 * float(accuracy), abs=1e-4)
    each = MulticlassJaccardIndex(average="none", **arguments)(said, known)
    rows = meters[0].rows([str(place) for place in range(6)])
    assert [row["iou"] for row in rows[:4]] == pytest.approx((100 * each[:4]).tolist(), abs=1e-4)
    assert rows[4]["iou"] is None


@pytest.mark.parametrize("num_processes", [2, 3, 7])
def test_any_division_into_processes_gives_the_figures_of_one(num_processes: int) -> None:
    """Counts of pixels are whole numbers: neither their sum nor the worst images depend on who counted, or when."""
    generator = torch.Generator().manual_seed(num_processes)
    truth = torch.randint(5, (7, 12, 9), generator=generator, dtype=torch.uint8)
    answers = torch.where(torch.rand(truth.shape, generator=generator) < 0.7, truth, truth.roll(1, 0))
    truth[:, :, 0] = 255

    def measure(places: list[int]) -> tuple[Tensor, list[WorstMask]]:
        meter, worst = MaskMeter(5), WorstMasks()
        for place in places:
            figure = describe_counts(meter.update(answers[place], truth[place]))["mean_iou"]
            if worst.is_worse(figure):
                pair = truth[place].numpy(), answers[place].numpy()
                worst.join([WorstMask(figure, place, np.zeros((3, 12, 9), np.uint8), *pair)])
        return meter.counts, worst.found

    counts, worst = measure(list(range(7)))
    owners = torch.arange(7)[torch.randperm(7, generator=generator)] % num_processes
    parts = [measure((owners == process).nonzero()[:, 0].flip(0).tolist()) for process in range(num_processes)]
    assert torch.equal(sum(part for part, _ in parts), counts)  # type: ignore[arg-type]
    together = WorstMasks()
    for _, found in reversed(parts):
        together.join(found)
    assert [one.number for one in together.found] == [one.number for one in worst]
    assert len(worst) < 7


@pytest.fixture(scope="module")
def model() -> Model:
    torch.manual_seed(0)
    trunk = create_model("deit_tiny", image_size=32, patch_size=8, dim=16, num_heads=2, depth=2, num_classes=0)
    found = SegmentModel(trunk, SegmentSettings(num_classes=5, channels=8, has_auxiliary=False))
    torch.nn.init.normal_(found.get_parameter("head.classifier.weight"))
    return found.eval()


def make(model: Model, **looking: object) -> Segmenter:
    return Segmenter(model, Looking(**looking), normalize=Normalize(), device=torch.device("cpu"))  # type: ignore[arg-type]


def pixels(height: int, width: int, seed: int = 0) -> Tensor:
    return torch.randint(256, (2, 3, height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def test_strips_are_the_whole_image(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    images = pixels(29, 43)
    padded = functional.pad(Normalize()(images), (0, 5, 0, 3))
    logits = functional.interpolate(model(padded), size=(32, 48), mode="bilinear", align_corners=False)
    wanted = logits[..., :29, :43].argmax(dim=1).to(torch.uint8)
    monkeypatch.setattr(segmenting, "_STRIP", 5 * 43 * 2 * 4)  # four rows at a time
    assert (make(model)(images) == wanted).float().mean() > 0.999


@torch.no_grad()
def test_scales_and_mirrors_are_averaged(model: Model) -> None:
    images = pixels(32, 48)
    total = torch.zeros(2, 5, 32, 48)
    for size in ((16, 24), (32, 48)):
        seen = functional.interpolate(
            Normalize()(images), size=size, mode="bilinear", align_corners=False, antialias=size != (32, 48)
        )
        for answer in (model(seen), model(seen.flip(-1)).flip(-1)):
            wide = functional.interpolate(answer, size=(32, 48), mode="bilinear", align_corners=False)
            total += wide.softmax(dim=1)
    found = make(model, scales=(0.5, 1.0), flip=True)(images)
    assert (found == total.argmax(dim=1)).float().mean() > 0.999
    assert fit_sides((32, 48), Looking(short_side=64, long_side=72)) == (48, 72)
    assert fit_sides((1, 5000), Looking(short_side=256)) == (1, 1024)


@torch.no_grad()
def test_windows_are_averaged_where_they_overlap(model: Model) -> None:
    images = pixels(32, 48)
    segmenter = make(model, window=(32, 32), overlap=0.5)
    logits = torch.zeros(2, 5, 16, 24)
    count = torch.zeros(24)
    for left in (0, 16):
        logits[..., left // 2 : left // 2 + 16] += model(Normalize()(images)[..., left : left + 32])
        count[left // 2 : left // 2 + 16] += 1
    wide = functional.interpolate(logits / count, size=(32, 48), mode="bilinear", align_corners=False)
    assert (segmenter(images) == wide.argmax(dim=1)).float().mean() > 0.999


@torch.no_grad()
def test_a_model_of_one_size_slides_by_itself() -> None:
    trunk = create_model("resmlp_s12", image_size=32, patch_size=8, dim=16, depth=2, num_classes=0)
    found = SegmentModel(trunk, SegmentSettings(num_classes=5, kind="linear", has_auxiliary=False)).eval()
    for size in ((70, 33), (1, 300), (32, 32)):
        assert make(found)(pixels(*size)).shape == (2, *size)


def test_a_large_image_is_seen_by_windows(model: Model) -> None:
    seen: list[tuple[int, ...]] = []
    handle = model.register_forward_pre_hook(lambda module, inputs: seen.append(tuple(inputs[0].shape[2:])))
    try:
        make(model, largest=40)(pixels(64, 40))
        make(model, largest=64)(pixels(64, 40))
    finally:
        handle.remove()
    assert seen == [(32, 32), (64, 40)]
