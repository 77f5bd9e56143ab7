"""Probes against other ways to the same numbers: by hand, numpy's least squares, scikit-learn where it is installed."""

import math

import numpy as np
import pytest
import torch
from shrunk import images_for, randomize, small_model
from torch import Tensor

import vitrail
from vitrail.data.contract import Level
from vitrail.evaluation.calibration import calibrate
from vitrail.evaluation.discriminant import discriminant_path, fit_discriminant
from vitrail.evaluation.features import Embedder, Embeddings
from vitrail.evaluation.head_probe import HeadTraining, fit_fc, fit_mlp
from vitrail.evaluation.linear_probe import LOGISTIC_PENALTIES, LogisticProblem, fit_logistic, fit_ridge, ridge_path
from vitrail.evaluation.probe import METHODS, best_linear, choose_methods, run_probe
from vitrail.evaluation.probe_data import Labelled, LinearClassifier, Standardization, hold_out, label, measure
from vitrail.evaluation.probed_model import attach_probe
from vitrail.models.contract import Model

NUM_CLASSES, DIM = 4, 8


def clusters(count: int = 120, *, noise: float = 1.0, seed: int = 0, num_classes: int = NUM_CLASSES) -> Labelled:
    """Classes around points of their own, in channels of very different means and deviations."""
    generator = torch.Generator().manual_seed(seed)
    centres = 2.0 * torch.randn(num_classes, DIM, generator=torch.Generator().manual_seed(99))
    targets = torch.arange(count) % num_classes
    vectors = centres[targets] + noise * torch.randn(count, DIM, generator=generator)
    return Labelled(vectors * torch.logspace(-2, 2, DIM) + 5.0, targets, num_classes)


def several_classes(count: int = 160, *, seed: int = 0) -> Labelled:
    """Each class is there where one channel is positive, nearly."""
    vectors = torch.randn(count, DIM, generator=torch.Generator().manual_seed(seed))
    return Labelled(vectors, (vectors[:, :NUM_CLASSES] > 0.0).float(), NUM_CLASSES)


def test_top5_counts_classes_in_question_only() -> None:
    scores = torch.tensor([[3.0, 2.0, 1.0], [3.0, -math.inf, 1.0], [0.0, 1.0, -math.inf]])
    targets = torch.tensor([0, 1, 0])
    assert measure(scores, targets) == pytest.approx({"top1": 100 / 3})  # of five classes one is always right
    scores = torch.cat([scores, torch.full((3, 3), -math.inf)], dim=1)
    assert measure(scores, targets) == pytest.approx({"top1": 100 / 3, "top5": 200 / 3})


def test_images_with_several_classes_are_measured_by_mean_average_precision() -> None:
    scores = torch.tensor([[3.0, 0.0], [2.0, 1.0], [1.0, 2.0]])
    targets = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    # Class 0: precisions 1 and 2/3 at its images; class 1: its image is second.
    assert measure(scores, targets) == pytest.approx({"mean_average_precision": 100 * (5 / 6 + 1 / 2) / 2})


def test_held_out_images_are_a_fifth_of_every_class_and_leave_one_to_fit_with() -> None:
    targets = torch.tensor([0] * 50 + [1] * 10 + [2] * 2 + [3])
    data = Labelled(torch.arange(63.0)[:, None], targets, 5)
    fit, held = hold_out(data)
    assert torch.bincount(held.targets, minlength=5).tolist() == [10, 2, 1, 0, 0]
    assert torch.bincount(fit.targets, minlength=5).tolist() == [40, 8, 1, 1, 0]
    assert sorted([*fit.vectors[:, 0].tolist(), *held.vectors[:, 0].tolist()]) == list(range(63))
    again = hold_out(data)[1]
    assert torch.equal(held.vectors, again.vectors)


def test_one_image_a_class_leaves_nothing_to_choose_by() -> None:
    with pytest.raises(ValueError, match="no class has two training images"):
        hold_out(Labelled(torch.randn(3, 2), torch.arange(3), 3))


def test_standardisation_is_absorbed_by_a_linear_layer_and_constant_channels_count_nothing() -> None:
    vectors = torch.cat([clusters().vectors, torch.full((120, 1), 7.0)], dim=1)
    standardize = Standardization.of(vectors)
    standardized = standardize(vectors)
    assert torch.allclose(standardized.mean(dim=0), torch.zeros(9, dtype=torch.float64), atol=1e-6)
    deviations = standardized.std(dim=0, unbiased=False)
    assert torch.allclose(deviations, torch.tensor([1.0] * 8 + [0.0], dtype=torch.float64), atol=1e-6)
    weight, bias = torch.randn(3, 9, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    expected = standardized @ weight.T + bias
    assert torch.allclose(standardize.absorb(weight, bias)(vectors).double(), expected, atol=1e-3)


def test_ridge_is_the_least_squares_of_numpy_with_rows_for_the_penalty() -> None:
    data = clusters(60)
    inputs = Standardization.of(data.vectors)(data.vectors).numpy()
    targets = data.masks.double().numpy()
    for penalty, found in zip((1.0, 0.01), ridge_path(data, (1.0, 0.01)), strict=True):
        # The bias is free: with centred inputs it is the mean of the targets.
        rows = np.concatenate([inputs, math.sqrt(penalty * len(data)) * np.eye(DIM)])
        goals = np.concatenate([targets - targets.mean(axis=0), np.zeros((DIM, NUM_CLASSES))])
        weight = np.linalg.lstsq(rows, goals, rcond=None)[0]
        expected = inputs @ weight + targets.mean(axis=0)
        assert np.allclose(found(data.vectors).numpy(), expected, atol=1e-4)


def test_ridge_has_an_answer_with_fewer_images_than_channels() -> None:
    data = clusters(6, num_classes=2)
    (found,) = ridge_path(data, [0.1])
    assert measure(found(data.vectors), data.targets)["top1"] == 100.0


def test_logistic_regression_ends_where_its_gradient_is_zero() -> None:
    problem = LogisticProblem(clusters(noise=2.0))
    parameters = problem.solve(0.01, start=problem.start, tolerance=1e-8).requires_grad_()
    (gradient,) = torch.autograd.grad(problem.loss(parameters, 0.01), parameters)
    assert gradient.abs().max() < 1e-6
    far = problem.solve(0.01, start=problem.start + 3.0, tolerance=1e-8)
    assert torch.allclose(problem.loss(far, 0.01), problem.loss(parameters, 0.01), atol=1e-10)


def test_logistic_regression_finds_the_optimum_of_scikit_learn() -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    train, val = clusters(noise=2.0), clusters(noise=2.0, seed=1)
    problem = LogisticProblem(train)
    for penalty in (0.1, 0.003):
        ours = problem.solve(penalty, start=problem.start, tolerance=1e-8)
        theirs = linear_model.LogisticRegression(C=1.0 / (penalty * len(train)), tol=1e-8, max_iter=5000)
        theirs.fit(problem.inputs.numpy(), train.targets.numpy())
        parameters = torch.from_numpy(np.concatenate([theirs.coef_, theirs.intercept_[:, None]], axis=1))
        assert problem.loss(ours, penalty).item() == pytest.approx(problem.loss(parameters, penalty).item(), abs=1e-7)
        accuracy = 100.0 * theirs.score(problem.standardize(val.vectors).numpy(), val.targets.numpy())
        assert measure(problem.classifier(ours)(val.vectors), val.targets)["top1"] == pytest.approx(accuracy, abs=1.0)


def test_the_path_from_strong_to_weak_ends_where_a_cold_start_does() -> None:
    fitted = fit_logistic(clusters(noise=2.0))
    problem = LogisticProblem(clusters(noise=2.0))
    penalty = fitted.setting["penalty"]
    assert penalty in LOGISTIC_PENALTIES
    cold = problem.classifier(problem.solve(penalty, start=problem.start, tolerance=1e-7))
    assert fitted.linear is not None
    scale = (fitted.linear.weight.norm() / cold.weight.norm()).item()  # by which probabilities were calibrated
    assert torch.allclose(fitted.linear.weight, scale * cold.weight, rtol=1e-2, atol=1e-4)


def test_noisy_labels_want_a_stronger_penalty_than_clean_ones() -> None:
    generator = torch.Generator().manual_seed(0)
    clean = clusters(200, noise=0.5)
    noisy = Labelled(
        torch.randn(60, 50, generator=generator), torch.randint(0, 2, (60,), generator=generator), num_classes=2
    )
    signal = noisy.vectors.clone()
    signal[:, 0] += 2.0 * noisy.targets
    assert fit_ridge(clean).held_out == 100.0
    weak, strong = (measure(found(signal), noisy.targets)["top1"] for found in ridge_path(noisy, (1e-6, 10.0)))
    assert strong < weak == 100.0  # a weak penalty learns noise by heart


def test_ridge_as_logits_says_probabilities_that_fit() -> None:
    train, val = clusters(400, noise=2.5), clusters(400, noise=2.5, seed=1)
    fitted = fit_ridge(train)
    probabilities = fitted.scores(val.vectors).softmax(dim=1)
    confidence, answers = probabilities.max(dim=1)
    accuracy = (answers == val.targets).float().mean()
    assert abs(confidence.mean() - accuracy) < 0.1


def test_the_mlp_learns_what_no_linear_layer_can() -> None:
    vectors = torch.randn(400, 2, generator=torch.Generator().manual_seed(0))
    data = Labelled(vectors, (vectors[:, 0] * vectors[:, 1] > 0).long(), 2)
    training = HeadTraining(epochs=60, lr=0.1, batch_size=100, width=16)
    linear, deep = fit_fc(data, training=training), fit_mlp(data, training=training)
    assert measure(linear.scores(vectors), data.targets)["top1"] < 65.0
    assert measure(deep.scores(vectors), data.targets)["top1"] > 90.0
    assert deep.linear is None


def test_heads_depend_on_their_seed_alone() -> None:
    torch.manual_seed(1)
    first = fit_mlp(clusters(), training=HeadTraining(epochs=2)).scores(clusters().vectors)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    second = fit_mlp(clusters(), training=HeadTraining(epochs=2)).scores(clusters().vectors)
    assert torch.equal(first, second)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("method", METHODS)
def test_every_probe_tells_clusters_apart(method: str) -> None:
    probe = run_probe(method, clusters(noise=0.3), clusters(noise=0.3, seed=1))
    assert set(probe.figures) == {"top1"}  # of five classes
    assert probe.figures["top1"] > (90.0 if method != "knn" else 60.0)  # cosines see the channels' scales
    assert probe.seconds > 0.0
    assert probe.setting


@pytest.mark.parametrize("method", METHODS)
def test_every_probe_takes_images_with_several_classes(method: str) -> None:
    probe = run_probe(method, several_classes(), several_classes(seed=1))
    assert set(probe.figures) == {"mean_average_precision"}
    assert probe.figures["mean_average_precision"] > 70.0  # half of the images have a class


def test_labels_follow_the_images_that_were_read_and_unlabelled_ones_are_left_out() -> None:
    embeddings = Embeddings(torch.tensor([[0.0], [2.0], [3.0]]), torch.tensor([0, 2, 3]))
    data = label(embeddings, Level(classes=("a", "b"), labels=np.array([1, 0, -1, 0])))
    assert data.targets.tolist() == [1, 0]
    assert data.vectors.tolist() == [[0.0], [3.0]]


def test_the_best_linear_probe_is_chosen_by_training_images() -> None:
    probes = [run_probe(method, clusters(noise=3.0), clusters(noise=3.0, seed=1)) for method in METHODS]
    chosen = best_linear(probes)
    assert chosen.held_out == max(probe.held_out or 0.0 for probe in probes if probe.linear is not None)
    with pytest.raises(ValueError, match="no linear probe was fitted"):
        best_linear([probe for probe in probes if probe.linear is None])


def logits_of(model: Model, images: Tensor) -> Tensor:
    with torch.no_grad():
        return model.eval()(images)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("deit_tiny", {}),
        ("deit_tiny", {"num_classes": 0}),
        ("deit_tiny", {"classifier": "mlp"}),
        ("deit_tiny_distilled", {}),
        ("cait_xxs24", {}),
        ("resmlp_s12", {}),
        ("patchconvnet_s60", {}),
        ("patchconvnet_s60", {"per_class_tokens": True}),
    ],
)
def test_a_probe_becomes_the_classifier_of_its_trunk(name: str, settings: dict[str, int | bool | str]) -> None:
    model = randomize(small_model(name, **settings)).eval()
    images = images_for(model)
    with torch.no_grad():
        vectors = Embedder(model)(images)
    generator = torch.Generator().manual_seed(0)
    probe = LinearClassifier(torch.randn(3, vectors.shape[1], generator=generator), torch.randn(3, generator=generator))
    probed = attach_probe(model, probe)
    assert probed.config.num_classes == 3
    assert torch.allclose(logits_of(probed, images), probe(vectors), atol=1e-3)
    assert probed.preprocessing == model.preprocessing


def test_a_probe_of_a_timm_model_becomes_its_classifier() -> None:
    model = vitrail.create_model("timm/test_vit", num_classes=0, image_size=64).eval()
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        vectors = Embedder(model)(images)
    probe = LinearClassifier(torch.randn(3, vectors.shape[1]), torch.randn(3))
    assert torch.allclose(logits_of(attach_probe(model, probe), images), probe(vectors), atol=1e-4)


def test_mistakes_are_one_line() -> None:
    train, val = clusters(), clusters(seed=1)
    with pytest.raises(ValueError, match=r"unknown method 'lineal'; did you mean 'linear'\?"):
        choose_methods("lineal")
    with pytest.raises(ValueError, match="there are: all, linear, ridge, knn, fc, mlp"):
        choose_methods("svm of mine")
    with pytest.raises(ValueError, match="all of one class"):
        run_probe("ridge", train.choose(train.targets == 0), val)
    with pytest.raises(ValueError, match="val has no image with a label"):
        run_probe("ridge", train, val.choose(torch.tensor([], dtype=torch.long)))
    with pytest.raises(ValueError, match="different models or classes"):
        run_probe("ridge", train, clusters(num_classes=5))
    with pytest.raises(ValueError, match="embeddings of 1 of 2 images are not finite: try precision=fp32"):
        Labelled(torch.tensor([[1.0], [math.nan]]), torch.tensor([0, 1]), 2)


@pytest.mark.parametrize("method", ["linear", "ridge", "fc"])
def test_the_probabilities_of_a_linear_probe_are_meant(method: str) -> None:
    """No other scale of its logits would do much better on images that it has not seen, however strong its penalty."""
    train, val = clusters(480, noise=6.0), clusters(400, noise=6.0, seed=1)
    fitted = fit_logistic(train, penalties=(10.0,)) if method == "linear" else METHODS[method](train)
    linear = fitted.linear
    assert linear is not None
    logits = linear(val.vectors)
    loss = torch.nn.functional.cross_entropy(logits, val.targets).item()
    assert loss < 0.95 * math.log(NUM_CLASSES)
    assert loss < calibrate(logits, val.targets).loss + 0.03


def test_ridge_says_yes_and_no_where_an_image_may_have_several_classes() -> None:
    train, val = several_classes(), several_classes(seed=1)
    linear = fit_ridge(train).linear
    assert linear is not None
    assert torch.nn.functional.binary_cross_entropy_with_logits(linear(val.vectors), val.targets) < 0.4


def test_discriminants_by_hand() -> None:
    """Two classes in the plane, whose means and covariance are plain to see."""
    targets = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    vectors = torch.tensor([[-3.0, 1], [-1, -1], [-2, 2], [-2, -2], [3, 1], [1, -1], [2, 2], [2, -2]])
    data = Labelled(vectors, targets, 3)
    (found,) = discriminant_path(data, [0.25])
    scale = 1.0 / vectors.std(dim=0, correction=0)
    inputs = vectors * scale
    means = torch.tensor([[-2.0, 0.0], [2.0, 0.0]]) * scale
    within = inputs - means[targets]
    covariance = 0.75 * within.T @ within / 8 + 0.25 * torch.eye(2)
    weight = means @ torch.linalg.inv(covariance)
    expected = inputs @ weight.T - 0.5 * (weight * means).sum(dim=1)
    assert torch.allclose(found(vectors)[:, :2], expected, atol=1e-4)
    assert torch.allclose(found(vectors)[:, 2], -0.5 * (weight * means).sum(dim=1).max().expand(8), atol=1e-4)


def test_a_discriminant_of_two_images_a_class_is_sure_of_what_it_should_be() -> None:
    train, val = clusters(2 * NUM_CLASSES, noise=0.5), clusters(200, noise=0.5, seed=1)
    found = fit_discriminant(train)
    assert found.setting == {"shrinkage": 1.0}
    assert measure(found.scores(val.vectors), val.targets)["top1"] > 90.0
    assert torch.nn.functional.cross_entropy(found.scores(val.vectors), val.targets) < 0.5
