"""Grafit: every loss by hand, its gradient, the memory in chunks and in parts, the target network, and resuming."""

import copy
import math
from typing import Any

import pytest
import torch
from shrunk import small_model
from together import run_together
from torch import Tensor
from torch.nn import functional

from vitrail.data.contract import ImageBatch
from vitrail.heads.embed import EmbeddingModel, EmbeddingSettings
from vitrail.tasks.classify.supervised import Supervised
from vitrail.tasks.contract import Objective
from vitrail.tasks.embed.grafit import Grafit, instance_loss, triplet_loss
from vitrail.tasks.embed.memory import Memory, Processes, draw_vectors
from vitrail.tasks.embed.settings import EmbeddingTaskSettings
from vitrail.tasks.embed.target_network import TargetNetwork

LABELS = torch.tensor([0, 1, 0, 1, 1, 0, 2, 0, 1, 0, 1])  # class 2 has a single sample


def angle(degrees: float) -> list[float]:
    return [math.cos(math.radians(degrees)), math.sin(math.radians(degrees))]


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def memory_of(vectors: Tensor, labels: Tensor, **settings: Any) -> Memory:
    memory = Memory(labels, dim=vectors.shape[1], **settings)
    memory.vectors = functional.normalize(vectors[memory.own], dim=1)
    return memory


def plain_knn_loss(memory: Tensor, embeddings: Tensor, labels: Tensor, indices: Tensor, sigma: float) -> Tensor:
    """Eq. 2.2 and 2.3 as they are printed."""
    losses = []
    for vector, label, index in zip(embeddings, labels.tolist(), indices.tolist(), strict=True):
        others = [j for j in range(len(memory)) if j != index]
        weights = {j: (functional.cosine_similarity(vector, memory[j], dim=0) / sigma).exp() for j in others}
        same = [weights[j] for j in others if LABELS[j] == label]
        total = torch.stack(list(weights.values())).sum()
        losses.append(-(torch.stack(same).sum() / total).log() if same else 0.0 * vector.sum())
    return torch.stack(losses)


# The losses


def test_instance_loss_is_equation_2_1() -> None:
    # The predictions of one image's three views point to 0, 90 and 60 degrees, the targets to 0, 180 and 90.
    predictions = torch.tensor([[angle(0), angle(90), angle(60)]]) * torch.tensor([1.0, 2.0, 5.0]).view(1, 3, 1)
    targets = torch.tensor([[angle(0), angle(180), angle(90)]]) * 3.0
    # Pairs (1,2): -1, (1,3): 0, (2,1): 0, (2,3): 1, (3,1): 1/2, (3,2): -1/2
    assert instance_loss(predictions, targets).item() == pytest.approx(-(-1 + 0 + 0 + 1 + 0.5 - 0.5) / 6, abs=1e-6)
    # Only views 1 and 3: (1,3): 0 and (3,1): 1/2
    both = torch.tensor([0, 2])
    assert instance_loss(predictions[:, both], targets[:, both]).item() == pytest.approx(-0.25)


def test_instance_loss_is_the_mean_over_images_and_minus_one_at_best() -> None:
    views = torch.tensor([[angle(20), angle(20)], [angle(0), angle(90)]])
    assert instance_loss(views, views).item() == pytest.approx(-0.5)


def test_gradient_of_the_instance_loss() -> None:
    targets = random(2, 3, 4, seed=1)
    predictions = random(2, 3, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda rows: instance_loss(rows, targets), predictions)


def test_knn_loss_is_equation_2_3() -> None:
    # The sample itself is row 0; rows 1 and 2 have its label, at cosines 1/2 and 0; row 3 has not, at 1/2.
    memory = memory_of(torch.tensor([angle(0), angle(60), angle(90), angle(-60)]), torch.tensor([0, 0, 0, 1]))
    loss = memory.loss(torch.tensor([[7.0, 0.0]]), labels=torch.tensor([0]), indices=torch.tensor([0]), temperature=0.5)
    assert loss.item() == pytest.approx(-math.log((math.e + 1) / (math.e + 1 + math.e)), rel=1e-5)


def test_knn_loss_and_gradient_agree_with_the_printed_formula() -> None:
    vectors, indices = random(11, 4), torch.tensor([3, 0, 10, 6])
    embeddings = random(4, 4, seed=1).requires_grad_()
    memory = memory_of(vectors, LABELS)
    arguments: dict[str, Any] = {"labels": LABELS[indices], "indices": indices, "temperature": 0.3}
    found = memory.loss(embeddings, **arguments)
    expected = plain_knn_loss(vectors, embeddings, LABELS[indices], indices, 0.3)
    torch.testing.assert_close(found, expected)
    weights = random(4, seed=2)
    (of_found,) = torch.autograd.grad((found * weights).sum(), embeddings)
    (of_expected,) = torch.autograd.grad((expected * weights).sum(), embeddings)
    torch.testing.assert_close(of_found, of_expected)
    assert torch.autograd.gradcheck(lambda rows: memory.loss(rows, **arguments), embeddings)


def test_a_sample_alone_in_its_class_costs_nothing() -> None:
    memory = memory_of(random(11, 4), LABELS)
    embeddings = random(1, 4, seed=1).requires_grad_()
    loss = memory.loss(embeddings, labels=torch.tensor([2]), indices=torch.tensor([6]))
    loss.sum().backward()
    assert loss.item() == 0.0
    assert embeddings.grad is not None
    assert not embeddings.grad.any()


def test_with_one_class_the_knn_loss_is_nothing() -> None:
    memory = memory_of(random(6, 4), torch.zeros(6, dtype=torch.int64))
    embeddings = random(3, 4, seed=1).requires_grad_()
    loss = memory.loss(embeddings, labels=torch.zeros(3, dtype=torch.int64), indices=torch.arange(3))
    loss.sum().backward()
    torch.testing.assert_close(loss, torch.zeros_like(loss))
    torch.testing.assert_close(embeddings.grad, torch.zeros_like(embeddings))


@pytest.mark.parametrize("chunk_size", [1, 4, 5])
def test_chunks_of_the_memory_change_nothing(chunk_size: int) -> None:
    indices = torch.tensor([3, 0, 10, 6])
    results = []
    for size in (100, chunk_size):
        memory = memory_of(random(11, 4), LABELS, chunk_size=size)
        embeddings = random(4, 4, seed=1).requires_grad_()
        loss = memory.loss(embeddings, labels=LABELS[indices], indices=indices)
        (gradient,) = torch.autograd.grad(loss.sum(), embeddings)
        results.append((loss, gradient))
    torch.testing.assert_close(results[0], results[1])


def test_nothing_as_wide_as_the_memory_is_kept_for_the_backward_pass() -> None:
    memory = memory_of(random(5000, 4), torch.arange(5000) % 7, chunk_size=512)
    kept: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    embeddings = random(3, 4, seed=1).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        memory.loss(embeddings, labels=torch.tensor([0, 1, 2]), indices=torch.arange(3))
    assert max(kept) < 5000


def test_small_temperatures_neither_overflow_nor_vanish() -> None:
    memory = memory_of(torch.tensor([angle(0), angle(150), angle(170)]), torch.tensor([0, 0, 1]))
    loss = memory.loss(
        torch.tensor([[1.0, 0.0]]), labels=torch.tensor([0]), indices=torch.tensor([0]), temperature=0.001
    )
    expected = math.log1p(math.exp((math.cos(math.radians(170)) - math.cos(math.radians(150))) / 0.001))
    assert loss.item() == pytest.approx(expected, abs=1e-4)


def test_losses_are_not_rounded_by_autocast() -> None:
    indices = torch.arange(4)
    memory = memory_of(random(11, 16, dtype=torch.float32), LABELS)
    embeddings = random(4, 16, seed=1, dtype=torch.float32)
    views = random(3, 2, 16, seed=2, dtype=torch.float32)
    exact = memory.loss(embeddings, labels=LABELS[indices], indices=indices), triplet_loss(views)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = memory.loss(embeddings, labels=LABELS[indices], indices=indices), triplet_loss(views)
    assert torch.equal(exact[0], found[0])
    assert torch.equal(exact[1], found[1])


def test_triplet_loss_by_hand() -> None:
    # Two images of two views. Squared distances are 2 - 2 cos: at 60 degrees 1, at 90 2, at 120 3, at 180 4.
    views = torch.tensor([[angle(0), angle(60)], [angle(90), angle(180)]])
    # margin 0.5; anchor, positive, negative:
    # 0, 60 (1) against 90 (2) and 180 (4): nothing
    # 60, 0 (1) against 90 (2 - sqrt 3) and 180 (3): 1.5 - 2 + sqrt 3
    # 90, 180 (2) against 0 (2): 0.5, and 60 (2 - sqrt 3): 0.5 + sqrt 3
    # 180, 90 (2) against 0 (4) and 60 (3): nothing
    root = math.sqrt(3)
    expected = ((root - 0.5) + 0.5 + (0.5 + root)) / 3
    assert triplet_loss(views, margin=0.5).item() == pytest.approx(expected, rel=1e-5)


def test_triplet_loss_with_nothing_to_mend_is_zero_with_a_gradient_of_zero() -> None:
    views = torch.tensor([[angle(0), angle(0)], [angle(180), angle(180)]], requires_grad=True)
    loss = triplet_loss(views)
    loss.backward()
    assert loss.item() == 0.0
    assert views.grad is not None
    assert not views.grad.any()


def test_gradient_of_the_triplet_loss() -> None:
    views = random(3, 3, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda rows: triplet_loss(rows, margin=0.3), views)


# The memory


def test_memory_moves_half_way_to_the_new_embedding() -> None:
    memory = memory_of(torch.tensor([angle(0), angle(90), angle(45)]), torch.tensor([0, 0, 0]))
    memory.update(torch.tensor([[0.0, 9.0], [4.0, 4.0]]), torch.tensor([0, 1]))
    # The mean of 0 and 90 degrees is at 45, that of 90 and 45 at 67.5, at length 1; row 2 was not seen.
    torch.testing.assert_close(memory.vectors, torch.tensor([angle(45), angle(67.5), angle(45)]))


def test_momentum_of_the_memory_is_the_weight_of_the_old() -> None:
    memory = memory_of(torch.tensor([angle(0)]), torch.tensor([0]), momentum=0.8)
    memory.update(torch.tensor([[0.0, 1.0]]), torch.tensor([0]))
    torch.testing.assert_close(memory.vectors, functional.normalize(torch.tensor([[0.8, 0.2]])))


def test_of_a_sample_seen_twice_the_memory_takes_the_mean() -> None:
    memory = memory_of(torch.tensor([angle(0)]), torch.tensor([0]))
    memory.update(torch.tensor([[1.0, 0.0], [0.0, 5.0]]), torch.tensor([0, 0]))
    torch.testing.assert_close(memory.vectors, functional.normalize(torch.tensor([[0.75, 0.25]])))


def test_memory_is_recomputed_with_the_final_weights() -> None:
    memory = Memory(LABELS, dim=4)
    embeddings = random(11, 4, dtype=torch.float32)
    order = torch.randperm(11, generator=torch.Generator().manual_seed(0))
    for part in order.split(4):
        memory.fill(embeddings[part], part)
    torch.testing.assert_close(memory.vectors, functional.normalize(embeddings, dim=1))


def test_initial_vectors_depend_on_seed_and_row_alone() -> None:
    drawn = draw_vectors(slice(0, 9000), dim=3, seed=1)
    assert torch.equal(drawn[8000:8500], draw_vectors(slice(8000, 8500), dim=3, seed=1))
    assert not torch.equal(drawn[:10], draw_vectors(slice(0, 10), dim=3, seed=2))
    torch.testing.assert_close(drawn.norm(dim=1), torch.ones(9000))
    assert abs(drawn.mean().item()) < 0.02


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_a_memory_in_parts_is_the_whole_memory(num_ranks: int) -> None:
    vectors, embeddings = random(11, 4), random(7, 4, seed=1)
    indices = torch.tensor([3, 0, 10, 6, 5, 5, 2])
    weights = random(7, seed=2)
    bounds = [0, 3, 5, 7] if num_ranks == 3 else [0, 4, 7]

    def train(processes: Processes, rows: slice) -> tuple[Tensor, Tensor, Tensor]:
        memory = memory_of(vectors, LABELS, processes=processes, chunk_size=3)
        own = embeddings[rows].clone().requires_grad_()
        loss = memory.loss(own, labels=LABELS[indices[rows]], indices=indices[rows])
        (loss * weights[rows]).sum().backward()
        memory.update(own.detach(), indices[rows])
        assert own.grad is not None
        return loss.detach(), own.grad, memory.state_dict()["vectors"]

    whole = train(Processes(), slice(0, 7))
    parts = run_together(
        num_ranks, lambda processes: train(processes, slice(bounds[processes.rank], bounds[processes.rank + 1]))
    )
    for number in (0, 1):
        torch.testing.assert_close(torch.cat([part[number] for part in parts]), whole[number])
    for part in parts:
        torch.testing.assert_close(part[2], whole[2])


def test_a_memory_of_one_process_goes_on_in_two() -> None:
    state = Memory(LABELS, dim=4, seed=3).state_dict()

    def load(processes: Processes) -> Tensor:
        memory = Memory(LABELS, dim=4, seed=5, processes=processes)
        memory.load_state_dict(state)
        assert len(memory.vectors) < len(LABELS)
        return memory.state_dict()["vectors"]

    for vectors in run_together(2, load):
        assert torch.equal(vectors, state["vectors"])


# The target network


def tiny_model(**settings: Any) -> EmbeddingModel:
    torch.manual_seed(0)
    trunk = small_model("deit_tiny", num_classes=0, dim=16, depth=1, image_size=32, drop_path=0.0)
    return EmbeddingModel(trunk, EmbeddingSettings(**{"dim": 4, "hidden_dim": 6, **settings})).train()


def move(model: EmbeddingModel, by: float) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(by)


def test_target_network_is_the_moving_average() -> None:
    model = tiny_model()
    target = TargetNetwork(model, decay=0.75)
    start = model.get_parameter("projector.out.weight").clone()
    move(model, 1.0)
    target.update(model)
    torch.testing.assert_close(target.network.get_parameter("projector.out.weight"), start + 0.25)
    target.update(model)
    torch.testing.assert_close(target.network.get_parameter("projector.out.weight"), start + 0.25 + 0.75 * 0.25)
    for name, value in target.network.trunk.named_parameters():  # 7/16 of the way from where they were
        torch.testing.assert_close(value, model.trunk.get_parameter(name) - 1.0 + 7 / 16)


def test_decay_follows_byols_schedule() -> None:
    model = tiny_model()
    target = TargetNetwork(model, decay=0.9, total_steps=4)
    decays = []
    for _ in range(5):
        decays.append(target.current_decay)
        target.update(model)
    half = math.sqrt(0.5)
    expected = [0.9, 1 - 0.1 * (half + 1) / 2, 0.95, 1 - 0.1 * (1 - half) / 2, 1.0]
    assert decays == pytest.approx(expected)
    assert target.current_decay == 1.0


def test_target_network_has_no_gradient_no_predictor_and_drops_nothing() -> None:
    torch.manual_seed(0)
    trunk = small_model("deit_tiny", num_classes=0, dim=16, depth=2, image_size=32, drop_path=0.9)
    target = TargetNetwork(EmbeddingModel(trunk, EmbeddingSettings(dim=4, hidden_dim=6)).train())
    images = random(4, 3, 32, 32, dtype=torch.float32)
    first = target(images)
    assert not first.requires_grad
    assert torch.equal(first, target(images))
    assert target.network.predictor is None
    # By the batch's own statistics: an image's projection depends on the others of its batch.
    assert not torch.allclose(first[:2], target(images[:2]), atol=1e-4)


# The sum of them


def batch_of(num_views: int | None, seed: int = 0, num: int = 4) -> ImageBatch:
    shape = (num, 3, 32, 32) if num_views is None else (num, num_views, 3, 32, 32)
    indices = (torch.arange(num) * 3 + seed) % len(LABELS)
    return ImageBatch(random(*shape, seed=seed, dtype=torch.float32), LABELS[indices], indices)


def make_grafit(model: EmbeddingModel, **weights: float) -> Grafit:
    chosen = EmbeddingTaskSettings.model_validate({"knn": 0.0, "instance": 0.0, **weights})
    return Grafit(
        chosen,
        memory=Memory(LABELS, dim=model.dim) if chosen.knn else None,
        target=TargetNetwork(model, decay=0.5) if chosen.instance else None,
    )


def test_total_is_the_weighted_sum_of_the_losses_of_the_outputs() -> None:
    model = tiny_model(num_classes=3)
    objective = make_grafit(model, knn=1.0, instance=0.5, cross_entropy=2.0, triplet=3.0)
    batch = batch_of(3)
    output = copy.deepcopy(model)(batch.images.flatten(0, 1))
    assert objective.memory is not None
    assert objective.target is not None
    targets = copy.deepcopy(objective.target)(batch.images.flatten(0, 1))
    expected = {
        "knn": objective.memory.loss(
            output.projection[[0, 3, 6, 9]], labels=batch.targets, indices=batch.indices
        ).mean(),
        "instance": instance_loss(output.prediction.view(4, 3, 4), targets.view(4, 3, 4)),
        "cross_entropy": Supervised().cost(output.logits[[0, 3, 6, 9]], batch.targets),
        "triplet": triplet_loss(output.projection.view(4, 3, 4)),
    }
    losses = objective(model, batch)
    assert list(losses.parts) == list(expected)
    for name, value in expected.items():
        torch.testing.assert_close(losses.parts[name], value.detach())
    total = expected["knn"] + 0.5 * expected["instance"] + 2 * expected["cross_entropy"] + 3 * expected["triplet"]
    torch.testing.assert_close(losses.total, total)


def test_every_parameter_of_a_methods_model_learns() -> None:
    methods: list[tuple[dict[str, Any], dict[str, float], int | None]] = [
        ({"projector": "none", "has_predictor": False, "num_classes": 3}, {"cross_entropy": 1.0}, None),  # Baseline
        ({"projector": "linear", "has_predictor": False}, {"knn": 1.0}, None),  # SNCA
        ({"projector": "mlp", "has_predictor": False}, {"knn": 1.0}, None),  # SNCA+
        ({"projector": "linear"}, {"knn": 1.0, "instance": 1.0}, 2),  # Grafit FC
        ({"projector": "mlp"}, {"knn": 1.0, "instance": 1.0}, 2),  # Grafit
        ({"projector": "mlp"}, {"instance": 1.0}, 2),  # unsupervised
        ({"retrieve": "trunk", "num_classes": 3}, {"cross_entropy": 1.0, "instance": 1.0}, 2),
    ]
    for settings, weights, num_views in methods:
        model = tiny_model(**settings)
        make_grafit(model, **weights)(model, batch_of(num_views)).total.backward()
        assert [name for name, value in model.named_parameters() if value.grad is None] == []


def test_the_memory_learns_the_first_views_of_all_micro_batches_after_the_step_only() -> None:
    model = tiny_model(has_predictor=False)
    objective = make_grafit(model, knn=1.0)
    assert objective.memory is not None
    before = objective.memory.vectors.clone()
    parts = [batch_of(2, seed=0, num=2), batch_of(2, seed=1, num=2)]
    outputs = [copy.deepcopy(model)(part.images.flatten(0, 1)).projection.detach()[::2] for part in parts]
    for part in parts:
        objective.note(objective(model, part).seen)
    assert torch.equal(objective.memory.vectors, before)
    objective.after_step(model)
    expected = before.clone()
    for output, part in zip(outputs, parts, strict=True):
        moved = (expected[part.indices] + functional.normalize(output, dim=1)) / 2
        expected[part.indices] = functional.normalize(moved, dim=1)
    torch.testing.assert_close(objective.memory.vectors, expected)


def test_a_skipped_step_leaves_nothing() -> None:
    model = tiny_model()
    objective = make_grafit(model, knn=1.0, instance=1.0)
    before = copy.deepcopy(objective.state_dict())
    objective.note(objective(model, batch_of(2)).seen)
    objective.skip_step()
    after = objective.state_dict()
    assert torch.equal(after["memory"]["vectors"], before["memory"]["vectors"])
    assert after["target"]["num_updates"] == 0


def train_steps(model: EmbeddingModel, objective: Grafit, steps: range) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # no momentum: its state is no concern here
    losses = []
    for step in steps:
        loss, _, seen = objective(model, batch_of(2, seed=step))
        objective.note(seen)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        objective.after_step(model)
        losses.append(loss.item())
    return losses


def test_a_run_goes_on_from_its_state_exactly(tmp_path: Any) -> None:
    model = tiny_model()
    objective = make_grafit(model, knn=1.0, instance=1.0)
    train_steps(model, objective, range(2))
    torch.save({"model": model.state_dict(), "objective": objective.state_dict()}, tmp_path / "state.pt")
    expected = train_steps(model, objective, range(2, 5))

    resumed = tiny_model()
    move(resumed, 0.5)
    again = make_grafit(resumed, knn=1.0, instance=1.0)
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    resumed.load_state_dict(state["model"])
    again.load_state_dict(state["objective"])
    assert train_steps(resumed, again, range(2, 5)) == expected
    assert torch.equal(again.state_dict()["memory"]["vectors"], objective.state_dict()["memory"]["vectors"])


def test_grafit_lowers_both_of_its_losses() -> None:
    model = tiny_model()
    objective = make_grafit(model, knn=1.0, instance=1.0)
    first = objective(model, batch_of(2)).parts
    objective.skip_step()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(20):
        optimizer.zero_grad()
        objective(model, batch_of(2)).total.backward()
        optimizer.step()
        objective.after_step(model)
    last = objective(model, batch_of(2)).parts
    assert last["knn"] < first["knn"]
    assert last["instance"] < first["instance"]


def test_grafit_is_an_objective_with_state() -> None:
    objective: Objective[ImageBatch] = make_grafit(tiny_model(), knn=1.0)
    assert objective.state_dict().keys() == {"memory", "target"}
    assert Supervised().state_dict() == {}


def test_errors_say_what_is_wrong() -> None:
    model = tiny_model(has_predictor=False)
    with pytest.raises(ValueError, match="the batch needs two of an image or more"):
        make_grafit(model, instance=1.0)(model, batch_of(None))
    with pytest.raises(ValueError, match="needs a predictor"):
        make_grafit(model, instance=1.0)(model, batch_of(2))
    with pytest.raises(ValueError, match="needs a classifier"):
        make_grafit(model, cross_entropy=1.0)(model, batch_of(None))
    with pytest.raises(ValueError, match="EmbeddingModel in training mode"):
        make_grafit(model, knn=1.0)(model.eval(), batch_of(None))
    with pytest.raises(ValueError, match="the neighbour loss needs a memory of embeddings"):
        Grafit(EmbeddingTaskSettings(instance=0.0))
    with pytest.raises(ValueError, match="nothing to learn"):
        Grafit(EmbeddingTaskSettings(knn=0.0, instance=0.0))
    memory = Memory(LABELS, dim=4)
    with pytest.raises(ValueError, match="leave mixup, cutmix and bce out"):
        memory.loss(torch.ones(1, 4), labels=torch.ones(1, 3), indices=torch.tensor([0]))
    with pytest.raises(ValueError, match="memory is of 11 samples"):
        memory.update(torch.ones(1, 4), torch.tensor([11]))
    with pytest.raises(ValueError, match="embeddings of 4 numbers"):
        memory.update(torch.ones(1, 5), torch.tensor([0]))
    with pytest.raises(ValueError, match="are the data or the projector others"):
        memory.load_state_dict({"vectors": torch.ones(10, 4)})
    with pytest.raises(ValueError, match="need an all_reduce"):
        Processes(rank=0, num_ranks=2)
    with pytest.raises(ValueError, match="other losses: the memory"):
        make_grafit(tiny_model(), instance=1.0).load_state_dict({"memory": {}, "target": None})
