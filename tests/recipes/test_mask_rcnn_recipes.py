"""Mask R-CNN on PatchConvNet as table 5.6 of the thesis and XCiT's settings have it."""

import pytest

from vitrail.models.figures import find_figure
from vitrail.recipes import RECIPES, get_recipe
from vitrail.tasks.detect.settings import DetectRecipe


@pytest.mark.parametrize(("size", "box", "mask"), [("s60", 46.4, 41.3), ("s120", 47.0, 41.9)])
def test_rows_of_table_56_have_their_settings_and_figures(size: str, box: float, mask: float) -> None:
    name = f"mask_rcnn_patchconvnet_{size}"
    recipe = get_recipe(name)
    assert isinstance(recipe, DetectRecipe)
    assert (recipe.epochs, recipe.batch_size, recipe.lr, recipe.optimizer.weight_decay) == (36, 16, 1e-4, 0.05)
    assert (recipe.schedule.kind, recipe.schedule.milestones, recipe.optimizer.clip) == ("step", (27, 33), None)
    assert (recipe.augmentation.short_sides[0], recipe.augmentation.short_sides[-1]) == (480, 800)
    assert (recipe.view.short_side, recipe.view.max_side, recipe.augmentation.crop_sides) == (800, 1333, (384, 600))
    assert (recipe.detector.pyramid, recipe.detector.channels) == ("chained", 256)
    assert RECIPES[name].top1 == box
    found = find_figure(f"patchconvnet_{size}", "Mask R-CNN on COCO, mask AP")
    assert found is not None
    assert found.value == mask
    assert f"{mask}" in RECIPES[name].about


def test_photos_get_the_heads_and_anchors_of_the_papers_and_pretrained_weights() -> None:
    recipe, papers = get_recipe("detect_small_photos"), get_recipe("mask_rcnn_patchconvnet_s60")
    assert isinstance(recipe, DetectRecipe)
    assert isinstance(papers, DetectRecipe)
    for key in ("anchor_sizes", "channels", "box_dim", "mask_dim", "mask_depth", "max_detections"):
        assert getattr(recipe.detector, key) == getattr(papers.detector, key)
    assert (recipe.model.init, recipe.view.max_side) == ("pretrained", 512)
