"""Steps on a GPU: the host waits for none of them, and what it learns a step later ends in the same weights."""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_runs import run_in
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from vitrail.data.blend import Blend
from vitrail.data.contract import ImageBatch
from vitrail.layers import residual
from vitrail.models.catalog import create_model
from vitrail.settings.running import RunSettings
from vitrail.tasks.classify.supervised import Supervised
from vitrail.training.loop import prefetch, step_guard
from vitrail.training.loop.acceleration import (
    choose_memory_format,
    compile_blocks,
    float32_products,
    is_convolutional,
)
from vitrail.training.loop.stage import Stage

# Operations whose result, or its shape, the host has to wait for.
WAITING = {
    "aten::_local_scalar_dense",
    "aten::nonzero",
    "aten::masked_select",
    "aten::equal",
    "aten::_unique2",
    "aten::bincount",
}
PLAIN = ("regularisation.ema=null", "model=deit_tiny")


class Waits(TorchDispatchMode):
    """Notes what the host waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_mask = func._schema.name == "aten::index" and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
        if func._schema.name in WAITING or is_mask:
            self.found.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.fixture
def like_a_gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Steps as on a GPU, where micro-batches follow each other and labels are not looked at."""
    monkeypatch.setattr(step_guard, "DELAYED_DEVICES", ("cpu",))
    monkeypatch.setattr(residual, "COUNTED_DEVICES", ())
    monkeypatch.setattr(Supervised, "is_divisible", False)
    monkeypatch.setattr(Blend, "_check_labels", lambda *arguments: None)
    return monkeypatch


@pytest.mark.parametrize("words", [(), ("optimizer.name=sgd", "optimizer.clip=1", *PLAIN)], ids=["adamw", "sgd"])
def test_no_steady_step_waits(words: tuple[str, ...], tmp_path: Path, like_a_gpu: pytest.MonkeyPatch) -> None:
    waits: dict[int, list[str]] = {}
    step = Stage._step

    def watched(stage: Stage, *arguments: Any, **options: Any) -> None:
        with Waits() as mode:
            step(stage, *arguments, **options)
        waits[stage.step] = mode.found

    like_a_gpu.setattr(Stage, "_step", watched)
    like_a_gpu.setattr(Stage, "_log_step", lambda *arguments: None)  # what is logged is read
    run_in(tmp_path / "run", *words)
    assert len(waits) == 9  # steps
    assert not any(waits.values()), waits


@contextmanager
def broken_losses(monkeypatch: pytest.MonkeyPatch, steps: set[int]) -> Iterator[None]:
    """Losses that are not finite in these steps, of two micro-batches each."""
    judge, calls = Supervised.__call__, iter(range(10**6))

    def judge_badly(objective: Any, model: nn.Module, batch: Any) -> Any:
        losses = judge(objective, model, batch)
        is_bad = next(calls) // 2 in steps
        return losses._replace(total=losses.total * math.nan) if is_bad else losses

    with monkeypatch.context() as patch:
        patch.setattr(Supervised, "__call__", judge_badly)
        yield


@pytest.mark.parametrize("steps", [set(), {0, 3, 5, 8}], ids=str)
def test_steps_are_left_out_as_if_they_had_been_read_at_once(
    steps: set[int], tmp_path: Path, like_a_gpu: pytest.MonkeyPatch
) -> None:
    """At the beginning, in a row with an evaluation, and at the end; with the moving average."""
    found = []
    for name, devices in (("later", ("cpu",)), ("at_once", ())):
        like_a_gpu.setattr(step_guard, "DELAYED_DEVICES", devices)
        with broken_losses(like_a_gpu, steps):
            run = run_in(tmp_path / name, "run.on_nan=skip", "run.micro_batch=8")
        records = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
        last = [record for record in records if record["kind"] == "train"][-1]
        state = torch.load(run.checkpoints / "step_000000009.pt", weights_only=True)
        found.append((load_file(run.model / "model.safetensors"), state))
        assert last["step"] == 9
    (weights, state), (expected, expected_state) = found
    assert state["num_skipped"] == expected_state["num_skipped"] == len(steps)
    assert state["average"]["num_updates"] == expected_state["average"]["num_updates"] == 9 - len(steps)
    for name, value in expected_state["model"].items():
        assert torch.equal(state["model"][name], value), name
    torch.testing.assert_close(weights, expected)


def test_a_run_stops_at_the_step_that_broke(tmp_path: Path, like_a_gpu: pytest.MonkeyPatch) -> None:
    with broken_losses(like_a_gpu, {4}), pytest.raises(ValueError, match=r"^step 4 \(epoch 1.33\): loss nan"):
        run_in(tmp_path / "run", "run.micro_batch=8")


def test_batches_are_copied_on_a_stream_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    class Copied:
        device = torch.device("cuda")

        def record_stream(self, stream: Any) -> None:
            told.append("recorded")

    class Loaded:
        def to(self, device: torch.device, *, non_blocking: bool) -> tuple[Any, ...]:
            told.append("copied" if non_blocking else "waited")
            return pair

    @contextmanager
    def streaming(stream: Any) -> Iterator[None]:
        told.append("own stream")
        yield
        told.append("first stream")

    pair: Any = (Copied(),)
    user = SimpleNamespace(wait_stream=lambda stream: told.append("ordered"))
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: object())
    monkeypatch.setattr(torch.cuda, "stream", streaming)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: user)
    monkeypatch.setattr(prefetch, "tensors_in", list)
    loaded: Any = [Loaded()]
    [moved] = prefetch.on_device(loaded, torch.device("cuda"))
    assert moved is pair
    assert told == ["own stream", "copied", "first stream", "ordered", "recorded"]


def test_on_a_cpu_batches_are_passed_through() -> None:
    batch = ImageBatch(torch.zeros(1, 3, 4, 4), torch.zeros(1), torch.zeros(1))
    assert next(prefetch.on_device([batch], torch.device("cpu"))) is batch


@pytest.mark.parametrize(
    ("name", "expected"),
    [("deit_tiny", False), ("cait_xxs24", False), ("patchconvnet_s60", True), ("timm/resnet18", True)],
)
def test_convolutional_models_have_their_channels_last_on_a_gpu(name: str, expected: bool) -> None:
    with torch.device("meta"):
        model = create_model(name)
    assert is_convolutional(model) is expected
    weights = [part.weight for part in model.modules() if isinstance(part, nn.Conv2d) and max(part.kernel_size) > 1]
    for device, is_last in (("cpu", False), ("cuda", expected)):
        choose_memory_format(model, RunSettings(), torch.device(device))
        inner = [weight for weight in weights if weight.shape[1] > 1]
        assert all(weight.is_contiguous(memory_format=torch.channels_last) is is_last for weight in inner)


def test_tf32_is_asked_for_inside_a_run_alone() -> None:
    with float32_products(RunSettings()):
        assert not torch.backends.cuda.matmul.allow_tf32
    with float32_products(RunSettings(tf32=True)):
        assert torch.backends.cuda.matmul.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32


def test_blocks_are_compiled_in_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[nn.Module] = []
    monkeypatch.setattr(nn.Module, "compile", lambda module: compiled.append(module))
    with torch.device("meta"):
        model = create_model("cait_xxs24")
    compile_blocks(model)
    assert compiled == [*model.get_submodule("class_stage.blocks").children(), *model.blocks]
    with pytest.raises(ValueError, match=r"run\.compile=true"):
        compile_blocks(nn.Linear(2, 2))
