"""Answers of a model batch by batch: what the caller's own code runs under, and what it may do with them."""

import threading
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from vitrail.data.blend import Normalize
from vitrail.data.contract import ImageBatch
from vitrail.evaluation.predict import autocast, predict


class Watched(nn.Module):
    """A linear model that notes what it computes under."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(12, 3)
        self.seen: list[tuple[bool, bool, bool]] = []

    def forward(self, images: Tensor) -> Tensor:
        self.seen.append((torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"), self.training))
        answers: Tensor = self.linear(images.flatten(1))
        return answers


def some_batches(count: int) -> Iterator[ImageBatch]:
    for place in range(count):
        images = torch.full((2, 3, 2, 2), 40 * place, dtype=torch.uint8)
        yield ImageBatch(images, torch.zeros(2, dtype=torch.int64), torch.arange(2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_callers_code_runs_as_if_there_were_no_model(dtype: torch.dtype) -> None:
    model, weight = Watched().train(), torch.ones(3, requires_grad=True)
    settings = {"normalize": Normalize(), "device": torch.device("cpu"), "dtype": dtype}
    for logits, _ in predict(model, some_batches(3), **settings):  # type: ignore[arg-type]
        assert not torch.is_inference_mode_enabled()
        assert not torch.is_autocast_enabled("cpu")
        assert torch.is_grad_enabled()
        assert logits.dtype == (logits @ weight).dtype == torch.float32
        (logits @ weight).sum().backward()  # an answer may be learnt from
        logits[0] = 0.0  # and changed
    assert model.seen == [(True, dtype == torch.bfloat16, False)] * 3
    assert model.training


def test_a_loop_that_is_left_early_leaves_nothing_behind() -> None:
    model = Watched().train()
    found = predict(model, some_batches(3), normalize=Normalize(), device=torch.device("cpu"), dtype=torch.bfloat16)
    next(iter(found))
    assert not torch.is_inference_mode_enabled()
    assert not torch.is_autocast_enabled("cpu")
    found.close()  # type: ignore[attr-defined]
    assert model.training


def test_the_answers_are_those_of_the_model() -> None:
    model = Watched()
    found = [logits for logits, _ in predict(model, some_batches(2), normalize=Normalize(), device=torch.device("cpu"))]
    with torch.no_grad():
        wanted = [model(Normalize()(batch.images)) for batch in some_batches(2)]
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


def test_gradients_in_bfloat16_do_not_depend_on_what_another_thread_does_meanwhile() -> None:
    weight, images = torch.randn(8, 8, requires_grad=True), torch.randn(64, 8)

    def compute_beside() -> None:
        with autocast(torch.device("cpu"), torch.bfloat16):
            nn.functional.linear(images, weight)

    def gradient(*, is_disturbed: bool) -> Tensor:
        with autocast(torch.device("cpu"), torch.bfloat16):
            answer = nn.functional.linear(images, weight)
            if is_disturbed:
                other = threading.Thread(target=compute_beside)
                other.start()
                other.join()
            answer = nn.functional.linear(answer, weight)
        return torch.autograd.grad(answer.float().square().mean(), weight)[0]

    assert torch.equal(gradient(is_disturbed=True), gradient(is_disturbed=False))
