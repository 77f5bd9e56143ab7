"""The answers of the two heads of a distilled model, one by one and together."""

import math
from typing import Any

import pytest
import torch
from shrunk import NUM_CLASSES, images_for, randomize, small_model

import vitrail
from vitrail.evaluation.heads import HEADS, SeparateHeads, head_answers

DISTILLED: list[tuple[str, dict[str, Any]]] = [
    ("deit_tiny_distilled", {}),
    ("cait_xxs24", {"distilled": True}),
    ("patchconvnet_s20", {"distilled": True}),
    ("resmlp_s12", {"distilled": True}),
    ("resmlp_s12", {"distilled": True, "pool": "class_mlp"}),
]


@pytest.mark.parametrize(("name", "settings"), DISTILLED)
@torch.no_grad()
def test_in_eval_mode_they_are_the_two_answers_of_training_whose_mean_is_the_models_own(
    name: str, settings: dict[str, Any]
) -> None:
    model = randomize(small_model(name, drop_path=0.0, **settings))
    images = images_for(model)
    of_class, of_teacher = model.train()(images)
    model.eval()
    logits = SeparateHeads(model)(images)
    assert logits.shape == (2, 2, NUM_CLASSES)
    assert torch.allclose(logits, torch.stack([of_class, of_teacher], dim=1), atol=1e-4, rtol=1e-4)
    assert torch.equal(logits.mean(dim=1), model(images))
    folded = SeparateHeads(vitrail.fold(model))(images)
    assert torch.allclose(folded, logits, atol=1e-3, rtol=1e-3)


def test_the_joint_answer_is_the_sum_of_softmaxes_not_of_logits() -> None:
    # Softmaxes (1/2, 1/3, 1/6) and (1/5, 3/10, 1/2): their sums are 0.7, 0.6333 and 0.6667.
    first, second = torch.tensor([3.0, 2.0, 1.0]) / 6, torch.tensor([2.0, 3.0, 5.0]) / 10
    answers = head_answers(torch.stack([first.log() + 4, second.log() - 7])[None])
    assert tuple(answers) == HEADS
    assert answers["class"].argmax() == 0
    assert answers["distillation"].argmax() == 2
    assert answers["joint"].argmax() == 0
    assert answers["joint"].softmax(dim=1)[0].tolist() == pytest.approx([0.35, 19 / 60, 1 / 3], rel=1e-5)
    assert answers["joint"].exp().sum().item() == pytest.approx(1.0, rel=1e-5)


def test_the_mean_of_logits_and_the_sum_of_softmaxes_may_differ() -> None:
    # The second head all but rules class 0 out: its logit says so loudly, its probability has little to take away.
    logits = torch.tensor([[[0.9, 0.09, 0.01], [0.001, 0.49, 0.509]]]).log()
    assert logits.mean(dim=1).argmax() == 1  # 0.9 * 0.001 against 0.09 * 0.49
    joint = head_answers(logits)["joint"]
    assert joint.argmax() == 0  # 0.901 against 0.58
    assert joint[0].tolist() == pytest.approx([math.log(0.901 / 2), math.log(0.58 / 2), math.log(0.519 / 2)], rel=1e-5)


def test_models_of_one_head_are_refused() -> None:
    plain, embedding = small_model("cait_xxs24"), small_model("deit_tiny_distilled", num_classes=0)
    assert not plain.has_two_heads
    assert not embedding.has_two_heads
    with pytest.raises(ValueError, match="cait_xxs24 has no distillation head"):
        SeparateHeads(plain)
