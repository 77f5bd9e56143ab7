"""Teachers of a student (thesis 3.3): whatever classifies images, asked about the student's own augmented ones."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from vitrail.inference.class_names import are_numbers, rename_classes
from vitrail.models.published import split_model_texts
from vitrail.settings.section import ImageSize
from vitrail.tasks.distill.teacher_classes import ClassMapping, Groups, match_classes, read_mapping, select
from vitrail.tasks.teaching.onnx_teacher import open_onnx
from vitrail.tasks.teaching.teacher_input import TeacherInput
from vitrail.tasks.teaching.teacher_sources import (
    KINDS,
    TeacherSource,
    find_kind,
    hash_parts,
    is_there,
    open_function,
    open_trained,
)


class Teacher(ABC):
    """Answers for the classes of a student.

    Called with pixels float32 [batch, 3, height, width] of 0 ... 1, it gives float32 logits [batch, classes] on the
    same device, which no gradient flows through.
    """

    name: str
    fingerprint: str  # hex: of everything the answers depend on

    @abstractmethod
    def __call__(self, pixels: Tensor) -> Tensor:
        """The teacher's logits [batch, classes] for images."""


class SingleTeacher(Teacher):
    """One classifier: images are resized and normalised to its liking, its classes made the student's."""

    def __init__(
        self, source: TeacherSource, *, classes: Sequence[str], mapping: ClassMapping | None, device: torch.device
    ) -> None:
        self.source, self.name = source, source.name
        self.classes, self.mapping = tuple(classes), mapping
        self.input = TeacherInput(source, device=device)
        self.num_classes = source.num_classes
        self.groups: Groups = None if self.num_classes is None else self._match(self.num_classes)
        self.fingerprint = hash_parts(
            source.fingerprint,
            source.image_size,
            (source.mean, source.std),
            (self.classes, source.classes, mapping),
            str(self.input.dtype),
        )

    def __call__(self, pixels: Tensor) -> Tensor:
        with torch.inference_mode():
            images = self.input(pixels)
            with self.input.precision(pixels.device):
                answers = self.source.ask(images)
            self._check(answers, len(pixels))
            logits = select(answers.to(pixels.device).float(), self.groups)
        return logits.clone()  # a tensor made in inference mode can't be saved for a backward pass

    def _check(self, answers: Tensor, num_images: int) -> None:
        wanted = [num_images, self.num_classes or "classes"]
        shape = list(answers.shape) if isinstance(answers, Tensor) else type(answers).__name__
        if not isinstance(answers, Tensor) or answers.ndim != 2 or len(answers) != num_images:
            raise ValueError(f"the teacher {self.name} must answer with logits {wanted}, not {shape}")
        if self.num_classes is None:  # nobody could know before
            self.num_classes = answers.shape[1]
            self.groups = self._match(self.num_classes)
        if answers.shape[1] != self.num_classes:
            raise ValueError(f"the teacher {self.name} must answer with logits {wanted}, not {shape}")

    def _match(self, num_known: int) -> Groups:
        source, known = self.source, self.source.classes
        if known is not None and are_numbers(self.classes, num_known):
            known = None
        elif known is not None:
            known = rename_classes(known, self.classes, synonyms=source.synonyms)
        return match_classes(self.classes, teacher=self.name, num_known=num_known, known=known, mapping=self.mapping)


class MeanTeacher(Teacher):
    """Several teachers at once: the logarithm of the mean of their probabilities."""

    def __init__(self, teachers: Sequence[Teacher]) -> None:
        self.teachers = tuple(teachers)
        self.name = ",".join(teacher.name for teacher in teachers)
        self.fingerprint = hash_parts("mean", *(teacher.fingerprint for teacher in teachers))

    def __call__(self, pixels: Tensor) -> Tensor:
        answers = torch.stack([teacher(pixels).log_softmax(dim=-1) for teacher in self.teachers])
        return answers.logsumexp(dim=0) - math.log(len(self.teachers))


def load_teacher(
    spec: str,
    *,
    classes: Sequence[str],
    image_size: ImageSize | None = None,
    mapping: str | None = None,
    device: torch.device,
) -> Teacher:
    """The teacher of a student with these classes; several separated by commas teach together.

    `image_size` is what it shall see, where that is not its own size. `mapping` is a JSON file {class of the student:
    name or index of the teacher's, or a list of them}; for several teachers one file for all, or one for each,
    separated by commas, where an empty one leaves a teacher to the names of its classes.
    """
    specs = [spec] if is_there(spec) else split_model_texts(spec)
    if not all(specs):
        raise ValueError(f"teacher={spec}: a name is empty; give {KINDS}; several with a comma between two")
    files = [part.strip() for part in (mapping or "").split(",")]
    if len(files) not in (1, len(specs)):
        raise ValueError(f"{len(files)} files in teacher.classes for {len(specs)} teachers: give one, or one for each")
    files = files * len(specs) if len(files) == 1 else files
    mappings = [read_mapping(file, classes) if file else None for file in files]
    teachers = [
        SingleTeacher(
            open_source(part, image_size=image_size, device=device), classes=classes, mapping=known, device=device
        )
        for part, known in zip(specs, mappings, strict=True)
    ]
    return teachers[0] if len(teachers) == 1 else MeanTeacher(teachers)


def open_source(spec: str, *, image_size: ImageSize | None, device: torch.device) -> TeacherSource:
    """The classifier that a text stands for."""
    opened = {"onnx": open_onnx, "trained": open_trained, "function": open_function}
    return opened[find_kind(spec)](spec, image_size=image_size, device=device)
