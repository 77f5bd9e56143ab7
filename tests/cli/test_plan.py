"""`vitrail plan`: a measurement and what follows from it; nothing is left behind."""

import json
from pathlib import Path

import pytest
from tiny_runs import tiny_recipe

from vitrail.cli import main, plan
from vitrail.settings.text import write_yaml
from vitrail.training.loop.planning import Plan, StagePlan, make_plan

pytestmark = pytest.mark.usefixtures("_short_plans")


@pytest.fixture
def recipe_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny recipe of two stages, in an otherwise empty working folder."""
    monkeypatch.chdir(tmp_path)
    recipe = tiny_recipe("stages=[{epochs: 2}, {image_size: 24, steps: 5}]", "init=nowhere.pth")
    path = tmp_path / "tiny.yaml"
    path.write_text(write_yaml(recipe))
    return path


def stage(*, step_speed: float, loading_speed: float, workers: int) -> StagePlan:
    return StagePlan(
        model="deit_small",
        image_size=224,
        data="pets",
        num_train=7200,
        num_val=36,
        num_steps=100,
        batch_size=72,
        num_answers=3600,
        num_lanes=1,
        micro_batch=8,
        step_speed=step_speed,
        answer_speed=1e9,
        loading_speed=loading_speed,
        workers=workers,
        memory=None,
    )


def test_workers_load_beside_the_steps_and_without_them_in_between() -> None:
    assert stage(step_speed=100, loading_speed=300, workers=0).speed == pytest.approx(75)
    assert stage(step_speed=100, loading_speed=300, workers=2).speed == 100
    slow = stage(step_speed=100, loading_speed=40, workers=2)
    assert slow.speed == 40
    assert slow.loading_share == pytest.approx(0.6)
    assert slow.workers_needed == 5
    assert slow.seconds == pytest.approx(7200 / 40 + 3600 / 40)


def test_hours_of_all_stages_shrink_with_devices() -> None:
    stages = (stage(step_speed=1, loading_speed=2, workers=1), stage(step_speed=2, loading_speed=4, workers=1))
    found = Plan(stages, "cpu", "float32")
    assert found.hours() == pytest.approx((7200 + 1800 + 3600 + 900) / 3600)
    assert found.hours(4) == pytest.approx(found.hours() / 4)


def test_the_verdict_names_the_bottleneck() -> None:
    waiting = stage(step_speed=100, loading_speed=40, workers=2)
    assert "data loading: the device waits 60% of the time, workers=5" in plan._judge(waiting, "cuda")
    assert plan._judge(stage(step_speed=10, loading_speed=25, workers=2), "cuda").startswith(
        "the model: loading is 2.5"
    )
    assert "workers=1 would keep up" in plan._judge(stage(step_speed=10, loading_speed=25, workers=0), "cuda")
    assert plan._judge(stage(step_speed=50, loading_speed=10, workers=0), "cpu").startswith("data loading, 83%")


def test_every_stage_is_measured(recipe_file: Path) -> None:
    later = "{image_size: 24, steps: 5, data: 'shapes:size=16,count=24,val=12'}"
    found = make_plan(tiny_recipe(f"stages=[{{epochs: 2}}, {later}]", "workers=1"))
    first, second = found.stages
    assert (first.num_steps, second.num_steps) == (6, 5)
    assert (first.image_size, second.image_size) == (16, 24)
    assert first.num_answers == 2 * 24
    assert (first.micro_batch, first.batch_size, first.workers) == (8, 16, 1)
    assert [(part.num_train, part.num_val) for part in found.stages] == [(48, 24), (24, 12)]
    for part in found.stages:
        assert min(part.step_speed, part.answer_speed, part.loading_speed) > 0
        assert part.memory is not None
        assert part.memory >= 0


def test_a_micro_batch_is_found_where_none_is_given(recipe_file: Path) -> None:
    found = make_plan(tiny_recipe("run.micro_batch=null"))
    assert found.stages[0].micro_batch in range(2, 17, 2)


def test_the_plan_is_printed_and_nothing_is_written(
    recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(recipe_file), "out=runs/first", "batch_size=8"]) == 0
    text = capsys.readouterr().out
    assert "stage 2: cait_xxs24 at 24 px, 5 steps of 8 images" in text
    for words in ("micro-batch", "training steps", "data loading", "bottleneck", "peak memory", "8 devices"):
        assert words in text
    assert main(["plan", str(recipe_file), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["hours"]["2"] == pytest.approx(record["hours"]["1"] / 2)
    assert len(record["stages"]) == 2
    assert list(tmp_path.iterdir()) == [recipe_file]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["smal", "data=fashion"], "did you mean small"),
        (["small"], "no data given"),
        (["small", "data=nowhere"], "no folder or file 'nowhere'"),
        (["small", "data=fashion", "epoch=3"], "did you mean 'epochs'?"),
    ],
)
def test_mistakes_are_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_passes_for_the_memory_and_for_clusters_are_counted() -> None:
    def count(*words: str) -> int:
        recipe = tiny_recipe("epochs=1", "data.level=coarse", *words)
        return make_plan(recipe).stages[0].num_answers

    assert count() == 24
    words = ("task=embed", "embedding.instance=0")
    assert count(*words, "embedding.projector=linear") == 24 + 48
    assert count(*words, "embedding.projector=none", "embedding.knn=0", "embedding.cross_entropy=1") == 24
    assert count("clusters.number=4", "clusters.of=nowhere") == 24 + 48 + 24
