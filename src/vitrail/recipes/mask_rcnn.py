"""Mask R-CNN on PatchConvNet (thesis 5.3.3, table 5.6), and small ones for a laptop."""

from vitrail.recipes.patchconvnet import DROP_PATH
from vitrail.settings.data import DataSettings
from vitrail.settings.dense import DetectAugmentationSettings, FitSettings
from vitrail.settings.learning import OptimizerSettings, RegularisationSettings, ScheduleSettings
from vitrail.settings.model import PRETRAINED, ModelSettings
from vitrail.settings.recipe import Recipe
from vitrail.tasks.detect.settings import DetectEvaluationSettings, DetectorSection, DetectRecipe


def mask_rcnn(size: str) -> Recipe:
    """Mask R-CNN on COCO with the last map of a PatchConvNet at all levels.

    Command: vitrail train mask_rcnn_patchconvnet_s60 data=coco:ROOT out=runs/mask_rcnn_patchconvnet_s60
        init=runs/patchconvnet_s60
    Cost: {patchconvnet_s60: Mask R-CNN on COCO, G multiply-adds} G multiply-adds an image with S60,
        {patchconvnet_s120: Mask R-CNN on COCO, G multiply-adds} with S120; hours not published.
    Published: {rows}; of masks {patchconvnet_s60: Mask R-CNN on COCO, mask AP} with S60 and
        {patchconvnet_s120: Mask R-CNN on COCO, mask AP} with S120.
    Ours: not run.
    """
    return DetectRecipe(
        name=f"mask_rcnn_patchconvnet_{size}",
        epochs=36.0,  # the x3 schedule
        batch_size=16,
        image_size=800,
        model=ModelSettings(name=f"patchconvnet_{size}", init=f"runs/patchconvnet_{size}"),
        # "We only use the final output": with this pyramid the parameters are the printed ones.
        detector=DetectorSection(pyramid="chained"),
        # The settings of XCiT, whose results stand beside these in the table; no gradient clipping.
        optimizer=OptimizerSettings(lr=1e-4, weight_decay=0.05),
        # 500 steps of warmup, as its framework has them.
        schedule=ScheduleSettings(
            kind="step", milestones=(27.0, 33.0), decay_rate=0.1, warmup_epochs=0.07, warmup_lr=1e-7
        ),
        regularisation=RegularisationSettings(drop_path=DROP_PATH[size]),  # not printed for detection: table 5.8
    )


def detect_small() -> Recipe:
    """Mask R-CNN on a small PatchConvNet, for pictures of shapes, on a laptop.

    Command: vitrail train detect_small out=runs/detect_small
    Cost: about 26 minutes of one core (AVX-512).
    Published: none.
    Ours: box AP 86.0, mask AP 76.0 on 400 pictures of val (docs/log.md).
    """
    return DetectRecipe(
        name="detect_small",
        epochs=4.0,
        batch_size=16,
        image_size=128,
        data=DataSettings(spec="shapes:size=128,count=4000,val=400"),
        model=ModelSettings(
            name="patchconvnet_s20", settings={"dim": 96, "depth": 6, "patch_size": 8, "layer_scale": 0.1}
        ),
        detector=DetectorSection(
            pyramid="chained",
            channels=64,
            anchor_sizes=(12, 24, 40, 64, 96),
            box_dim=256,
            mask_dim=64,
            mask_depth=2,
            train_proposals=200,
            proposals=100,
            anchors_per_image=64,
            boxes_per_image=64,
            max_detections=20,
        ),
        view=FitSettings(short_side=128, max_side=128),
        augmentation=DetectAugmentationSettings(short_sides=(128,), max_side=128, crop=0.0),
        optimizer=OptimizerSettings(lr=1e-3, weight_decay=0.05, clip=1.0),
        schedule=ScheduleSettings(warmup_epochs=1.0),
        evaluation=DetectEvaluationSettings(every=2.0, batch_size=32),
    )


def detect_small_photos() -> Recipe:
    """Mask R-CNN on a pre-trained DeiT-Ti, for some thousand photographs, on a laptop.

    Command: vitrail train detect_small_photos data=coco:ROOT out=runs/mine
    Cost: `vitrail plan detect_small_photos data=coco:ROOT` says it for the photographs at hand.
    Published: none.
    Ours: overfitted to 80 photographs of COCO, 94.9 box AP and 64.2 mask AP on these (docs/log.md).
    """
    return DetectRecipe(
        name="detect_small_photos",
        epochs=12.0,
        batch_size=8,
        image_size=384,
        model=ModelSettings(name="deit_tiny", init=PRETRAINED),
        # Heads and anchors (32 to 512 pixels) of the papers' detectors; fewer proposals, for images of half the side.
        detector=DetectorSection(train_proposals=1000, proposals=500),
        view=FitSettings(short_side=384, max_side=512),
        augmentation=DetectAugmentationSettings(short_sides=(320, 352, 384), max_side=512, crop=0.0),
        optimizer=OptimizerSettings(lr=1e-4, weight_decay=0.05, clip=1.0),
        schedule=ScheduleSettings(warmup_epochs=0.5),
        regularisation=RegularisationSettings(drop_path=0.1),
        evaluation=DetectEvaluationSettings(every=2.0),
    )
