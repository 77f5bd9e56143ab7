"""Every recipe of the table is complete and can be built, and says what its paper prints."""

import json
import re
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import torch

from vitrail.models.build import FAMILIES
from vitrail.models.catalog import TIMM_PREFIX, create_model, get_entry
from vitrail.models.config import config_from_settings
from vitrail.models.published import list_published
from vitrail.models.timm_config import TimmSettings
from vitrail.recipes import RECIPES, find_recipe, get_recipe, list_recipes
from vitrail.recipes.published import TEXT_FIGURES, TRAININGS, fill_in
from vitrail.settings.image_recipe import ImageRecipe
from vitrail.settings.text import read_recipe, stage_of, write_yaml
from vitrail.tasks.unlabelled.settings import UnlabelledRecipe
from vitrail.training.runs.reference_curves import load_curve, load_curves

# One name of each function: the first in the table.
ONE_EACH = list({entry.function: name for name, entry in reversed(list(RECIPES.items()))}.values())
# Those whose task has a model of its own, which the catalogue does not list.
OWN_MODEL = {"tokenizer", *(name for name in RECIPES if get_recipe(name).task == "translate")}


def stages_of(name: str) -> list[ImageRecipe]:
    recipe = get_recipe(name)
    stages = [stage_of(recipe, number) for number in range(recipe.num_stages)]
    return [stage for stage in stages if isinstance(stage, ImageRecipe)]


def model_settings(recipe: ImageRecipe) -> dict[str, Any]:
    settings = {**recipe.model.settings, "image_size": recipe.image_size}
    for name in ("drop_path", "dropout"):
        if (rate := getattr(recipe.regularisation, name)) is not None:
            settings[name] = rate
    return settings


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_has_the_name_of_its_row_and_is_read_back_from_yaml(name: str, tmp_path: Path) -> None:
    recipe = get_recipe(name)
    assert recipe.name == name
    (tmp_path / "my.yaml").write_text(write_yaml(recipe), encoding="utf-8")
    assert read_recipe(tmp_path / "my.yaml") == recipe


def test_a_recipe_is_found_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text(write_yaml(get_recipe("small")), encoding="utf-8")
    assert find_recipe(str(tmp_path / "my.yaml")) == get_recipe("small")


@pytest.mark.parametrize("name", [name for name in RECIPES if name not in OWN_MODEL])
def test_the_model_takes_the_settings_of_every_stage(name: str) -> None:
    for stage in stages_of(name):
        if stage.model.name.startswith(TIMM_PREFIX):
            config_from_settings(TimmSettings, stage.model.name, model_settings(stage))
            continue
        entry = get_entry(stage.model.name)
        settings = {**entry.settings, **model_settings(stage)}
        config = config_from_settings(FAMILIES[entry.family][0], entry.name, settings)
        assert all(side % config.patch_size == 0 for side in config.size)


@pytest.mark.parametrize("name", [name for name in ONE_EACH if name not in OWN_MODEL])
def test_the_model_can_be_built(name: str) -> None:
    last = stages_of(name)[-1]
    with torch.device("meta"):
        model = create_model(last.model.name, num_classes=7, **model_settings(last))
    assert model.config.image_size == last.image_size
    if last.regularisation.drop_path is not None:
        assert getattr(model.config, "drop_path", None) == last.regularisation.drop_path


@pytest.mark.parametrize("name", RECIPES)
def test_the_schedule_takes_the_settings_of_every_stage(name: str) -> None:
    for stage in stages_of(name):
        schedule = stage.schedule.build(lr=stage.lr, steps_per_epoch=10, total_steps=round(10 * stage.epochs)).lr
        assert max(map(schedule.at, range(schedule.total_steps))) == pytest.approx(stage.lr)
        # A highest rate below where the warmup begins or the cosine ends would have been lowered silently.
        assert max(stage.schedule.warmup_lr, stage.schedule.min_lr) <= stage.lr * 1.0001


@pytest.mark.parametrize("name", RECIPES)
def test_the_docstring_tells_command_cost_published_result_and_ours(name: str) -> None:
    entry = RECIPES[name]
    labels = [line.partition(":")[0].partition(",")[0] for line in entry.about.splitlines() if not line.startswith(" ")]
    assert [label for label in labels[2:] if label] == ["Command", "Cost", "Published", "Ours"]
    assert len(entry.summary) <= 90, "the first line is a cell of `vitrail recipes`"
    if entry.top1 is not None:
        assert f"{entry.top1:g}" in entry.about
    assert "{" not in entry.about


@pytest.mark.parametrize("name", ONE_EACH)
def test_a_published_figure_is_written_in_models_figures_only(name: str) -> None:
    said = (RECIPES[name].function.__doc__ or "").partition("Published")[2].partition("Ours:")[0]
    assert not re.search(r"\b\d\d\.\d", said), "write {rows} or {MODEL: WHAT} in its place"
    assert not any(isinstance(field, float) for field in RECIPES[name])


def test_every_training_is_one_that_figures_have() -> None:
    published = {entry.function for entry in RECIPES.values() if entry.top1 is not None}
    assert published == {*TRAININGS, *TEXT_FIGURES}


def test_a_figure_that_is_not_there_fails_where_it_is_written() -> None:
    with pytest.raises(AssertionError, match="models/figures has nothing of deit_tiny: ImageNet-2k"):
        fill_in("Published: {deit_tiny: ImageNet-2k}.", {})


def test_a_result_at_another_resolution_is_not_listed_as_the_recipes() -> None:
    assert stages_of("vit_original")[0].image_size == 224
    assert RECIPES["vit_original"].top1 is None
    assert "77.9" in RECIPES["vit_original"].about


@pytest.mark.parametrize("name", ONE_EACH)
def test_the_command_of_the_docstring_trains_a_recipe_of_the_same_function(name: str) -> None:
    entry = RECIPES[name]
    [commanded] = re.findall(r"Command: vitrail (?:train|pretrain) (\S+)", entry.about)
    assert RECIPES[commanded].function is entry.function


@pytest.mark.parametrize("name", RECIPES)
def test_fine_tuning_starts_from_what_is_published_or_a_run_that_another_recipe_makes(name: str) -> None:
    recipe = get_recipe(name)
    if recipe.model.source is None:
        return
    if recipe.model.source == "pretrained":
        assert list_published(recipe.model.name)
        return
    earlier = get_recipe(recipe.model.source.removeprefix("runs/"))
    assert earlier.model.name == recipe.model.name


# Copied from the papers. Columns: epochs, batch, optimizer, lr at that batch, weight decay, warmup, smoothing, drop
# path, repeats, clip, policy, magnitude, mixup, cutmix, erasing, jitter, crop ratio, loss.
KEYS = (
    *("epochs", "batch_size", "optimizer.name", "lr", "optimizer.weight_decay", "schedule.warmup_epochs"),
    *("objective.smoothing", "regularisation.drop_path", "augmentation.repeats", "optimizer.clip"),
    *("augmentation.policy", "augmentation.magnitude", "blend.mixup", "blend.cutmix", "augmentation.erasing"),
    *("augmentation.colour_jitter", "evaluation.crop_ratio", "objective.loss"),
)
CE, BCE = "cross_entropy", "bce"
ANY = object()  # says nothing, or has no meaning here
PRINTED: dict[str, tuple[Any, ...]] = {
    # thesis tables 3.9 and 6.1
    "deit_base": (300, 1024, "adamw", 1e-3, 0.05, 5, 0.1, 0.1, 3, None, "rand", 9, 0.8, 1, 0.25, 0, 0.875, CE),
    "vit_original": (300, 4096, "adamw", 3e-3, 0.3, ANY, 0, 0, 1, 1, None, ANY, 0, 0, 0, 0, 0.875, CE),
    "steiner": (ANY, 4096, "adamw", 3e-3, 0.3, ANY, 0.1, ANY, 1, 1, "rand", ANY, ANY, 0, 0, 0, 0.875, CE),
    "deit3_base_400": (400, 2048, "lamb", 3e-3, 0.02, 5, 0, 0.1, 3, 1, "three", ANY, 0.8, 1, 0, 0.3, 1, BCE),
    "deit3_base_21k_90": (90, 2048, "lamb", 3e-3, 0.02, 5, 0.1, 0.1, 1, 1, "three", ANY, 0, 1, 0, 0.3, 1, CE),
    "deit3_base_21k_to_1k": (50, 2048, "lamb", 3e-4, 0.02, 5, 0.1, 0.15, 1, 1, "three", ANY, 0, 1, 0, 0.3, 1, CE),
    # 6.3.6
    "deit3_base_384": (20, 512, "adamw", 1e-5, 0.1, 5, 0.1, 0.15, 1, None, "rand", 9, 0.8, 1, 0, 0, 1, CE),
    # 3.7
    "cait_s36": (400, 1024, "adamw", 1e-3, 0.05, 5, 0.1, 0.2, 3, None, "rand", 9, 0.8, 1, 0.25, 0, 1, CE),
    # 4.3.1, and what the authors answered (issue 106 of facebookresearch/deit)
    "resmlp_s12": (400, 2048, "lamb", 5e-3, 0.2, 5, 0.1, 0.05, 3, ANY, "rand", 9, 0.8, 1, 0.25, 0, 0.9, CE),
    # 5.2.3
    "patchconvnet_s60": (400, 2048, "lamb", 3e-3, 0.01, 5, 0.1, 0.15, 3, None, "rand", ANY, 0.8, 1, 0, 0, 1, CE),
    "patchconvnet_b60": (400, 2048, "lamb", 3e-3, 0.05, 5, 0.1, 0.3, 3, None, "rand", ANY, 0.8, 1, 0, 0, 1, CE),
    "patchconvnet_b60_384": (10, 1024, "lamb", 1e-5, 0.01, 5, 0.1, 0.2, 1, None, "rand", ANY, 0.8, 1, 0, 0, 1, CE),
    "patchconvnet_b60_21k": (90, 2048, "lamb", 3e-3, 0.01, 5, 0.1, 0.3, 1, None, "rand", ANY, 0.8, 1, 0, 0, 1, CE),
    "patchconvnet_s60_21k_to_1k": (
        *(100, 1024, "lamb", 5e-4, ANY, 5, 0.1, 0.05, 1, None, "rand", ANY, 0.8, 1, 0, 0, 1, CE),
    ),
    # ResNet strikes back
    "a1": (600, 2048, "lamb", 5e-3, 0.01, 5, 0.1, 0.05, 3, 1, "rand", 7, 0.2, 1, 0, 0, 0.95, BCE),
    "a2": (300, 2048, "lamb", 5e-3, 0.02, 5, 0, 0.05, 3, 1, "rand", 7, 0.1, 1, 0, 0, 0.95, BCE),
    "a3": (100, 2048, "lamb", 8e-3, 0.02, 5, 0, 0, 1, 1, "rand", 6, 0.1, 1, 0, 0, 0.95, BCE),
    # Three things, section 2.2
    "three_things_300_l24": (300, 2048, "lamb", 3e-3, 0.02, 5, 0, 0.4, 3, 1, "rand", 7, 0.1, 1, 0, 0, 0.95, BCE),
    "three_things_400_s12": (400, 2048, "lamb", 4e-3, 0.02, 5, 0, 0.05, 3, 1, "rand", 7, 0.1, 1, 0, 0, 0.95, BCE),
    # section 4, whose settings are DeiT's (3.4.5)
    "three_things_384_s12": (30, 512, "adamw", 5e-6, 1e-8, 5, 0, 0.05, 3, None, "rand", 7, 0.1, 1, 0, 0, 0.95, BCE),
    # BEiT's settings, which Three things takes for table 7
    "beit_vit_b12_1k": (100, 1024, "adamw", 4e-3, 0.05, 20, 0.1, 0.1, 1, None, "rand", 9, 0.8, 1, 0.25, 0, None, CE),
    # 1.1.3
    "resnet_old": (90, 512, "sgd", 0.2, 1e-4, 0, 0, None, 1, None, None, ANY, 0, 0, 0, 0.4, 0.875, CE),
    # 2.4.3
    "resnet_strong": (600, 1024, "sgd", 0.4, 1e-4, ANY, 0, None, 1, None, "rand", ANY, 0, 0, 0.25, 0, 0.875, CE),
    "grafit_baseline": (600, 1024, "sgd", 0.4, 1e-4, ANY, 0, None, 1, None, "rand", ANY, 0, 0, 0.25, 0, 0.875, CE),
    # table 6.15 and 6.4
    "deit3_base_300": (300, 2048, "lamb", 3e-3, 0.02, 5, 0, 0.1, 3, 1, "three", ANY, 0.8, 1, 0, 0.3, 1, BCE),
    "deit3_base_600": (600, 2048, "lamb", 3e-3, 0.05, 5, 0, 0.15, 3, 1, "three", ANY, 0.8, 1, 0, 0.3, 1, BCE),
    # 2.4.6
    "transfer_resnet": (240, 512, "sgd", 0.01, ANY, 0, 0, None, 1, None, "rand", ANY, 0, 0, ANY, 0, 0.875, CE),
}


@pytest.mark.parametrize("name", PRINTED)
def test_values_are_those_of_the_tables(name: str) -> None:
    recipe = get_recipe(name)
    for key, printed in zip(KEYS, PRINTED[name], strict=True):
        value: Any = recipe
        for part in key.split("."):
            value = getattr(value, part)
        if printed is not ANY:
            assert value == (pytest.approx(printed) if isinstance(printed, float) else printed), key


# Three things table 7, BeiT and fine-tuning: the rows that `vitrail models` calls "BeiT 300 epochs".
BEIT = {"": 83.05, "_linear_bn": 82.98, "_linear_gelu": 83.09, "_linear_bn_gelu": 82.99, "_conv": 83.04}
BEIT |= {"_conv_ln": 83.06, "_hmlp": 83.43, "_hmlp_ln": 83.24}


def test_every_stem_of_table_7_has_its_pretraining_and_fine_tuning() -> None:
    models = {f"vit_b12{stem}": top1 for stem, top1 in BEIT.items()} | {"vit_b13": 83.26}
    for model, top1 in models.items():
        before, after = stages_of(f"beit_{model}")[0], stages_of(f"beit_{model}_1k")[0]
        assert (before.task, before.epochs, before.batch_size, before.lr) == ("masked", 300, 2048, 1.5e-3)
        assert (before.optimizer.betas, before.optimizer.clip, before.schedule.warmup_epochs) == ((0.9, 0.98), 3.0, 10)
        assert (after.optimizer.layer_decay, after.model.init) == (0.65, f"runs/beit_{model}")
        assert before.model.settings == after.model.settings == {"layer_scale": 0.1, "pool": "average"}
        assert RECIPES[f"beit_{model}_1k"].top1 == top1
    assert len(list_recipes("beit_vit_b12*_1k")) == len(BEIT)


# Table 3.16, drop path and LayerScale; table 3.15, top-1 at 224 and fine-tuned at 384.
CAIT = {
    "xxs24": (0.05, 1e-5, 77.6, 80.4),
    "xxs36": (0.1, 1e-6, 79.1, 81.8),
    "xs24": (0.05, 1e-5, 81.8, 83.8),
    "xs36": (0.1, 1e-6, 82.6, 84.3),
    "s24": (0.1, 1e-5, 82.7, 84.3),
    "s36": (0.2, 1e-6, 83.3, 85.0),
    "s48": (0.3, 1e-6, 83.5, 85.1),
    "m24": (0.2, 1e-5, 83.4, 84.5),
    "m36": (0.3, 1e-6, 83.8, 84.9),
    "m48": (0.4, 1e-6, None, None),
}


@pytest.mark.parametrize("size", CAIT)
def test_cait_has_its_own_drop_path_and_layer_scale(size: str) -> None:
    recipe = get_recipe(f"cait_{size}")
    drop_path, layer_scale, top1, top1_at_384 = CAIT[size]
    assert recipe.regularisation.drop_path == drop_path
    assert recipe.model.settings == {"layer_scale": layer_scale, "drop_path_schedule": "uniform"}
    assert RECIPES[f"cait_{size}"].top1 == top1
    assert top1_at_384 is None or RECIPES[f"cait_{size}_384"].top1 == top1_at_384


@pytest.mark.parametrize("name", ["deit_base_384", "cait_s24_384"])
def test_deit_and_cait_are_fine_tuned_at_a_constant_rate(name: str) -> None:
    [recipe] = stages_of(name)
    assert (recipe.image_size, recipe.epochs, recipe.batch_size) == (384, 30, 512)
    assert (recipe.schedule.kind, recipe.lr, recipe.optimizer.weight_decay) == ("constant", 5e-6, 1e-8)


def test_deit_drops_more_in_deeper_layers_and_resmlp_does_not() -> None:
    assert get_recipe("deit_small").model.settings["drop_path_schedule"] == "linear"
    assert get_recipe("resmlp_s24").model.settings == {"layer_scale": 1e-5, "drop_path_schedule": "uniform"}


# Table 6.14.
@pytest.mark.parametrize(
    ("size", "rate"), [("tiny", 0.0), ("small", 0.0), ("base", 0.1), ("large", 0.4), ("huge", 0.5)]
)
def test_deit3_has_the_drop_path_of_its_size(size: str, rate: float) -> None:
    assert get_recipe(f"deit3_{size}_400").regularisation.drop_path == rate


@pytest.mark.parametrize(
    ("short_name", "long_name"),
    [("deit3_base_400", "deit3_base_800"), ("deit3_huge_154_400", "deit3_huge_154_800")],
)
def test_800_epochs_add_005_of_drop_path_every_200_epochs_and_weight_decay(short_name: str, long_name: str) -> None:
    short, long = stages_of(short_name)[0], stages_of(long_name)[0]
    assert short.regularisation.drop_path is not None
    assert long.regularisation.drop_path == pytest.approx(short.regularisation.drop_path + 2 * 0.05)
    assert (short.optimizer.weight_decay, long.optimizer.weight_decay) == (0.02, 0.05)


# Table 6.6 (and 6.9 for 192 pixels after 800 epochs): training resolution, epochs, top-1 at 224.
@pytest.mark.parametrize(
    ("size", "image_size", "epochs", "top1"),
    [
        *(("base", 128, 400, 83.2), ("base", 160, 400, 83.3), ("base", 192, 400, 83.5)),
        *(("base", 128, 800, 83.5), ("base", 160, 800, 83.6), ("base", 192, 800, 83.8)),
        *(("large", 128, 400, 83.9), ("large", 160, 400, 84.4), ("large", 192, 400, 84.5)),
        *(("large", 128, 800, 84.5), ("large", 160, 800, 84.7), ("large", 192, 800, 84.9)),
        *(("huge", 126, 400, 84.7), ("huge", 154, 400, 85.1), ("huge", 182, 400, 85.1)),
        *(("huge", 126, 800, 85.1), ("huge", 154, 800, 85.2), ("huge", 182, 800, 85.1)),
        *(("h52", 126, 400, 84.9), ("h26x2", 126, 400, 84.9)),
    ],
)
def test_low_resolution_is_followed_by_20_epochs_at_224(size: str, image_size: int, epochs: int, top1: float) -> None:
    name = f"deit3_{size}_{image_size}_{epochs}"
    low, fine_tuned = stages_of(name)
    assert (low.image_size, low.epochs, low.batch_size, low.optimizer.name) == (image_size, epochs, 2048, "lamb")
    assert (fine_tuned.image_size, fine_tuned.epochs, fine_tuned.batch_size) == (224, 20, 512)
    assert (fine_tuned.optimizer.name, fine_tuned.lr, fine_tuned.optimizer.weight_decay) == ("adamw", 1e-5, 0.1)
    assert fine_tuned.augmentation.repeats == 1
    assert RECIPES[name].top1 == top1


def test_21k_then_1k_in_one_run_is_its_two_recipes() -> None:
    first, second = stages_of("deit3_large_21k_pipeline")
    same = {"name": "", "data": first.data, "model": first.model}
    assert first.model_copy(update=same) == get_recipe("deit3_large_21k_240").model_copy(update=same)
    assert second.model_copy(update=same) == get_recipe("deit3_large_21k_to_1k").model_copy(update=same)
    assert (first.data.spec, second.data.spec) == (None, "imagenet")


@pytest.mark.parametrize("name", list(load_curves()))
def test_every_published_curve_is_followed_by_a_recipe_of_its_settings_and_result(name: str) -> None:
    followers = [
        (stage, RECIPES[recipe].top1, number == len(stages_of(recipe)) - 1)
        for recipe in RECIPES
        for number, stage in enumerate(stages_of(recipe))
        if stage.against == name
    ]
    assert followers
    curve = load_curve(name)
    published = json.loads((resources.files("vitrail.training") / "curves/deit3.json").read_text())[name]
    for stage, top1, is_last in followers:
        assert stage.batch_size == published["batch_size"]
        assert stage.lr == published["lr"]
        assert stage.optimizer.weight_decay == published["weight_decay"]
        assert stage.regularisation.drop_path == published["drop_path"]
        patch_size = 14 if curve.model == "deit3_huge" else 16
        assert (stage.model.name, stage.epochs) == (curve.model, curve.epochs)
        assert isinstance(stage.image_size, int)
        assert stage.image_size // patch_size == curve.image_size // patch_size
        if is_last:
            assert curve.top1[-1] == pytest.approx(top1, abs=0.1)


# Thesis 3.7.1.3 and table 3.19: learning rate over that of training, epochs, CaiT-S36.
@pytest.mark.parametrize(
    ("data", "divisor", "epochs", "top1"),
    [
        ("cifar10", 100, 1000, 99.2),
        ("cifar100", 100, 1000, 92.2),
        ("flowers", 10, 1000, 98.8),
        ("cars", 10, 1000, 93.5),
        ("inat18", 10, 360, 77.1),
        ("inat19", 10, 360, 80.6),
    ],
)
def test_transfer_divides_the_rate_and_changes_the_epochs(data: str, divisor: int, epochs: int, top1: float) -> None:
    recipe = get_recipe(f"transfer_{data}")
    assert recipe.lr == pytest.approx(1e-3 / divisor)
    assert recipe.epochs == epochs
    assert RECIPES[f"transfer_{data}"].top1 == top1


def test_the_old_recipe_divides_the_rate_by_ten_every_30_epochs() -> None:
    [recipe] = stages_of("resnet_old")
    assert (recipe.batch_size, recipe.epochs, recipe.optimizer.nesterov) == (512, 90, False)
    assert recipe.augmentation.colour_jitter > 0
    schedule = recipe.schedule.build(lr=recipe.lr, steps_per_epoch=100, total_steps=9000).lr
    assert [schedule.at(step) for step in (0, 2999, 3000, 6000, 8999)] == pytest.approx([0.2, 0.2, 0.02, 0.002, 0.002])


def test_a3_trains_at_160_and_tests_at_224() -> None:
    [recipe] = stages_of("a3")
    assert (recipe.image_size, recipe.evaluation.image_size) == (160, 224)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("deit_smal", r"unknown recipe 'deit_smal': did you mean deit_small(, deit_small\w+){2}\?"),
        ("cait_xxs", r"unknown recipe 'cait_xxs': did you mean cait_xxs24(, cait_xxs\w+){2}\?"),
        ("quux", r"unknown recipe 'quux': `vitrail recipes` lists them all; a file ends in \.yaml"),
        (
            "nothing.yaml",
            r"the recipe nothing\.yaml can't be read \(No such file or directory\): it must be a file of YAML",
        ),
    ],
)
def test_an_unknown_name_is_one_line_with_the_nearest(name: str, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}$"):
        find_recipe(name)


def test_patterns_select_in_the_order_of_the_table() -> None:
    names = list_recipes("DeiT_base*")
    assert {"deit_base", "deit_base_384", "deit_base_distilled_1000_384"} <= set(names)
    assert names == [name for name in RECIPES if name.startswith("deit_base")]
    assert list_recipes() == list(RECIPES)


def test_recipes_are_imported_without_torch() -> None:
    program = "import sys; from vitrail.recipes import *; print(*{'torch', 'timm', 'numpy'} & set(sys.modules))"
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert finished.stdout.split() == []


@pytest.mark.parametrize(
    "name", [name for name in RECIPES if "_21k" in name and not name.startswith("upernet") and "to_1k" not in name]
)
def test_recipes_on_21k_say_which_split_they_make(name: str) -> None:
    assert find_recipe(name).data.val_share == 0.01
    said = " ".join((RECIPES[name].function.__doc__ or "").split())
    assert "data=imagenet21k:ROOT" in said
    assert "1 % of each class is held out (data.val_share)" in said


def test_a_new_classifier_begins_at_random_in_the_papers_and_from_a_probe_in_our_own() -> None:
    changed = [name for name in RECIPES if name.startswith("transfer_") or name.endswith(("21k_to_1k", "pipeline"))]
    assert len(changed) > 10
    assert {stages_of(name)[-1].model.head_start for name in changed} == {"random"}
    assert get_recipe("fine_tune").model.head_start == "auto"


def test_what_is_fine_tuned_starts_from_weights() -> None:
    """A recipe whose command or name says so never trains from scratch in silence."""
    labelled = [name for name in RECIPES if not isinstance(get_recipe(name), UnlabelledRecipe)]
    named = [name for name in labelled if name.startswith(("fine_tune", "transfer")) or " init=" in RECIPES[name].about]
    assert len(named) > 40
    assert [name for name in named if get_recipe(name).model.init is None] == []
