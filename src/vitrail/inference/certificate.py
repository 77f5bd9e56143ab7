"""The certificate of an export: how far its answers on real images are from the model's, and whether it may."""

import datetime
import math
import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from vitrail.inference.export_record import ExportRecord
from vitrail.inference.exported import EngineModel
from vitrail.inference.judging import Judge
from vitrail.inference.proof_images import ProofImages
from vitrail.inference.trained import Trained

# The largest difference that is allowed, as a share of the largest number that the model gives there.
TOLERANCES = {"fp32": 1e-4, "fp16": 2e-2, "bf16": 1e-1}
BATCHES = (1, 3, 16)
NUM_IMAGES, NUM_DENSE_IMAGES = 256, 32  # that an export is proved on, where there are as many; of segmentation
Answers = Mapping[str, Tensor]


@dataclass(frozen=True)
class Distance:
    """How far two tensors are from each other."""

    largest: float
    mean: float
    scale: float  # the largest absolute number of the model's own

    @property
    def share(self) -> float:
        """The largest difference over the largest number; infinite where something is not finite."""
        if self.largest == 0.0:  # also of a model that answers 0, as one does whose head was never trained
            return 0.0
        return self.largest / self.scale if self.scale > 0.0 and math.isfinite(self.largest) else math.inf


@dataclass(frozen=True)
class Trial:
    """Some images, asked at once."""

    batch: int
    height: int
    width: int
    largest: float  # difference of the logits, or of the embeddings where there are none
    share: float


@dataclass(frozen=True)
class Certificate:
    """What was compared, and what came out."""

    agrees: bool
    tolerance: float | None  # None: a quantised model is judged by its accuracy
    images: str  # where they are from
    num_images: int
    outputs: Mapping[str, Distance]
    trials: tuple[Trial, ...]
    top1_agreement: float | None  # share of images, or of places, with the same first class
    cosine: float | None  # mean cosine of the embeddings with the model's, where there are no classes
    accuracy: float | None  # of the model, in percent, where labels or masks are known
    exported_accuracy: float | None
    measure: str  # what it is judged by: that accuracy, else how near it is to the model
    num_labels: int

    def describe(self, record: ExportRecord) -> dict[str, Any]:
        """The content of certificate.json."""
        return {
            "agrees": self.agrees,
            "tolerance": self.tolerance,
            "images": self.images,
            "num_images": self.num_images,
            "outputs": {name: _told({**asdict(found), "share": found.share}) for name, found in self.outputs.items()},
            "trials": [_told(asdict(trial)) for trial in self.trials],
            "top1_agreement": self.top1_agreement,
            **_told({"cosine": self.cosine}),
            "accuracy": self.accuracy,
            "exported_accuracy": self.exported_accuracy,
            "measure": self.measure,
            "num_labels": self.num_labels,
            "model": record.model.name,
            "source": record.model.source,
            "engine": record.engine,
            "precision": record.precision,
            "weights_sha256": record.model.weights_sha256,
            "files_sha256": dict(record.files),
            "versions": f"vitrail {record.vitrail}, {record.versions}, Python {platform.python_version()}",
            "machine": record.cpu,
            "made": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        }

    @property
    def lost(self) -> float:
        """Points of its `measure` that the export loses."""
        if self.accuracy is not None and self.exported_accuracy is not None:
            return self.accuracy - self.exported_accuracy
        kept = self.cosine if self.top1_agreement is None else self.top1_agreement
        assert kept is not None, "a model gives logits or an embedding"
        return 100.0 * (1.0 - kept)

    def lines(self) -> list[str]:
        """What a terminal is told."""
        found = [
            f"{name}: largest difference {one.largest:.2e}, mean {one.mean:.2e} ({one.share:.1e} of the largest number)"
            for name, one in self.outputs.items()
        ]
        if self.top1_agreement is not None:
            found.append(
                f"the same first class for {self.top1_agreement:.2%} on {self.num_images:,} images ({self.images})"
            )
        if self.cosine is not None:
            found.append(f"cosine with the model: {self.cosine:.6f} on {self.num_images:,} images ({self.images})")
        if self.accuracy is not None and self.exported_accuracy is not None:
            found.append(
                f"{self.measure} on {self.num_labels:,} labelled images: {self.accuracy:.2f} % before, "
                f"{self.exported_accuracy:.2f} % exported"
            )
        return found

    def complaint(self) -> str:
        """Why an export is refused."""
        judged: list[Distance | Trial] = [*self.outputs.values(), *self.trials]
        worst = max(judged, key=lambda one: one.share)
        return (
            f"the export does not agree with the model: its answers differ by {worst.largest:.3g}, "
            f"{worst.share:.1e} of the largest number, and {self.tolerance:g} is allowed; nothing was written "
            "(--allow-drift keeps it all the same, marked; another engine or --precision may agree)"
        )


def _told(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Figures for JSON, which knows finite numbers only: None stands for others."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in figures.items()
    }


def certify(trained: Trained, exported: EngineModel, images: ProofImages, *, tolerance: float | None) -> Certificate:
    """Compare an export with its model: on all images, in batches of several sizes, at other image sizes where it may.

    With a `tolerance` of None it agrees whatever the differences are: then others judge its accuracy.
    """
    ask = reference_of(trained)
    wanted, found = answer_all(ask, images.pixels), answer_all(exported.outputs, images.pixels)
    outputs = {name: measure_distance(found[name], wanted[name]) for name in wanted}
    trials = []
    for batch in BATCHES:
        pixels = images.pixels[torch.arange(batch) % len(images)]
        trials.append(_try(ask, exported, pixels))
    for size in odd_sizes(exported):
        pixels = functional.interpolate(images.pixels[:2].float(), size=size, mode="bilinear").round().to(torch.uint8)
        trials.append(_try(ask, exported, pixels))
    shares = [one.share for one in outputs.values()] + [one.share for one in trials]
    judge = Judge(wanted, images)
    agreement = cosine = accuracy = exported_accuracy = None
    if judge.num_known:
        accuracy, exported_accuracy = judge(wanted), judge(found)
    if "logits" in wanted:
        first, other = wanted["logits"].argmax(dim=1), found["logits"].argmax(dim=1)
        agreement = float((first == other).float().mean())
    else:
        cosine = judge(found) / 100.0
    return Certificate(
        agrees=tolerance is None or all(share <= tolerance for share in shares),
        tolerance=tolerance,
        images=images.told,
        num_images=len(images),
        outputs=outputs,
        trials=tuple(trials),
        top1_agreement=agreement,
        cosine=cosine,
        accuracy=accuracy,
        exported_accuracy=exported_accuracy,
        measure=judge.measure,
        num_labels=judge.num_known,
    )


def reference_of(trained: Trained) -> Callable[[Tensor], Answers]:
    """What the model itself says about bytes: unfolded, in float32, by torch."""
    model = trained.model.eval()

    def ask(pixels: Tensor) -> Answers:
        return model.outputs(trained.normalize(pixels))

    return ask


@torch.inference_mode()
def answer_all(ask: Callable[[Tensor], Answers], pixels: Tensor, *, batch_size: int = 16) -> dict[str, Tensor]:
    """The answers to all images, batch by batch."""
    parts = [ask(part) for part in pixels.split(batch_size)]
    return {name: torch.cat([part[name].float() for part in parts]) for name in parts[0]}


def measure_distance(found: Tensor, wanted: Tensor) -> Distance:
    """How far what was found is from what was wanted."""
    gap = (found.double() - wanted.double()).abs()
    largest = float(gap.max())
    return Distance(
        largest=largest if math.isfinite(largest) else math.inf,
        mean=float(gap.mean()) if math.isfinite(largest) else math.inf,
        scale=float(wanted.abs().max()),
    )


def odd_sizes(exported: EngineModel) -> list[tuple[int, int]]:
    """Image sizes beside its own that an export of dynamic size is tried at: larger, and not square."""
    multiple, (height, width) = exported.record.input.multiple, exported.config.size
    if multiple is None:
        return []
    return [(height + multiple, width), (height, width + 2 * multiple), (height + multiple, width + multiple)]


def _try(ask: Callable[[Tensor], Answers], exported: EngineModel, pixels: Tensor) -> Trial:
    with torch.inference_mode():
        wanted, found = ask(pixels), exported.outputs(pixels)
    name = "logits" if "logits" in wanted else "embedding"
    distance = measure_distance(found[name], wanted[name])
    height, width = pixels.shape[2:]
    return Trial(len(pixels), height, width, distance.largest, distance.share)
