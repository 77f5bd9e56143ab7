"""Learning what a teacher says of images: cosine and smooth L1 between features, of the summary and of the patches.

The form is that of AM-RADIO and Theia: mostly the cosine, which compares directions and leaves out how long a vector
is, and a tenth of smooth L1, which brings the lengths along. As in Theia, the teacher's features are standardised
before: a few of their numbers are far larger than all others and far from zero, the same for every image, so that
cosine and distance would be about these alone, and a student that says one thing of all images would be nearly right.
"""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from vitrail.data.contract import ImageBatch
from vitrail.heads.features import FeatureShape, ProjectedFeatures
from vitrail.tasks.contract import Losses, Objective
from vitrail.tasks.features.settings import FeatureSettings
from vitrail.tasks.unlabelled.collapse import CollapseWatch

_MOST_SEEN = 256  # images of a step that its signals are taken from


class FeatureDistillation(Objective[ImageBatch]):
    """The loss of a student whose batches carry its teacher's features, standardised, as their answers.

    For each level, weight * (cosine * (1 - cos(student, teacher)) + (1 - cosine) * smooth L1), the mean over images
    and, for patches, over the grid.
    """

    is_divisible = True

    def __init__(self, settings: FeatureSettings, *, shape: FeatureShape, watch: CollapseWatch | None = None) -> None:
        self.settings, self.shape, self.watch = settings, shape, watch
        self._seen: list[Tensor] = []  # what the student says of the step's images so far

    def __call__(self, model: nn.Module, batch: ImageBatch) -> Losses:
        assert batch.answers is not None, "the task looks them up"
        teacher = self.shape.split(batch.answers)
        student: ProjectedFeatures = model(batch.images)
        parts: dict[str, Tensor] = {}
        total = torch.zeros((), device=batch.images.device)
        for level in ("summary", "patches"):
            own, wanted = getattr(student, level), getattr(teacher, level)
            if wanted is not None:
                parts[level] = compare(own.float(), wanted, cosine=self.settings.cosine)
                total = total + getattr(self.settings, level) * parts[level]
            elif own is not None:  # a summary that is not learnt: processes wait for a gradient of each parameter
                total = total + 0.0 * own.float().sum()
        parts = {level: part.detach() for level, part in parts.items()}
        vectors = describe_images(student).detach().float()
        with torch.no_grad():
            parts["similarity"] = similarity(student, teacher, settings=self.settings).mean()
            parts |= spread_of(vectors)
        return Losses(total, parts, vectors[:_MOST_SEEN])

    def note(self, seen: Any) -> None:
        """Remember what the student says of a micro-batch."""
        self._seen.append(seen)

    def after_step(self, model: nn.Module) -> None:
        """Let the watch see how far the answers to the step's images differ."""
        if self.watch is not None and self._seen:
            self.watch.see(spread_of(torch.cat(self._seen)[:_MOST_SEEN]))
        self.skip_step()

    def skip_step(self) -> None:
        """Forget what was said in a step that was not made."""
        self._seen.clear()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps: what the watch has seen."""
        return {} if self.watch is None else {"watch": self.watch.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        if self.watch is not None and "watch" in state:
            self.watch.load_state_dict(state["watch"])


def compare(student: Tensor, teacher: Tensor, *, cosine: float) -> Tensor:
    """How far features [batch, dim, ...] are from a teacher's: a share of 1 minus the cosine, the rest smooth L1."""
    angle = 1.0 - functional.cosine_similarity(student, teacher, dim=1).mean()
    return cosine * angle + (1.0 - cosine) * functional.smooth_l1_loss(student, teacher)


def similarity(student: ProjectedFeatures, teacher: ProjectedFeatures, *, settings: FeatureSettings) -> Tensor:
    """The cosine of student and teacher for each image [batch]: of summary and patches, by their weights."""
    cosines, weights = [], []
    for level in ("summary", "patches"):
        own, wanted = getattr(student, level), getattr(teacher, level)
        if wanted is not None:
            of_images = functional.cosine_similarity(own.float(), wanted, dim=1).reshape(len(own), -1).mean(dim=1)
            cosines.append(getattr(settings, level) * of_images)
            weights.append(getattr(settings, level))
    return torch.stack(cosines).sum(dim=0) / sum(weights)


def describe_images(student: ProjectedFeatures) -> Tensor:
    """One vector for each image [batch, dim]: the mean of its patches, or the summary where no patches are learnt."""
    if student.patches is not None:
        return student.patches.mean(dim=(2, 3))
    assert student.summary is not None
    return student.summary


def spread_of(vectors: Tensor) -> dict[str, Tensor]:
    """Signals of collapse of vectors [images, dim]: how far directions differ, and how many of them there are.

    The effective rank is the participation ratio, (sum of eigenvalues)^2 / sum of their squares, of the covariance: it
    needs no decomposition, so that a device does not wait for the host.
    """
    vectors = functional.normalize(vectors, dim=1)
    centred = vectors - vectors.mean(dim=0)
    energy = centred.square().sum()
    with torch.autocast(vectors.device.type, enabled=False):
        products = centred @ centred.T if len(vectors) < vectors.shape[1] else centred.T @ centred
    rank = energy.square() / products.square().sum().clamp_min(1e-20)
    return {"feature_deviation": vectors.std(dim=0, correction=0).mean(), "effective_rank": rank.clamp_min(1.0)}


def whiten(features: ProjectedFeatures, kind: Literal["image", "none"]) -> ProjectedFeatures:
    """A teacher's features with mean 0 and deviation 1 of the numbers of each image and patch, or as they are."""
    if kind == "none":
        return features
    summary, patches = features
    if summary is not None:
        summary = functional.layer_norm(summary, summary.shape[1:])
    if patches is not None:
        rows = patches.movedim(1, -1)
        patches = functional.layer_norm(rows, rows.shape[-1:]).movedim(-1, 1)
    return ProjectedFeatures(summary, patches)
