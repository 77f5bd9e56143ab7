"""Settings of tiny runs that learn masks and objects; runs add their data, their epochs and what they look at."""

SEGMENT = (
    "task=segment",
    "regularisation.ema=null",
    "model=deit_tiny",
    "model.settings={patch_size: 8, dim: 16, depth: 2, num_heads: 2}",
    "batch_size=8",
)
DETECT = (
    "task=detect",
    "regularisation.ema=null",
    "image_size=64",
    "batch_size=8",
    "detector.channels=16",
    "detector.anchor_sizes=[8, 16, 24, 32, 48]",
    "detector.box_dim=32",
    "detector.mask_dim=16",
    "detector.mask_depth=1",
    "detector.train_proposals=40",
    "detector.proposals=20",
    "detector.anchors_per_image=32",
    "detector.boxes_per_image=16",
    "detector.score_threshold=0.0",
    "view.short_side=64",
    "view.max_side=96",
    "augmentation.max_side=96",
)
DETECT_CHAINED = (
    *DETECT,
    "model=patchconvnet_s20",
    "model.settings={patch_size: 8, dim: 16, depth: 2}",
    "detector.pyramid=chained",
)
