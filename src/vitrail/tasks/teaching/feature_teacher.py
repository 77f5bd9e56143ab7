"""Teachers of features: what any model says of an image before it names a class, for images of any size."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.data.checks import as_pair
from vitrail.heads.features import FeatureShape, ProjectedFeatures
from vitrail.layers.grid import Grid
from vitrail.models.contract import Features, Model
from vitrail.models.published import split_model_texts
from vitrail.models.tokenizer import Tokenizer
from vitrail.settings.own import load_own, working_directory_on_path
from vitrail.settings.section import ImageSize
from vitrail.storage import describe_settings
from vitrail.storage.tensors import hash_tensors
from vitrail.tasks.teaching.onnx_teacher import OnnxModel
from vitrail.tasks.teaching.teacher_input import TeacherInput
from vitrail.tasks.teaching.teacher_sources import KINDS, find_kind, hash_parts, is_there, source_code

_MOST_TOKENS = 2  # of a summary: a class token and a distillation token


@dataclass(frozen=True, kw_only=True, eq=False)
class FeatureSource:
    """A model as it is found: how its features are asked for, and what it wants to see."""

    name: str  # as the user wrote it
    ask: Callable[[Tensor], ProjectedFeatures]  # prepared images [batch, 3, height, width] -> its features
    fingerprint: str  # of its weights and its settings
    image_size: tuple[int, int] | None = None  # None: images of any size, which stay as they are
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)
    is_autocast: bool = True  # whether its products may be computed in less than float32


class FeatureTeacher:
    """A model whose features are learnt.

    Called with pixels float32 [batch, 3, height, width] of 0 ... 1, it gives rows float32 [batch, numbers] of the
    summary and, resampled to one grid, the patches; no gradient flows through them.
    """

    def __init__(
        self, source: FeatureSource, *, levels: frozenset[str], image_size: ImageSize, device: torch.device
    ) -> None:
        self.source, self.name, self.levels = source, source.name, levels
        self.input = TeacherInput(source, device=device)
        found = self.ask(torch.zeros(1, 3, *as_pair(image_size), device=device))
        self.summary = 0 if found.summary is None else found.summary.shape[1]  # numbers
        self.patches = 0 if found.patches is None else found.patches.shape[1]  # channels
        self.grid: Grid = (0, 0) if found.patches is None else (found.patches.shape[2], found.patches.shape[3])
        self.fingerprint = hash_parts(source.fingerprint, self.input.fingerprint, sorted(levels))
        self.shape = FeatureShape(summary=self.summary, patches=self.patches, grid=self.grid)

    def on_grid(self, grid: Grid) -> "FeatureTeacher":
        """The same teacher with patches on that grid from now on."""
        self.shape = FeatureShape(summary=self.summary, patches=self.patches, grid=grid)
        return self

    def __call__(self, pixels: Tensor) -> Tensor:
        found = self.ask(pixels)
        return self.shape.join(ProjectedFeatures(*(None if part is None else part.float() for part in found)))

    def ask(self, pixels: Tensor) -> ProjectedFeatures:
        """The features of images, of those levels that are learnt, as the teacher has them."""
        with torch.inference_mode():
            images = self.input(pixels)
            with self.input.precision(pixels.device):
                found = self.source.ask(images)
            parts = [
                self._check(level, getattr(found, level), len(pixels)) if level in self.levels else None
                for level in ("summary", "patches")
            ]
        # A tensor made in inference mode can't be saved for a backward pass.
        return ProjectedFeatures(*(None if part is None else part.to(pixels.device).clone() for part in parts))

    def _check(self, level: str, part: Any, num_images: int) -> Tensor:
        ndim, wanted = (4, "[batch, dim, height, width]") if level == "patches" else (2, "[batch, dim]")
        if not isinstance(part, Tensor):
            raise ValueError(f"the teacher {self.name} gives no {level}: features.{level}=0 learns without")
        if part.ndim != ndim or len(part) != num_images or not part.is_floating_point():
            raise ValueError(
                f"the teacher {self.name} must give {level} {wanted} for {num_images} images, not {list(part.shape)}"
            )
        return part


def load_feature_teacher(
    spec: str,
    *,
    levels: frozenset[str],
    student_size: ImageSize,
    image_size: ImageSize | None = None,
    device: torch.device,
) -> FeatureTeacher:
    """The teacher that a text stands for, asked for "summary", "patches" or both.

    `student_size` is the size of the images it will be asked about, `image_size` what it shall see of them, where that
    is not its own size.
    """
    if not is_there(spec) and len(split_model_texts(spec)) > 1:
        raise ValueError(f"teacher={spec}: features are learnt from one teacher, give {KINDS}")
    opened = {"onnx": _open_onnx, "trained": _open_trained, "function": _open_function}
    source = opened[find_kind(spec)](spec, levels=levels, image_size=image_size, device=device)
    return FeatureTeacher(source, levels=levels, image_size=student_size, device=device)


def _open_trained(
    spec: str, *, levels: frozenset[str], image_size: ImageSize | None, device: torch.device
) -> FeatureSource:
    """A run, a saved model, one of the hub, or one by name; whether it has a classifier does not matter."""
    from vitrail.inference.trained import load_trained  # which builds runs, and they have teachers

    found = load_trained(spec)
    if isinstance(found.model, Tokenizer):
        raise ValueError(f"{spec} is a tokenizer, whose codes are no features: give it as masked.tokenizer={spec}")
    if image_size is not None:
        try:
            found = found.seeing(image_size=image_size)
        except ValueError as error:
            raise ValueError(f"teacher.image_size={image_size} is no size for the teacher {spec}: {error}") from None
    model = found.model
    if model.config.in_channels != 3:
        raise ValueError(f"{spec} takes images of {model.config.in_channels} channels: a teacher must take 3")
    fingerprint = hash_parts(model.family, describe_settings(model.config), hash_tensors(model.state_dict()))
    model.requires_grad_(False).eval().to(device)
    return FeatureSource(
        name=spec,
        ask=lambda images: _features_of(model, images, levels=levels, spec=spec),
        fingerprint=fingerprint,
        image_size=as_pair(found.view.image_size),
        mean=model.preprocessing.mean,
        std=model.preprocessing.std,
    )


def _features_of(model: Model, images: Tensor, *, levels: frozenset[str], spec: str) -> ProjectedFeatures:
    if model.reads_patches and "summary" in levels:
        raise ValueError(
            f"the class stage of the teacher {spec} has learnt nothing: features.summary=0 learns its patches alone"
        )
    if "patches" not in levels:
        return ProjectedFeatures(_one_vector(model.summarize(images), spec=spec), None)
    try:
        summary, patches, _ = model.features(images)
    except ValueError as error:
        raise ValueError(f"the teacher {spec} gives no patches, features.patches=0 learns without ({error})") from None
    return ProjectedFeatures(_one_vector(summary, spec=spec) if "summary" in levels else None, patches)


def _one_vector(tokens: Tensor, *, spec: str) -> Tensor:
    """Summary tokens [batch, tokens, dim] side by side."""
    if tokens.shape[1] > _MOST_TOKENS:
        raise ValueError(
            f"the teacher {spec} has {tokens.shape[1]} summary tokens, one a class: features.summary=0 learns its "
            "patches alone"
        )
    return tokens.flatten(1)


def _open_function(
    spec: str, *, levels: frozenset[str], image_size: ImageSize | None, device: torch.device
) -> FeatureSource:
    """What `module:function` returns: a callable from pixels of 0 ... 1 to a summary, or a summary and patches.

    Its attribute `fingerprint`, a text, changes when its answers do; without one the function's file stands for it.
    """
    make = load_own(spec, what="teacher")
    with working_directory_on_path():
        ask = make()
    if not callable(ask):
        raise ValueError(f"the teacher {spec} must return a callable from pixels to features, not {type(ask).__name__}")
    fingerprint = getattr(ask, "fingerprint", None) or source_code(make)
    if isinstance(ask, nn.Module):
        fingerprint = hash_parts(fingerprint, hash_tensors(ask.state_dict()))
        ask.requires_grad_(False).eval().to(device)
    return FeatureSource(
        name=spec,
        ask=lambda images: _features_in(ask(images)),
        fingerprint=hash_parts(spec, fingerprint),
        image_size=None if image_size is None else as_pair(image_size),
    )


def _features_in(answer: Any) -> ProjectedFeatures:
    """What a function of a user's own says: a summary, a pair, or `Features`."""
    if isinstance(answer, Features):
        return ProjectedFeatures(answer.summary.flatten(1), answer.patches)
    if isinstance(answer, tuple) and len(answer) == 2:
        return ProjectedFeatures(*answer)
    return ProjectedFeatures(answer, None)


def _open_onnx(
    spec: str, *, levels: frozenset[str], image_size: ImageSize | None, device: torch.device
) -> FeatureSource:
    """The outputs `summary` [batch, dim] and `patches` [batch, dim, height, width] of a file."""
    model = OnnxModel(spec, image_size=image_size, device=device)
    missing = sorted(levels - model.outputs.keys())
    if missing:
        given = ", ".join(f"{name} {shape}" for name, shape in model.outputs.items())
        raise ValueError(
            f"{spec} gives {given} and no {' or '.join(missing)}: export summary [batch, dim] and patches [batch, dim, "
            "height, width] as outputs of these names"
        )
    names = [level for level in ("summary", "patches") if level in levels]

    def ask(images: Tensor) -> ProjectedFeatures:
        found = dict(zip(names, model.ask(images, *names), strict=True))
        return ProjectedFeatures(found.get("summary"), found.get("patches"))

    return FeatureSource(
        name=spec,
        ask=ask,
        fingerprint=model.fingerprint,
        image_size=model.image_size,
        mean=model.mean,
        std=model.std,
        is_autocast=False,  # the file says itself what is computed in which type
    )
