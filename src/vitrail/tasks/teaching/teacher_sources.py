"""Classifiers that may teach: trained models, models by name, and functions of the user's own."""

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from vitrail.data.checks import as_pair
from vitrail.models.contract import Model
from vitrail.models.published import read_model_text
from vitrail.settings.own import is_own, load_own, working_directory_on_path
from vitrail.settings.section import ImageSize
from vitrail.storage import describe_settings, hash_file, hash_text
from vitrail.storage.tensors import hash_tensors
from vitrail.weights.hub import HUB_PREFIX

KINDS = (
    "a run's folder, a saved model's, a name of `vitrail models` with published weights, timm/NAME.TAG, "
    "NAME init=FILE, hf://OWNER/NAME, FILE.onnx or module:function"
)


@dataclass(frozen=True, eq=False)
class TeacherSource:
    """A classifier as it is found: how it is asked, and what its classes are."""

    name: str  # as the user wrote it
    ask: Callable[[Tensor], Tensor]  # prepared images [batch, 3, height, width] -> logits [batch, its classes]
    fingerprint: str  # of its weights and its settings
    num_classes: int | None  # None: it shows with the first answer
    classes: tuple[str, ...] | None = None  # None: they have no names
    image_size: tuple[int, int] | None = None  # None: images of any size, which stay as they are
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)
    synonyms: Mapping[str, int] = field(default_factory=dict)  # indices of classes by their other names
    is_autocast: bool = True  # whether its products may be computed in less than float32


def find_kind(spec: str) -> Literal["onnx", "trained", "function"]:
    """What kind of thing a text stands for; one that stands for none is refused."""
    if spec.lower().endswith(".onnx"):
        return "onnx"
    if is_there(spec) or spec.startswith(HUB_PREFIX) or read_model_text(spec) is not None:
        return "trained"
    if is_own(spec):
        return "function"
    raise ValueError(f"{spec}: no such teacher; give {KINDS}")


def is_there(spec: str) -> bool:
    """Whether a text is the place of a file or a folder."""
    return bool(spec) and os.path.exists(os.path.expanduser(spec))


def open_trained(spec: str, *, image_size: ImageSize | None, device: torch.device) -> TeacherSource:
    """A run, a saved model, one of the hub, or one by name."""
    from vitrail.inference.trained import load_trained  # which builds runs, and they have teachers

    found = load_trained(spec)
    found.require_classifier(spec, of_images=True)
    if image_size is not None:
        found = found.seeing(image_size=image_size)
    size = as_pair(found.view.image_size)
    source = _source_of(found.model, spec, image_size=size, classes=found.classes, device=device)
    return replace(source, synonyms=found.synonyms)


def open_function(spec: str, *, image_size: ImageSize | None, device: torch.device) -> TeacherSource:
    """What `module:function` returns: a callable from pixels of 0 ... 1 to logits.

    It may have the attributes `classes` (names) and `fingerprint` (a text that changes when its answers do). Without a
    fingerprint the source file of the function stands for it, and the weights where the callable is a torch module;
    what else the file reads is not seen.
    """
    make = load_own(spec, what="teacher")
    with working_directory_on_path():
        ask = make()
    if not callable(ask):
        raise ValueError(f"the teacher {spec} must return a callable from pixels to logits, not {type(ask).__name__}")
    classes = getattr(ask, "classes", None)
    if classes is not None:
        if isinstance(classes, str) or not all(isinstance(name, str) for name in classes):
            raise ValueError(f"the teacher {spec}: its attribute classes must be a list of names, not {classes!r}")
        classes = tuple(classes)
    fingerprint = getattr(ask, "fingerprint", None) or source_code(make)
    if isinstance(ask, nn.Module):
        fingerprint = hash_parts(fingerprint, hash_tensors(ask.state_dict()))
        ask.requires_grad_(False).eval().to(device)
    return TeacherSource(
        name=spec,
        ask=ask,
        fingerprint=hash_parts(spec, fingerprint),
        num_classes=None if classes is None else len(classes),
        classes=classes,
        image_size=None if image_size is None else as_pair(image_size),
    )


def hash_parts(*parts: object) -> str:
    """One fingerprint of several things that are written out in full by repr."""
    return hash_text("\n".join(map(repr, parts)))


def _source_of(
    model: Model, spec: str, *, image_size: tuple[int, int], classes: tuple[str, ...] | None, device: torch.device
) -> TeacherSource:
    config = model.config
    if config.num_classes < 1:
        raise ValueError(f"{spec} has no classifier: it can't be a teacher")
    if config.in_channels != 3:
        raise ValueError(f"{spec} takes images of {config.in_channels} channels: a teacher must take 3")
    fingerprint = hash_parts(model.family, describe_settings(config), hash_tensors(model.state_dict()))
    model.requires_grad_(False).eval().to(device)
    return TeacherSource(
        name=spec,
        ask=model,
        fingerprint=fingerprint,
        num_classes=config.num_classes,
        classes=classes,
        image_size=image_size,
        mean=model.preprocessing.mean,
        std=model.preprocessing.std,
    )


def source_code(function: Callable[[], object]) -> str:
    """A fingerprint of the file that a function is written in."""
    return hash_file(Path(inspect.getfile(inspect.unwrap(function))))
