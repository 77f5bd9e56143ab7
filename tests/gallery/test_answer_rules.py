"""Rules that answer: means whose length is freed of noise, the choice on held-out images, and galleries without one."""

import json
import math
from pathlib import Path

import pytest
import torch
from tiny_galleries import COLOURS, colour_gallery, colours, paint, tiny_viewer
from torch import Tensor
from torch.nn import functional

from vitrail.evaluation.knn import find_neighbours
from vitrail.gallery.answer_rules import RULES, ClassMeans, Held, _first_of_each, choose_rule, combine, override, vote
from vitrail.gallery.building import Choices
from vitrail.gallery.gallery import Gallery
from vitrail.gallery.gallery_manifest import MANIFEST_FILE, RuleName

DIM, NUM_CLASSES = 32, 6


def draw(counts: list[int], *, seed: int, spread: float = 1.0) -> tuple[Tensor, Tensor]:
    """Vectors of length 1 around the same centres for every seed, so many of each class."""
    centres = torch.randn(len(counts), DIM, generator=torch.Generator().manual_seed(5))
    centres = DIM**0.5 * functional.normalize(centres, dim=1)
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    noise = torch.randn(len(labels), DIM, generator=torch.Generator().manual_seed(seed))
    return functional.normalize(centres[labels] + spread * noise, dim=1), labels


def test_the_noise_of_two_images_is_taken_out_of_the_length_of_their_mean() -> None:
    angle = 0.5
    pair = torch.tensor([[math.cos(angle), math.sin(angle)], [math.cos(angle), -math.sin(angle)]])
    means = ClassMeans.of(pair, torch.zeros(2, dtype=torch.int64), num_classes=2)
    assert means.spread == pytest.approx(1.0 - math.cos(2 * angle))
    (found,) = means.similarities(torch.tensor([[1.0, 0.0]])).tolist()
    assert found[0] == pytest.approx(math.cos(angle) / math.sqrt(math.cos(2 * angle)), rel=1e-5)
    assert found[1] == -math.inf


def test_five_images_are_as_like_to_their_class_as_five_hundred() -> None:
    counts = [200] * 20 + [5] * 20
    vectors, labels = draw(counts, seed=1)
    asked, own = draw([50] * len(counts), seed=2)
    found = ClassMeans.of(vectors, labels, num_classes=len(counts)).similarities(asked)
    sums = torch.zeros(len(counts), DIM).index_add(0, labels, vectors)
    plain = asked @ functional.normalize(sums, dim=1).T
    of_few, of_many, plain_of_few, plain_of_many = (
        scores.gather(1, own[:, None])[is_own].mean().item()
        for scores in (found, plain)
        for is_own in (own >= 20, own < 20)
    )
    assert of_few == pytest.approx(of_many, abs=0.02)
    assert plain_of_few < plain_of_many - 0.05


def test_an_image_does_not_help_its_own_class() -> None:
    vectors, labels = draw([4, 3, 1], seed=3)
    means = ClassMeans.of(vectors, labels, num_classes=3)
    found = means.own_similarities(vectors, labels)
    for row in range(len(vectors)):
        others = torch.arange(len(vectors)) != row
        alone = ClassMeans.of(vectors[others], labels[others], num_classes=3, spread=means.spread)
        assert found[row].item() == pytest.approx(alone.similarities(vectors[row : row + 1])[0, labels[row]].item())


def answer_plainly(
    name: RuleName, vectors: Tensor, labels: Tensor, query: Tensor, *, spread: float, warmth: float
) -> int:
    """The class of one query by a rule, with nothing shared between queries."""
    cosines, rows = find_neighbours(query[None], vectors, count=10)
    votes = vote(cosines, labels[rows], num_classes=NUM_CLASSES)
    means = ClassMeans.of(vectors, labels, num_classes=NUM_CLASSES, spread=spread)
    rule = override(None, name).model_copy(update={"temperature": warmth})
    return int(combine(rule, means.similarities(query[None]), votes).argmax())


@pytest.mark.parametrize("is_inside", [True, False])
def test_rules_are_compared_as_galleries_of_those_images_would_answer(is_inside: bool) -> None:
    vectors, labels = draw([30, 30, 30, 30, 30, 5], seed=4, spread=2.0)
    asked, own = (vectors, labels) if is_inside else draw([10] * NUM_CLASSES, seed=6, spread=2.0)
    rows = torch.arange(len(vectors)) if is_inside else torch.full((len(asked),), -1)
    held = Held(asked, own, rows, "these")
    rule = choose_rule("auto", vectors, labels, held, num_classes=NUM_CLASSES, neighbours=10)
    assert rule.known is not None
    assert rule.added is not None
    assert rule.num_held_out == len(asked)
    spread = ClassMeans.of(vectors, labels, num_classes=NUM_CLASSES).spread
    right: dict[tuple[str, str], list[bool]] = {(name, kind): [] for name in RULES for kind in ("known", "added")}
    fives = choose_five(labels)
    for query, label, row in zip(asked, own.tolist(), rows.tolist(), strict=True):
        is_other = torch.arange(len(vectors)) != row
        is_few = (labels != label) | torch.isin(torch.arange(len(vectors)), fives[label])
        for name in RULES:
            for kind, kept in (("known", is_other), ("added", is_few)):
                if kind == "added" and row in fives[label].tolist():
                    continue
                found = answer_plainly(name, vectors[kept], labels[kept], query, spread=spread, warmth=rule.temperature)
                right[name, kind].append(found == label)
    for name in RULES:
        for kind, figures in (("known", rule.known), ("added", rule.added)):
            assert figures[name] == pytest.approx(sum(right[name, kind]) / len(right[name, kind]), abs=1e-9)
    assert rule.name == max(RULES, key=lambda name: rule.known[name] + rule.added[name])  # type: ignore[index]


def choose_five(labels: Tensor) -> list[Tensor]:
    rows = _first_of_each(labels, num_classes=NUM_CLASSES)
    assert rows.shape == (NUM_CLASSES, 5)
    assert all(set(labels[own].tolist()) == {label} for label, own in enumerate(rows))
    return list(rows)


def test_a_class_of_five_images_among_large_ones_is_found_by_its_mean() -> None:
    vectors, labels = draw([200] * 5 + [5], seed=7, spread=2.5)
    asked, own = draw([100] * NUM_CLASSES, seed=8, spread=2.5)
    recall: dict[str, tuple[float, float]] = {}
    for name in RULES:
        cosines, rows = find_neighbours(asked, vectors, count=10)
        votes = vote(cosines, labels[rows], num_classes=NUM_CLASSES)
        means = ClassMeans.of(vectors, labels, num_classes=NUM_CLASSES)
        right = combine(override(None, name), means.similarities(asked), votes).argmax(dim=1) == own
        recall[name] = right[own == 5].double().mean().item(), right[own < 5].double().mean().item()
    assert recall["means"][0] > recall["neighbours"][0] + 0.2
    assert recall["means"][1] > recall["neighbours"][1]
    held = Held(vectors, labels, torch.arange(len(vectors)), "each in turn")
    assert choose_rule("auto", vectors, labels, held, num_classes=NUM_CLASSES, neighbours=10).name != "neighbours"


def test_a_rule_is_stored_and_may_be_wanted_or_changed_for_one_question(tmp_path: Path) -> None:
    gallery = colour_gallery(tmp_path / "g", choices=Choices(rule="mix"))
    rule = gallery.manifest.rule
    assert rule is not None
    assert (rule.name, rule.num_held_out, rule.held_out) == ("mix", 24, "val of colours")
    query = paint(COLOURS["red"], seed=50)
    by_rule = {name: gallery.classify(query, rule=name).probabilities[0] for name in RULES}
    assert gallery.classify(query).probabilities[0] == gallery.classify(query, rule="auto").probabilities[0]
    assert {label for label, _ in by_rule.values()} == {"red"}
    assert by_rule["mix"][1] == pytest.approx((by_rule["means"][1] + by_rule["neighbours"][1]) / 2)
    assert gallery.evaluate(colours(split="test", first_seed=500), rule="means")["rule"] == "means"
    with pytest.raises(ValueError, match="rule must be one of means, mix, neighbours, auto, not 'best'"):
        gallery.classify(query, rule="best")
    with pytest.raises(ValueError, match="rule must be one of"):
        Choices(rule="best")


def test_galleries_without_a_rule_answer_by_neighbours_and_the_nearest_image(tmp_path: Path) -> None:
    gallery = colour_gallery(tmp_path / "g", "red", "orange")
    path = gallery.folder / MANIFEST_FILE
    content = json.loads(path.read_text())
    for key in ("checksum", "rule"):
        del content[key]
    for key in ("class_cosine", "class_false_reject"):
        del content["threshold"][key]
    path.write_text(json.dumps({**content, "format": 1}))
    former = Gallery(gallery.folder, model=tiny_viewer())
    assert former.manifest.threshold is not None
    for name in ("red", "cyan"):
        answer = former.classify(paint(COLOURS[name], seed=2000))
        same = gallery.classify(paint(COLOURS[name], seed=2000), rule="neighbours")
        assert answer.probabilities == same.probabilities
        assert answer.is_unknown == (answer.cosine < former.manifest.threshold.cosine)


def test_a_gallery_of_unnamed_images_answers_by_neighbours(tmp_path: Path) -> None:
    gallery = colour_gallery(tmp_path / "g", choices=Choices(level="coarse", coarse="coarse"))
    assert gallery.manifest.rule is not None
    assert gallery.manifest.threshold is not None
    assert (gallery.manifest.rule.name, gallery.manifest.threshold.class_cosine) == ("neighbours", None)
    assert gallery.classify(paint(COLOURS["red"], seed=4), rule="means").label == "unnamed"
