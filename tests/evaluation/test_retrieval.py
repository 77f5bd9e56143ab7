"""Category-level retrieval: average precision by hand and by others, equation 2.5, the oracle, levels."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from vitrail.evaluation.average_precision import average_precision
from vitrail.evaluation.ranking import condition, condition_by_oracle, predict_coarse, score
from vitrail.evaluation.retrieval import (
    Levelled,
    average_precisions,
    evaluate_level,
    make_conditioning,
    mean_average_precision,
)


def on_circle(*angles: float) -> Tensor:
    """Vectors of length 1 whose cosines are those of the differences of the angles."""
    exact = torch.tensor(angles)
    return torch.stack([exact.cos(), exact.sin()], dim=1)


def random_case(seed: int = 0, *, classes: int = 5) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    queries, images = (functional.normalize(torch.randn(n, 6, generator=generator), dim=1) for n in (17, 60))
    labels = [torch.randint(0, classes, (n,), generator=generator) for n in (17, 60)]
    return queries, labels[0], images, labels[1]


def test_average_precision_by_hand() -> None:
    # The ranking is right, wrong, right, wrong: (1/1 + 2/3) / 2.
    images = on_circle(0.1, 0.2, 0.3, 0.4)
    found = average_precisions(on_circle(0.0), torch.tensor([1]), images, torch.tensor([1, 0, 1, 0]))
    assert found.tolist() == pytest.approx([(1.0 + 2.0 / 3.0) / 2.0])


def test_images_of_equal_scores_are_taken_together() -> None:
    images = on_circle(0.1, 0.1, 0.1, 0.4)
    found = average_precisions(on_circle(0.0), torch.tensor([1]), images, torch.tensor([1, 0, 1, 1]))
    assert found.tolist() == pytest.approx([(2.0 / 3.0 + 2.0 / 3.0 + 3.0 / 4.0) / 3.0])


def test_blocks_of_rows_give_what_sorting_each_row_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    queries, query_labels, images, labels = random_case()
    expected = [average_precision(images @ q, labels == label) for q, label in zip(queries, query_labels, strict=True)]
    assert average_precisions(queries, query_labels, images, labels).tolist() == pytest.approx(expected)
    monkeypatch.setattr("vitrail.evaluation.ranking._MAX_CELLS", 130)
    assert average_precisions(queries, query_labels, images, labels).tolist() == pytest.approx(expected)


def test_scikit_learn_says_the_same() -> None:
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    queries, query_labels, images, labels = random_case(1)
    pairs = zip(queries, query_labels, strict=True)
    expected = [metrics.average_precision_score((labels == label).numpy(), (images @ q).numpy()) for q, label in pairs]
    assert average_precisions(queries, query_labels, images, labels).tolist() == pytest.approx(expected)


def test_torchmetrics_says_the_same() -> None:
    retrieval = pytest.importorskip("torchmetrics.retrieval", reason="torchmetrics is not installed")
    queries, query_labels, images, labels = random_case(2)
    places = torch.arange(len(queries))[:, None].expand(-1, len(images))
    scores = queries @ images.T + 2.0  # it takes no image for right whose score is below 0
    theirs = retrieval.RetrievalMAP()(
        scores.flatten(), (query_labels[:, None] == labels).flatten(), indexes=places.flatten()
    )
    ours = mean_average_precision(average_precisions(queries, query_labels, images, labels))
    assert ours == pytest.approx(100.0 * theirs.item())


def test_queries_without_an_image_of_their_class_do_not_count() -> None:
    images = on_circle(0.1, 0.2)
    found = average_precisions(on_circle(0.0, 0.0), torch.tensor([7, 1]), images, torch.tensor([0, 1]))
    assert math.isnan(found[0])
    assert mean_average_precision(found) == pytest.approx(50.0)
    with pytest.raises(ValueError, match="no query has an image of its class"):
        mean_average_precision(found[:1])


def test_a_query_in_the_collection_does_not_find_itself() -> None:
    images, labels = on_circle(0.0, 0.1, 0.2, 1.0), torch.tensor([0, 1, 0, 2])
    found = average_precisions(images, labels, images, labels, without=torch.arange(4))
    assert found[0].item() == pytest.approx(0.5)  # behind the image of class 1
    assert math.isnan(found[3])  # no other of its class


def test_equation_2_5_by_hand() -> None:
    images, coarse = on_circle(0.1, 0.2, 0.3), torch.tensor([0, 1, -1])
    probabilities = torch.tensor([[0.2, 0.8]])
    scores = score(on_circle(0.0), images, conditioning=condition(probabilities, coarse))
    low, high = math.log(0.2 / 0.8), math.log(0.8 / 0.2)
    expected = [math.cos(0.1) + low, math.cos(0.2) + high, math.cos(0.3) + 0.2 * low + 0.8 * high]
    assert scores.tolist()[0] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("likely", [0.1, 0.3, 0.9, 1.0])
def test_an_image_without_a_coarse_class_ranks_between_those_of_likely_and_unlikely_ones(likely: float) -> None:
    probabilities = torch.tensor([[likely, *[(1.0 - likely) / 9] * 9]])
    images = on_circle(0.3).expand(11, -1)  # all alike
    scores = score(on_circle(0.0), images, conditioning=condition(probabilities, torch.arange(-1, 10)))[0]
    unknown, first, *others = scores.tolist()
    assert min(first, *others) - 1e-6 <= unknown <= max(first, *others) + 1e-6


def test_a_sure_coarse_prediction_stays_finite_and_decides() -> None:
    scores = score(on_circle(0.0), on_circle(0.1, 3.0), conditioning=condition(torch.eye(2)[1:], torch.arange(2)))
    assert scores.isfinite().all()
    assert scores[0, 1] > scores[0, 0]


def test_the_coarse_class_is_predicted_by_all_neighbours() -> None:
    angles, coarse = (0.1, 0.2, 0.4, 0.5), torch.tensor([0, 1, 0, -1])
    weights = [math.exp(math.cos(angle) / 0.05) for angle in angles]
    total = sum(weights[:3])  # the last image has no coarse class
    found = predict_coarse(on_circle(0.0), on_circle(*angles), coarse, num_classes=2)
    assert found.tolist()[0] == pytest.approx([(weights[0] + weights[2]) / total, weights[1] / total], rel=1e-5)


def test_the_oracle_puts_images_of_the_coarse_class_first_and_keeps_their_order() -> None:
    images, coarse = on_circle(0.1, 3.0, 0.2, 2.0), torch.tensor([0, 1, 0, 1])
    scores = score(on_circle(0.0), images, conditioning=condition_by_oracle(torch.tensor([1]), coarse, num_classes=2))
    assert scores.argsort(dim=1, descending=True).tolist() == [[3, 1, 0, 2]]


def levelled(seed: int, count: int) -> Levelled:
    """Four fine classes in two coarse ones; the fine ones overlap across coarse ones."""
    generator = torch.Generator().manual_seed(seed)
    fine = torch.arange(count) % 4
    centres = torch.tensor([[1.0, 0.2, 0.0], [0.2, 1.0, 0.0], [1.0, 0.0, 0.3], [0.0, 1.0, 0.3]])
    vectors = centres[fine] + 0.15 * torch.randn(count, 3, generator=generator)
    return Levelled.of(vectors, {"fine": fine, "coarse": fine // 2}, num_classes={"fine": 4, "coarse": 2})


def test_knowing_the_coarse_class_helps_and_every_level_is_measured() -> None:
    queries, images = levelled(0, 40), levelled(1, 200)
    found = {level: evaluate_level(queries, images, level, coarse="coarse") for level in ("fine", "coarse")}
    assert found["fine"]["map_oracle"] > found["fine"]["map_conditional"] > found["fine"]["map_cosine"]
    assert found["coarse"]["map_oracle"] == pytest.approx(100.0)
    assert found["fine"]["neighbours"] in (10, 15, 20, 25, 30)
    assert 25.0 < found["fine"]["top1"] <= 100.0
    plain = evaluate_level(queries, images, "fine")
    assert plain["map_cosine"] == found["fine"]["map_cosine"]
    assert "map_oracle" not in plain


def test_an_unknown_ranking_is_one_line() -> None:
    with pytest.raises(ValueError, match="rank must be one of cosine, conditional, oracle, not 'best'"):
        make_conditioning("best", levelled(0, 8), levelled(1, 8), coarse="coarse")


def test_a_classifier_that_knows_the_coarse_class_is_as_good_as_the_oracle() -> None:
    queries, images = levelled(0, 40), levelled(1, 200)
    sure = torch.eye(2)[queries.labels["coarse"]]
    found = evaluate_level(queries, images, "fine", coarse="coarse", probabilities=sure)
    assert found["map_conditional"] == pytest.approx(found["map_oracle"])
    wrong = evaluate_level(queries, images, "fine", coarse="coarse", probabilities=1.0 - sure)
    assert wrong["map_conditional"] < found["map_cosine"]


def test_queries_without_a_label_are_left_out_and_keep_their_probabilities() -> None:
    queries, images = levelled(0, 40), levelled(1, 200)
    sure = torch.eye(2)[queries.labels["coarse"]]
    some = queries.labels["fine"].clone()
    some[1::3] = -1
    part = Levelled(queries.vectors, {**queries.labels, "fine": some}, queries.num_classes)
    kept = (some >= 0).nonzero()[:, 0]
    found = evaluate_level(part, images, "fine", coarse="coarse", probabilities=sure, neighbours=10)
    same = evaluate_level(
        queries.choose(kept), images, "fine", coarse="coarse", probabilities=sure[kept], neighbours=10
    )
    assert found == same
    assert (found["num_images"], found["neighbours"]) == (len(kept), 10)
    nothing = Levelled(queries.vectors, {"fine": torch.full((40,), -1)}, queries.num_classes)
    with pytest.raises(ValueError, match="there are no labels 'fine' to measure by"):
        evaluate_level(nothing, images, "fine")


def test_images_without_a_label_may_vote_for_nothing() -> None:
    labels = torch.tensor([0, -1, -1, 1, 1, 1])
    images = Levelled(on_circle(0.0, 0.1, -0.1, 2.0, 2.1, 1.9), {"fine": labels}, {"fine": 2})
    queries = Levelled(on_circle(0.05, 2.05), {"fine": torch.tensor([0, 1])}, {"fine": 2})
    named = evaluate_level(queries, images, "fine", neighbours=3)
    all_vote = evaluate_level(queries, images, "fine", neighbours=3, unlabelled_vote=True)
    assert (named["top1"], all_vote["top1"]) == (100.0, 50.0)
    assert all_vote["map_cosine"] == named["map_cosine"]
