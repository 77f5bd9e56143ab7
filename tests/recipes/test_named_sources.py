"""What recipes take from elsewhere is named exactly: weights by their tag, sizes of evaluation by their source."""

import re
from pathlib import Path

import pytest
import timm

from vitrail.models.catalog import TIMM_PREFIX, get_entry
from vitrail.models.figures import FIGURES
from vitrail.recipes import RECIPES, get_recipe
from vitrail.settings.image_recipe import ImageRecipe
from vitrail.settings.text import stage_of

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# Recipe -> why it is evaluated at another size than the one its last stage trains at.
OTHER_SIZES = {"a3": "ResNet strikes back, table 2: trained at 160 pixels, tested at 224"}


def test_teachers_are_named_with_the_tag_of_their_weights() -> None:
    found = (getattr(getattr(get_recipe(name), "teacher", None), "model", None) for name in RECIPES)
    teachers = {teacher for teacher in found if teacher is not None}
    ours = {teacher for teacher in teachers if not teacher.startswith(TIMM_PREFIX)}
    assert teachers - ours == {"timm/regnety_160.deit_in1k", "timm/vit_base_patch14_dinov2.lvd142m"}
    assert not {teacher.removeprefix(TIMM_PREFIX) for teacher in teachers - ours} - set(timm.list_pretrained())
    assert ours == {"deit_tiny"}  # of the catalogue, which says itself which weights are published


def test_weights_of_timm_are_named_with_their_tag_on_every_page() -> None:
    texts = [page.read_text(encoding="utf-8") for page in PAGES] + [entry.about for entry in RECIPES.values()]
    named = {name for text in texts for name in re.findall(r"(?:teacher|teacher\.model|init)=timm/([\w.]+)", text)}
    placeholders = {"NAME", "NAME.TAG"}
    assert not named - placeholders - set(timm.list_pretrained())
    assert all("." in name for name in named - placeholders)


def image_recipe(name: str) -> ImageRecipe:
    """The last stage of a recipe."""
    recipe = get_recipe(name)
    last = stage_of(recipe, recipe.num_stages - 1)
    assert isinstance(last, ImageRecipe)
    return last


def names_of_images() -> list[str]:
    """The recipes of images."""
    return [name for name in RECIPES if isinstance(get_recipe(name), ImageRecipe)]


def test_the_size_of_evaluation_is_that_of_the_last_stage() -> None:
    lasts = {name: image_recipe(name) for name in names_of_images()}
    others = {name for name, last in lasts.items() if last.evaluation.image_size not in (None, last.image_size)}
    assert others == set(OTHER_SIZES)


def test_no_crop_ratio_depends_on_the_weights_that_timm_has_for_a_name() -> None:
    of_timm = [name for name in names_of_images() if image_recipe(name).model.name.startswith(TIMM_PREFIX)]
    assert {"a2", "grafit", "transfer_resnet"} <= set(of_timm)
    assert not [name for name in of_timm if image_recipe(name).evaluation.crop_ratio is None]


def test_grafit_learns_from_coarse_labels() -> None:
    names = [name for name in RECIPES if name.startswith("grafit")]
    fine = {name for name in names if image_recipe(name).data.level != "coarse"}
    assert fine == {
        *("grafit_unsupervised", "grafit_unsupervised_cifar100"),
        *("grafit_1k_resnet50", "grafit_1k_regnety_080"),  # to be fine-tuned on other data
    }


def test_cifar_has_its_stem_and_whole_images() -> None:
    names = [name for name in RECIPES if name.startswith("grafit") and name.endswith("_cifar100")]
    assert len(names) == 7
    for recipe in map(image_recipe, names):
        assert recipe.evaluation.crop_ratio == 1.0
        assert recipe.model.settings == {"small_images": True}


@pytest.mark.parametrize("name", [name for name in RECIPES if re.fullmatch(r"resmlp_\w\d\d(_p\d+)?", name)])
def test_resmlp_has_one_drop_path_and_the_crop_ratio_of_its_authors(name: str) -> None:
    recipe = image_recipe(name)
    entry = get_entry(name)
    assert recipe.regularisation.drop_path == entry.settings["drop_path"] == FIGURES[name].drop_path
    assert recipe.evaluation.crop_ratio == entry.crop_ratio == 0.9
