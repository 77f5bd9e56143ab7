"""From a recipe to the batches of a stage: those it trains on and those it is measured on."""

from pathlib import Path

import torch

from vitrail.data.augment import EvaluationView
from vitrail.data.loader import ImageLoader
from vitrail.data.quarantine import Quarantine, QuarantineSettings
from vitrail.data.sampler import Ranks, Sampler
from vitrail.settings.recipe import Recipe
from vitrail.training.loop import build

_LARGEST_VAL_BATCH = 64  # of a process, unless the recipe says it


def make_loaders(
    recipe: Recipe,
    data: build.Data,
    *,
    view: EvaluationView,
    seed: int,
    ranks: Ranks,
    num_parts: int,
    device: torch.device,
    listing: Path | None,
) -> tuple[ImageLoader, ImageLoader]:
    """The loaders of train, in `num_parts` micro-batches a step, and of val; broken files go to `listing`."""
    workers = build.count_workers(recipe, device)
    quarantine = Quarantine(QuarantineSettings(listing=listing, max_share=recipe.data.max_broken))
    has_teacher = recipe.teacher.model is not None
    train = ImageLoader(
        data.train,
        transform=build.make_augmentation(recipe),
        sampler=Sampler(
            len(data.train),
            batch_size=recipe.batch_size,
            seed=seed,
            ranks=ranks,
            num_micro_batches=num_parts,
            keeps_pairs=recipe.blend.is_mixing,
            num_repeats=recipe.augmentation.repeats,
            groups=data.train.groups,
            weights=build.balanced_weights(data.labels) if recipe.data.balanced else None,
        ),
        level=data.level,
        num_views=recipe.augmentation.views,
        fixed_views=recipe.teacher.num_views if has_teacher else None,
        num_workers=workers,
        quarantine=quarantine,
        pin_memory=device.type == "cuda",
    )
    val_batch = recipe.evaluation.batch_size or min(recipe.batch_size, _LARGEST_VAL_BATCH * ranks.num_ranks)
    val = ImageLoader(
        data.val,
        transform=view,
        sampler=Sampler(len(data.val), batch_size=val_batch, is_training=False, ranks=ranks),
        level=data.level,
        num_workers=workers,
        quarantine=quarantine,
        pin_memory=device.type == "cuda",
    )
    return train, val
