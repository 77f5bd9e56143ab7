"""A new classifier starts from a probe of the features it stands on, and says so where it can't."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_runs import model_of, run_in, tiny_recipe
from torch import Tensor
from torch.nn import functional

import vitrail
from vitrail.data.contract import Level
from vitrail.data.quarantine import Quarantine
from vitrail.data.sampler import Ranks
from vitrail.evaluation.predict import predict
from vitrail.evaluation.together import Alone
from vitrail.models.contract import Model
from vitrail.tasks import find_task
from vitrail.tasks.classify.task import Classify
from vitrail.tasks.images.head_start import NoProbeError, choose_images
from vitrail.tasks.site import Silence, Site

COARSE = ("data.level=coarse", "data=shapes:size=16,count=96,val=24")
PATCHCONVNET = ("model=patchconvnet_s60", "model.settings={stem: linear, patch_size: 4, dim: 16, depth: 1}")


class Listener(Silence):
    """Remembers what is said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    def counting(self, name: str, *, total: int) -> AbstractContextManager[Callable[[int], object]]:
        return nullcontext(lambda count: None)


def saved(folder: Path, *words: str) -> Path:
    """Weights of a model of 24 classes."""
    recipe = tiny_recipe(*words)
    vitrail.save_model(model_of(recipe, num_classes=24), folder)
    return folder


def started(source: Path, *words: str, world: Any = None) -> tuple[Classify, list[str]]:
    """A task whose model has read its weights and begun its head, and what was said."""
    recipe = tiny_recipe(*COARSE, f"init={source}", *words)
    listener = Listener()
    task = find_task(recipe.task)(recipe, Site(seed=recipe.seed, reporter=listener, world=world or Alone()))
    assert isinstance(task, Classify)
    description = task.describe(task.open().describe())
    model = task.make_model(description)
    task.load_initial(model, str(source), description=description)
    task.attach(model)
    task.start_head()
    return task, listener.lines


def answers(task: Classify) -> tuple[Tensor, Tensor]:
    """Logits and labels of the training images, before the first step."""
    loader = task.make_plain_loader("train", batch_size=32, quarantine=Quarantine())
    found = predict(task.model, loader.epoch(0), normalize=task.normalize, device=task.site.device)
    logits, targets = zip(*((logits, batch.targets) for logits, batch in found), strict=True)
    return torch.cat(logits), torch.cat(targets)


def accuracy(task: Classify) -> float:
    """Share of the training images that the model names right before its first step."""
    logits, targets = answers(task)
    return (logits.argmax(dim=1) == targets).float().mean().item()


def heads(model: Model) -> list[torch.Tensor]:
    return [layer.weight.detach().clone() for layer in model.classifier_layers()]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("source"))


def test_a_new_head_answers_before_the_first_step(source: Path) -> None:
    task, lines = started(source)
    random, silence = started(source, "head_start=random")
    assert accuracy(task) > accuracy(random) + 0.1
    assert len(lines) == 1
    assert lines[0].startswith("the head starts from a probe of 96 training images (")
    assert silence == []
    again, _ = started(source)
    assert torch.equal(*heads(task.model), *heads(again.model))
    assert not heads(started(source, "head_start=zero")[0].model)[0].any()
    rest, others = (
        {name: value for name, value in one.model.state_dict().items() if "head" not in name} for one in (task, random)
    )
    assert all(torch.equal(value, others[name]) for name, value in rest.items())
    assert task.model.training


def test_a_head_that_is_not_new_stays(source: Path) -> None:
    task, lines = started(source, "data.level=label")
    assert lines == []
    assert torch.equal(
        task.model.state_dict()["head.linear.weight"], vitrail.load_model(source).state_dict()["head.linear.weight"]
    )


@pytest.mark.parametrize("setting", ["classifier=mlp", "distilled=true"])
def test_other_heads_start_from_probes_too(tmp_path: Path, setting: str) -> None:
    words = ("model=deit_tiny", "model.settings={patch_size: 4, dim: 16, depth: 2, num_heads: 2}")
    place = saved(tmp_path, *words, f"model.settings.{setting}")
    task, lines = started(place, *words, f"model.settings.{setting}")
    random, _ = started(place, *words, f"model.settings.{setting}", "head_start=random")
    assert accuracy(task) > accuracy(random) + 0.1
    assert "starts from a probe" in lines[0]


@pytest.mark.parametrize("loss", ["cross_entropy", "bce"])
def test_logits_are_those_of_the_loss(source: Path, loss: str) -> None:
    """An answer that knows nothing costs more, so the scale of the logits suits the loss."""
    task, _ = started(source, f"objective.loss={loss}")
    logits, targets = answers(task)
    masks = functional.one_hot(targets, 6).float()
    if loss == "bce":
        blind = functional.binary_cross_entropy(masks.mean(dim=0).expand_as(masks), masks)
        assert functional.binary_cross_entropy_with_logits(logits, masks) < blind
    else:
        assert functional.cross_entropy(logits, targets) < math.log(6)


def test_what_can_not_be_probed_is_said(tmp_path: Path) -> None:
    words = (*PATCHCONVNET, "model.settings.per_class_tokens=true")
    place = saved(tmp_path, *words)
    task, lines = started(place, *words)
    random, _ = started(place, *words, "head_start=random")
    assert lines == ["the head starts from random weights: more than a linear layer is new in it"]
    assert all(torch.equal(value, random.model.state_dict()[name]) for name, value in task.model.state_dict().items())


def test_a_short_training_is_not_held_up(source: Path) -> None:
    _, lines = started(source, "steps=1")  # of 16 images, so five of six classes may be looked at
    assert lines == [
        "the head starts from random weights: a probe would take too large a share of so short a training; "
        "head_start=probe takes it anyway"
    ]
    assert "from a probe of 96" in started(source, "steps=1", "head_start=probe")[1][0]
    task, lines = started(source, "steps=3")
    assert "from a probe of 12" in lines[0]
    assert task.num_passes == 12
    with pytest.raises(ValueError, match="head_start=probe reads features of weights: add init=pretrained"):
        tiny_recipe("head_start=probe")


def test_images_to_probe_with_are_as_many_of_each_class() -> None:
    labels = np.array([0] * 50 + [1] * 10 + [2] * 3 + [-1] * 4)
    level = Level(("a", "b", "c"), labels)
    chosen = choose_images(level, limit=20, seed=0)
    assert np.bincount(labels[chosen]).tolist() == [8, 8, 3]
    assert len(choose_images(level, limit=None, seed=0)) == 63
    assert np.array_equal(chosen, choose_images(level, limit=20, seed=0))
    assert not np.array_equal(chosen, choose_images(level, limit=20, seed=1))
    several = Level(("a", "b"), np.ones((500, 2), dtype=bool))
    assert len(choose_images(several, limit=None, seed=0)) == 200
    assert len(choose_images(several, limit=9, seed=0)) == 9
    with pytest.raises(NoProbeError, match="no class has two images"):
        choose_images(Level(("a", "b"), np.array([0, 1])), limit=None, seed=0)


class OneOfTwo(Alone):
    """One of two processes; what they gather is found by asking both first."""

    num_ranks = 2

    def __init__(self, rank: int, rows: dict[Any, Any]) -> None:
        self.rank, self.is_main, self.ranks = rank, rank == 0, Ranks(rank, 2)
        self.rows = rows

    def gather(self, value: Any) -> list[Any]:
        self.rows[self.rank] = value
        return [self.rows.get(rank, value) for rank in range(2)]

    def share(self, value: Any) -> Any:
        if self.is_main:
            self.rows["found"] = value
        return self.rows["found"]


def test_processes_begin_alike_and_as_one_would(source: Path) -> None:
    rows: dict[Any, Any] = {}
    for rank in (0, 1):
        started(source, world=OneOfTwo(rank, rows))
    first, second = (heads(started(source, world=OneOfTwo(rank, rows))[0].model)[0] for rank in (0, 1))
    assert torch.equal(first, second)
    assert torch.allclose(first, heads(started(source)[0].model)[0], atol=1e-4)


def test_a_run_begins_so(source: Path, tmp_path: Path) -> None:
    words = (*COARSE, f"init={source}", "steps=4", "blend.mixup=0", "blend.cutmix=0")
    losses = {}
    for kind in ("auto", "random"):
        run = run_in(tmp_path / kind, *words, f"head_start={kind}")
        losses[kind] = next(record["loss"] for record in run.read_metrics() if record["kind"] == "train")
    assert losses["auto"] < losses["random"]
