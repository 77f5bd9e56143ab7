"""On-the-fly classification: equation 2.6 by hand, the choice of k, blocks, and conditioned neighbours."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from vitrail.evaluation.knn import THESIS_CHOICES, find_neighbours, fit_neighbours, score_neighbours
from vitrail.evaluation.probe_data import Labelled
from vitrail.evaluation.ranking import Conditioning, condition_by_oracle


def test_neighbours_by_hand() -> None:
    angles = torch.tensor([0.0, 0.2, 0.5, 3.0])
    base = torch.stack([angles.cos(), angles.sin()], dim=1)
    train = Labelled(base, torch.tensor([0, 1, 1, 2]), 3)
    query = torch.tensor([[1.0, 0.0]])
    similarities, places = find_neighbours(query, base, count=3)
    assert places.tolist() == [[0, 1, 2]]
    assert torch.allclose(similarities, angles[:3].cos()[None])
    # Equation 2.6 with sigma = 0.05, and the probabilities that it is normalised to.
    weights = [math.exp(math.cos(angle) / 0.05) for angle in (0.0, 0.2, 0.5)]
    expected = torch.tensor([[weights[0], weights[1] + weights[2], 0.0]]) / sum(weights)
    assert torch.allclose(score_neighbours(query, base, train, count=3).softmax(dim=1), expected, atol=1e-5)


def test_neighbours_do_not_count_themselves_when_their_number_is_chosen() -> None:
    # Pairs of the same class: the nearest other image is right, the ones behind it are not.
    angles = torch.tensor([0.0, 0.01, 1.0, 1.01, 2.0, 2.01])
    data = Labelled(torch.stack([angles.cos(), angles.sin()], dim=1), torch.arange(6) // 2, 3)
    fitted = fit_neighbours(data)
    assert fitted.setting == {"neighbours": 1}
    assert fitted.held_out == 100.0
    alone = Labelled(data.vectors, torch.tensor([0, 1, 2, 0, 1, 2]), 3)
    held_out = fit_neighbours(alone).held_out
    assert held_out is not None
    assert held_out < 50.0


def test_neighbours_in_chunks_are_those_of_the_whole_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    base = functional.normalize(torch.randn(40, 5), dim=1)
    whole = find_neighbours(base, base, count=7, without=torch.arange(40))
    monkeypatch.setattr("vitrail.evaluation.knn._BLOCK", 9)
    monkeypatch.setattr("vitrail.evaluation.ranking._BLOCK", 9)
    monkeypatch.setattr("vitrail.evaluation.ranking._MAX_CELLS", 100)
    parts = find_neighbours(base, base, count=7, without=torch.arange(40))
    assert torch.equal(whole[1], parts[1])
    assert not (whole[1] == torch.arange(40)[:, None]).any()


@pytest.mark.parametrize("order", ["shuffled", "nearest last", "nearest first"])
@pytest.mark.parametrize(("block", "group"), [(64, 8), (50, 8), (7, 64), (1, 1)])
@pytest.mark.parametrize("count", [1, 20, 150])
@pytest.mark.parametrize("is_conditioned", [False, True])
def test_neighbours_are_those_of_a_plain_sort(
    monkeypatch: pytest.MonkeyPatch, order: str, block: int, group: int, count: int, is_conditioned: bool
) -> None:
    monkeypatch.setattr("vitrail.evaluation.knn._BLOCK", block)
    monkeypatch.setattr("vitrail.evaluation.knn._GROUP", group)
    generator = torch.Generator().manual_seed(0)
    base = functional.normalize(torch.randn(300, 6, generator=generator), dim=1)
    queries = functional.normalize(torch.randn(11, 6, generator=generator), dim=1)
    if order != "shuffled":  # the worst and the best case of one that looks only at what is better than before
        base = base[(base @ queries[0]).argsort(descending=order == "nearest first")]
    without = torch.randint(300, (11,), generator=generator)
    scores = queries.double() @ base.double().T
    conditioning = None
    if is_conditioned:
        bonus = torch.randn(11, 4, generator=generator).double()
        conditioning = Conditioning(bonus, torch.randint(-1, 3, (300,), generator=generator))
        scores += bonus[:, conditioning.coarse]
    scores[torch.arange(11), without] = -torch.inf
    expected = scores.sort(dim=1, descending=True)
    found = find_neighbours(queries, base, count=count, without=without, conditioning=conditioning)
    assert torch.equal(found[1], expected.indices[:, :count])
    torch.testing.assert_close(found[0].double(), expected.values[:, :count], atol=1e-6, rtol=0)


def test_of_equal_images_each_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitrail.evaluation.knn._BLOCK", 16)
    monkeypatch.setattr("vitrail.evaluation.knn._GROUP", 4)
    base = functional.normalize(torch.ones(100, 3), dim=1)
    cosines, places = find_neighbours(base[:2], base, count=30)
    assert torch.allclose(cosines, torch.ones(2, 30))
    assert all(len(set(row)) == 30 for row in places.tolist())


def test_the_thesis_chooses_the_number_of_neighbours_from_five() -> None:
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(80, 4, generator=generator)
    data = Labelled(vectors, (vectors[:, 0] > 0).long(), 2)
    chosen = fit_neighbours(data, choices=THESIS_CHOICES).setting["neighbours"]
    held_out = {k: fit_neighbours(data, choices=[k]).held_out for k in (10, 15, 20, 25, 30)}
    assert held_out[int(chosen)] == max(value for value in held_out.values() if value is not None)


def test_fewer_images_than_neighbours_are_all_asked() -> None:
    data = Labelled(torch.eye(4), torch.tensor([0, 0, 1, 1]), 2)
    assert fit_neighbours(data, choices=THESIS_CHOICES).setting == {"neighbours": 3}
    with pytest.raises(ValueError, match="there is one training image"):
        fit_neighbours(data.choose(torch.tensor([0])))


def test_a_collection_in_half_precision_gives_nearly_the_same_cosines() -> None:
    base = functional.normalize(torch.randn(30, 8, generator=torch.Generator().manual_seed(0)), dim=1)
    whole, half = (find_neighbours(base[:5], vectors, count=4)[0] for vectors in (base, base.half()))
    assert torch.allclose(whole, half, atol=2e-3)


def test_neighbours_of_a_known_coarse_class_come_first() -> None:
    base = functional.normalize(torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [-1.0, 0.0]]), dim=1)
    coarse = torch.tensor([0, 0, 1, 1])
    known = condition_by_oracle(torch.tensor([1]), coarse, num_classes=2)
    _, places = find_neighbours(base[:1], base, count=4, conditioning=known)
    assert places.tolist() == [[2, 3, 0, 1]]


def test_scikit_learn_weighs_and_answers_the_same() -> None:
    neighbors = pytest.importorskip("sklearn.neighbors", reason="scikit-learn is not installed")
    generator = torch.Generator().manual_seed(3)
    base, queries = (functional.normalize(torch.randn(n, 6, generator=generator), dim=1) for n in (80, 25))
    labels = torch.randint(0, 5, (80,), generator=generator)
    theirs = neighbors.KNeighborsClassifier(
        n_neighbors=15, metric="cosine", algorithm="brute", weights=lambda distances: np.exp((1.0 - distances) / 0.05)
    ).fit(base.numpy(), labels.numpy())
    ours = score_neighbours(queries, base, Labelled(base, labels, 5), count=15).softmax(dim=1)
    assert torch.allclose(ours.double(), torch.from_numpy(theirs.predict_proba(queries.numpy())).double(), atol=1e-4)
    assert ours.argmax(dim=1).tolist() == theirs.predict(queries.numpy()).tolist()
