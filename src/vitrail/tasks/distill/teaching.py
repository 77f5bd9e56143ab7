"""From a recipe to its teacher and the cache of the teacher's answers."""

from collections.abc import Sequence
from pathlib import Path

import torch

from vitrail.settings.recipe import Recipe
from vitrail.tasks.distill.teacher_cache import TeacherCache, default_folder, fingerprint_augmentation, fingerprint_data
from vitrail.tasks.distill.teachers import Teacher, load_teacher
from vitrail.training.loop import build


def find_teacher(recipe: Recipe, *, classes: Sequence[str], device: torch.device) -> Teacher | None:
    """Who the recipe learns from, if anyone."""
    settings = recipe.teacher
    if settings.model is None:
        return None
    return load_teacher(
        settings.model, classes=classes, image_size=settings.image_size, mapping=settings.classes, device=device
    )


def open_cache(recipe: Recipe, data: build.Data, teacher: Teacher | None) -> TeacherCache | None:
    """The answers that the teacher gave before to the same views of the same images, where the recipe keeps them."""
    settings = recipe.teacher
    if teacher is None or settings.num_views is None:
        return None
    folder = Path(settings.cache_folder).expanduser() if settings.cache_folder else default_folder()
    return TeacherCache.open(
        folder,
        teacher=teacher.fingerprint,
        data=fingerprint_data(data.train),
        augmentation=fingerprint_augmentation(build.make_augmentation(recipe)),
        num_samples=len(data.train),
        num_views=settings.num_views,
        num_classes=len(data.labels.classes),
        top=settings.cache_top,
    )
