"""Recipes as text: what is written is read back, and every mistake is one line that names the key."""

from pathlib import Path
from typing import Any

import pytest

from vitrail.settings.image_recipe import ImageRecipe
from vitrail.settings.recipe import Recipe
from vitrail.settings.text import (
    all_keys,
    change,
    parse_assignments,
    read_recipe,
    recipe_classes,
    short_keys,
    stage_of,
    write_yaml,
)
from vitrail.tasks.classify.settings import ClassifyRecipe


def changed(*words: str) -> ClassifyRecipe:
    recipe = change(ClassifyRecipe(), parse_assignments(words))
    assert isinstance(recipe, ClassifyRecipe)
    return recipe


def test_what_is_written_is_read_back_and_every_key_has_a_comment(tmp_path: Path) -> None:
    recipe = changed("lr=5e-4", "model=cait_xxs24", "model.settings={depth: 6}", "stages=[{epochs: 3}, {lr: 1e-5}]")
    text = write_yaml(recipe)
    (tmp_path / "my.yaml").write_text(text)
    assert read_recipe(tmp_path / "my.yaml") == recipe
    assert all("  # " in line for line in text.splitlines() if line)
    assert "None" not in text


@pytest.mark.parametrize("kind", recipe_classes(), ids=lambda kind: kind.__name__)
def test_a_comment_stands_without_its_key(kind: type[Recipe]) -> None:
    for line in filter(None, write_yaml(kind()).splitlines()):
        comment = line.partition("  # ")[2]
        assert len(comment.split()) > 1, line
        assert comment.split()[0].lower() not in ("of", "for", "in", "between", "by", "also", "and", "where"), line


def test_values_are_read_as_people_write_them() -> None:
    recipe = changed("lr=5e-4", "image_size=[160, 224]", "epochs=30", "model.settings.layer_scale=1e-4", "init=null")
    assert recipe.optimizer.lr == 5e-4
    assert recipe.image_size == (160, 224)
    assert recipe.epochs == 30
    assert recipe.model.settings == {"layer_scale": 1e-4}


@pytest.mark.parametrize(
    "key", ["data", "data.val", "data.quarantine", "init", "teacher", "teacher.classes", "teacher.cache_folder", "out"]
)
@pytest.mark.parametrize("text", ["run #2", "123", "1e5", "[a]", "yes", "a: b", "2026-01-01", "'quoted'"])
def test_paths_are_taken_as_they_are_written(key: str, text: str) -> None:
    assert parse_assignments([f"{key}={text}"]) == {key: text}


def test_a_path_that_looks_like_something_else_is_read_back(tmp_path: Path) -> None:
    recipe = changed("data=1e5", "init=123", "stages=[{epochs: 1}, {epochs: 2}]")
    named = change(recipe, parse_assignments(["stages.1.data.val=run #2"]))
    assert (named.data.spec, named.model.init, named.stages[1]["data.val"]) == ("1e5", "123", "run #2")
    (tmp_path / "my.yaml").write_text(write_yaml(named))
    assert read_recipe(tmp_path / "my.yaml") == named


def test_null_and_nothing_are_no_path() -> None:
    assert changed("data=", "init=null").data.spec is None
    assert changed("data=", "init=null").model.init is None
    assert changed("init=none").model.init is None  # as data.val=none; a folder of that name is ./none
    assert changed("init=./none").model.init == "./none"


def test_lr_follows_its_rule() -> None:
    assert changed("lr=5e-4", "optimizer.reference_batch=512", "batch_size=1024").lr == pytest.approx(1e-3)
    assert changed("lr=3e-3", "batch_size=64").lr == pytest.approx(3e-3)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("epoch=3", "unknown key 'epoch', did you mean 'epochs'?"),
        ("optimizer.lrr=3", "unknown key 'optimizer.lrr', did you mean 'optimizer.lr'?"),
        ("drop_path=0.1", "unknown key 'drop_path', did you mean 'regularisation.drop_path'?"),
        ("epochs=abc", "epochs cannot be 'abc': input should be a valid number"),
        ("epochs=-1", "epochs cannot be -1: input should be greater than 0"),
        ("batch_size=2.5", "batch_size cannot be 2.5: input should be a valid integer"),
        ("run.precision=fp8", "run.precision cannot be 'fp8': input should be 'auto', 'fp32', 'bf16' or 'fp16'"),
        ("optimizer=3", "optimizer is a group of settings: set one of them, such as optimizer.name"),
        ("stages=[{lrr: 3}]", "unknown key 'lrr', did you mean 'lr'?"),
        ("epochs", "'epochs' is no setting: write key=value, such as epochs=30"),
        ("lr=[1", "lr is not valid YAML"),
        ("epochs=.inf", "epochs cannot be inf: input should be a finite number"),
        ("epochs=inf", "epochs cannot be 'inf': input should be a finite number"),
        ("evaluation.every=.nan", "evaluation.every cannot be nan: input should be a finite number"),
        ("augmentation.scale=[0.1, .inf]", "augmentation.scale.1 cannot be inf: input should be a finite number"),
        (
            "stages=[{schedule.warmup_epochs: .inf}]",
            "schedule.warmup_epochs cannot be inf: input should be a finite number",
        ),
        ("model.settings={dim: .nan}", "model.settings cannot be {'dim': nan}: numbers must be finite"),
        ("epochs=true", "epochs cannot be True: true and false are no values of it"),
        ("image_size=[true, 32]", "image_size cannot be [True, 32]: true and false are no values of it"),
        ("run.threads=100000", "run.threads cannot be 100000: input should be less than or equal to 1024"),
        ("stages=[{stages: [{epochs: 3}]}]", "stages.0 has stages of its own: list them one after the other"),
        ("stages=[{epochs: 1}, {stages.0.epochs: 3}]", "stages.1 has stages of its own"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_key(word: str, message: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011 the text is compared below
        changed(word)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_recipe_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"the recipe .*my\.yaml can't be read \(No such file"):
        read_recipe(tmp_path / "my.yaml")
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(ValueError, match="is not a recipe: it must hold keys and values"):
        read_recipe(tmp_path / "list.yaml")
    (tmp_path / "wrong.yaml").write_text("epochs: 3\noptimiser:\n  lr: 3\n")
    with pytest.raises(ValueError, match=r"wrong\.yaml: unknown key 'optimiser'"):
        read_recipe(tmp_path / "wrong.yaml")
    (tmp_path / "code.yaml").write_text("epochs: !!python/object/apply:os.getcwd []\n")
    with pytest.raises(ValueError, match=r"code\.yaml is not valid YAML in line 1"):
        read_recipe(tmp_path / "code.yaml")


def test_stages_change_the_recipe_one_by_one() -> None:
    recipe = changed("image_size=160", "stages=[{epochs: 400}, {epochs: 20, image_size: 224, optimizer.lr: 1e-5}]")
    first, second = stage_of(recipe, 0), stage_of(recipe, 1)
    assert isinstance(first, ImageRecipe)
    assert isinstance(second, ImageRecipe)
    assert (first.epochs, first.image_size, first.optimizer.lr) == (400, 160, 1e-3)
    assert (second.epochs, second.image_size, second.optimizer.lr) == (20, 224, 1e-5)
    assert first.stages == ()
    assert recipe.num_stages == 2
    assert ClassifyRecipe().num_stages == 1


def test_a_key_that_stages_set_is_changed_in_the_stage() -> None:
    recipe = changed("stages=[{epochs: 400}, {epochs: 20, lr: 1e-5}]")
    assert stage_of(change(recipe, {"stages.1.optimizer.lr": 1e-4}), 1).optimizer.lr == 1e-4
    assert stage_of(change(recipe, {"stages.0.batch_size": 64}), 0).batch_size == 64
    assert stage_of(change(recipe, {"batch_size": 64}), 1).batch_size == 64
    with pytest.raises(
        ValueError, match=r"epochs is set by stages\.0 .*: change stages\.0\.epochs or stages\.1\.epochs instead"
    ):
        change(recipe, {"epochs": 3})
    with pytest.raises(ValueError, match="there is no stage 2; this recipe has 2, counted from 0"):
        change(recipe, {"stages.2.epochs": 3})


def test_every_short_key_stands_for_a_key_and_all_are_documented() -> None:
    assert set(short_keys().values()) <= set(all_keys())
    with pytest.raises(ValueError, match="frozen"):
        ClassifyRecipe().epochs = 3


def test_lists_without_an_end_and_long_values_are_one_short_line() -> None:
    deep: dict[str, Any] = {}
    for _ in range(3000):
        deep = {"a": deep}
    with pytest.raises(ValueError, match=r"model\.settings cannot be .*nested too deeply"):
        change(ClassifyRecipe(), {"model.settings": deep})
    with pytest.raises(ValueError, match=r"^image_size=.*input should be less than or equal to 8192"):
        change(ClassifyRecipe(), {"image_size": 10**4000})
    with pytest.raises(ValueError, match=r"epochs cannot be 'x{119}\.\.\.: "):
        change(ClassifyRecipe(), {"epochs": "x" * 5000})


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("masked.decoder_heads=5", "masked: decoder_dim=512 must be a multiple of decoder_heads=5"),
        ("teacher.cache=none", "teacher.cache cannot be 'none': views:8 keeps the teacher's answers"),
    ],
)
def test_errors_show_words_and_no_internals(word: str, said: str) -> None:
    task = "masked" if word.startswith("masked") else "distill"
    before = {"task": task, **({"masked.form": "mae"} if task == "masked" else {})}
    with pytest.raises(ValueError, match=r"must be|cannot be") as refusal:
        change(change(ClassifyRecipe(), before), parse_assignments([word]))
    assert said in str(refusal.value)
    assert "{" not in str(refusal.value)
    assert "^" not in str(refusal.value)
