"""The disagreement matrix against counts done by hand."""

import pytest
import torch

from vitrail.evaluation.compare import ClassIndex, disagreement


def test_three_classifiers_on_four_images_by_hand() -> None:
    answers = torch.tensor([[0, 1, 2, 0], [0, 1, 1, 1], [0, 2, 2, 0]])
    assert disagreement(answers).tolist() == [[0.0, 0.5, 0.25], [0.5, 0.0, 0.75], [0.25, 0.75, 0.0]]


def test_an_image_that_one_of_them_has_no_answer_for_counts_for_none() -> None:
    answers = torch.tensor([[0, 1, 2, 0], [0, 1, 1, -1], [0, 2, 1, 1]])
    assert torch.equal(disagreement(answers), disagreement(answers[:, :3]))
    with pytest.raises(ValueError, match="nothing to compare"):
        disagreement(answers[:, 3:])


def test_only_class_indices_are_compared() -> None:
    with pytest.raises(ValueError, match=r"expected class indices \[rows, images\], got \[4\] of torch.int64"):
        disagreement(torch.arange(4))


def test_classes_are_the_same_by_name() -> None:
    index = ClassIndex(["cat", "dog"])
    assert index.numbers_of(["dog", "cat"]).tolist() == [1, 0]
    assert index.numbers_of(["zebra", "dog", "cat"]).tolist() == [2, 1, 0]
    assert index.numbers_of(["cow", "zebra"]).tolist() == [3, 2]
