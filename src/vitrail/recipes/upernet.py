"""UperNet on ADE20k (thesis 4.3.6, 5.3.3 and 6.3.5.2), and small ones for a laptop."""

from typing import Any

from vitrail.settings.dense import SegmentAugmentationSettings
from vitrail.settings.learning import OptimizerSettings, RegularisationSettings, ScheduleSettings
from vitrail.settings.model import ModelSettings
from vitrail.settings.recipe import Recipe
from vitrail.settings.text import change
from vitrail.tasks.segment.settings import SegmentEvaluationSettings, SegmentHeadSettings, SegmentRecipe

_NUM_IMAGES, _BATCH = 20_210, 16  # of ADE20k
_WIDTHS = {"tiny": 192, "small": 384}  # of the head: the trunk's, where that is below 512 (6.3.5.2)


def _upernet(name: str, *, init: str, model: str, **changes: Any) -> Recipe:
    """XCiT's implementation and settings, which chapters 5 and 6 train with."""
    recipe = SegmentRecipe(
        name=name,
        steps=160_000,
        batch_size=_BATCH,
        image_size=512,
        model=ModelSettings(name=model, init=init),
        # Resize to at most 2048 x 512, a ratio of 0.5 to 2, crops of 512, flip, photometric distortion.
        augmentation=SegmentAugmentationSettings(short_side=512, long_side=2048),
        optimizer=OptimizerSettings(lr=6e-5, weight_decay=0.01),
        schedule=ScheduleSettings(
            kind="linear", min_lr=0.0, warmup_epochs=1500 * _BATCH / _NUM_IMAGES, warmup_lr=6e-11
        ),
        # Windows of the training size, as XCiT's code has them for this size; drop path is that of the pretraining.
        evaluation=SegmentEvaluationSettings(every=8.0, short_side=512, long_side=2048, window=512),
    )
    return change(recipe, changes)


def upernet_deit3(size: str) -> Recipe:
    """UperNet on a DeiT III of ImageNet-1k.

    Command: vitrail train upernet_deit3_small data=ade20k:ROOT out=runs/upernet_deit3_small init=runs/deit3_small_400
    Cost: {deit3_small: UperNet on ADE20k, G multiply-adds} G multiply-adds for 512 x 2048 pixels with small,
        {deit3_base: UperNet on ADE20k, G multiply-adds} with base; hours not published.
    Published: {rows}; with several scales {deit3_small: UperNet on ADE20k, multi-scale} for small and
        {deit3_base: UperNet on ADE20k, multi-scale} for base: vitrail evaluate RUN --scales 0.5,0.75,1,1.25,1.5,1.75
        --flip.
    Ours: not run.
    """
    return _upernet(
        f"upernet_deit3_{size}",
        init=f"runs/deit3_{size}_400",
        model=f"deit3_{size}",
        **{"segment.channels": _WIDTHS.get(size, 512)},
    )


def upernet_deit3_21k(size: str, image_size: str = "224") -> Recipe:
    """UperNet on a DeiT III of ImageNet-21k.

    Command: vitrail train upernet_deit3_base_21k data=ade20k:ROOT out=runs/upernet_deit3_base_21k
        init=runs/deit3_base_21k_90
    Cost: as without ImageNet-21k, see upernet_deit3_base.
    Published: {rows}; with several scales {deit3_base: UperNet on ADE20k from ImageNet-21k, multi-scale} for base and
        {deit3_large: UperNet on ADE20k from ImageNet-21k, multi-scale} for large.
    Ours: not run.
    """
    # "We report the pre-training resolution": beyond 224 it is that of the fine-tuning on ImageNet-1k, of which there
    # is no recipe at 320: the one at 384 takes its place.
    name = f"upernet_deit3_{size}_21k" + ("" if image_size == "224" else f"_{image_size}")
    init = f"runs/deit3_{size}_21k_90" if image_size == "224" else f"runs/deit3_{size}_21k_to_1k_384"
    return _upernet(name, init=init, model=f"deit3_{size}")


def upernet_patchconvnet(size: str) -> Recipe:
    """UperNet on the last map of a PatchConvNet of ImageNet-1k.

    Command: vitrail train upernet_patchconvnet_s60 data=ade20k:ROOT out=runs/upernet_patchconvnet_s60
        init=runs/patchconvnet_s60
    Cost: {patchconvnet_s60: UperNet on ADE20k, G multiply-adds} G multiply-adds for 512 x 2048 pixels with S60; hours
        not published.
    Published: {rows}; with several scales {patchconvnet_s60: UperNet on ADE20k, multi-scale} for S60.
    Ours: not run.
    """
    return _upernet(
        f"upernet_patchconvnet_{size}",
        init=f"runs/patchconvnet_{size}",
        model=f"patchconvnet_{size}",
        **{"segment.pyramid": "last"},
    )


def upernet_patchconvnet_21k(size: str) -> Recipe:
    """UperNet on the last map of a PatchConvNet of ImageNet-21k.

    Command: vitrail train upernet_patchconvnet_s60_21k data=ade20k:ROOT out=runs/upernet_patchconvnet_s60_21k
        init=runs/patchconvnet_s60_21k
    Cost: as without ImageNet-21k, see upernet_patchconvnet_s60.
    Published: {rows}; with several scales {patchconvnet_s60: UperNet on ADE20k from ImageNet-21k, multi-scale} for S60.
    Ours: not run.
    """
    return change(
        upernet_patchconvnet(size),
        {"name": f"upernet_patchconvnet_{size}_21k", "model.init": f"runs/patchconvnet_{size}_21k"},
    )


def upernet_224(model: str) -> Recipe:
    """UperNet on crops of 224 pixels, the one size of a ResMLP, and a DeiT beside it.

    Command: vitrail train upernet_resmlp_s24 data=ade20k:ROOT out=runs/upernet_resmlp_s24 init=runs/resmlp_s24
    Cost: not published.
    Published: {rows}.
    Ours: not run.
    """
    # "The x3 schedule": how many iterations that is on ADE20k is not printed, so those of chapters 5 and 6. Images are
    # resized to 896 x 224 at most; at test windows of 224 slide over images of "the usual resolution".
    return _upernet(
        f"upernet_{model}",
        init=f"runs/{model}",
        model=model,
        **{
            "image_size": 224,
            "augmentation.short_side": 224,
            "augmentation.long_side": 896,
            "evaluation.window": 224,
        },
    )


def segment_small() -> Recipe:
    """UperNet on the published DeiT-Ti, small images: to fine-tune on a laptop.

    Command: vitrail train segment_small data=camvid:ROOT out=runs/segment_small
    Cost: about 47 minutes of one core (AVX-512) for 367 images, 16 times each.
    Published: none.
    Ours: mean IoU 65.8 on val and 55.7 on test of CamVid (docs/log.md).
    """
    return SegmentRecipe(
        name="segment_small",
        epochs=16.0,
        batch_size=4,
        image_size=(256, 320),
        model=ModelSettings(name="deit_tiny", init="pretrained"),
        segment=SegmentHeadSettings(channels=96, balance=0.5),
        augmentation=SegmentAugmentationSettings(ratio=(0.8, 1.6), max_share=0.9, distortion=0.3),
        optimizer=OptimizerSettings(lr=7e-4, weight_decay=0.05, layer_decay=0.75, clip=1.0),
        schedule=ScheduleSettings(warmup_epochs=1.0),
        regularisation=RegularisationSettings(drop_path=0.05),
        evaluation=SegmentEvaluationSettings(every=4.0, short_side=256),
    )


def segment_small_linear() -> Recipe:
    """A linear head on the frozen DeiT-Ti: what its patches are worth, in minutes.

    Command: vitrail train segment_small_linear data=camvid:ROOT out=runs/segment_small_linear
    Cost: about four minutes of one core (AVX-512) for 367 images.
    Published: none.
    Ours: mean IoU 49.3 on val and 44.1 on test of CamVid (docs/log.md).
    """
    return change(
        segment_small(),
        {
            "name": "segment_small_linear",
            "epochs": 6.0,
            "batch_size": 8,
            "model.train_only": "head",
            "segment": {"head": "linear"},
            "augmentation.ratio": (1.0, 1.0),
            "augmentation.max_share": 1.0,
            "augmentation.distortion": 0.0,
            "optimizer.lr": 1e-2,
            "optimizer.layer_decay": 1.0,
            "regularisation.drop_path": 0.0,
            "evaluation.every": 6.0,
        },
    )
