"""What a new classifier begins with: a probe on the features of the weights that the run starts from."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from vitrail.data.augment import EvaluationView
from vitrail.data.contract import Level
from vitrail.data.draws import Draws
from vitrail.data.loader import ImageLoader
from vitrail.data.quarantine import NotingQuarantine
from vitrail.data.sampler import Sampler
from vitrail.data.stored import Subset
from vitrail.evaluation.discriminant import fit_discriminant
from vitrail.evaluation.linear_probe import fit_logistic
from vitrail.evaluation.predict import predict
from vitrail.evaluation.probe_data import Labelled
from vitrail.layers.classifier import MlpClassifier
from vitrail.models.contract import Model
from vitrail.tasks.images.image_task import ImageTask, count_workers

MOST_PER_CLASS = 100
LARGEST_SHARE = (
    1 / 3
)  # of the images of a training that are embedded before it, at a ninth of its cost, where nobody asked
_BATCH = 64


class NoProbeError(Exception):
    """Why a head can't start from a probe, in a few words."""


def start_head(task: ImageTask, *, is_sigmoid: bool) -> None:
    """Give the task's model, whose head is new, the classifier that the recipe asks for; all processes the same.

    `is_sigmoid` where the loss asks about each class by itself, so that logits are those of yes and no.
    """
    kind, say = task.recipe.model.head_start, task.site.reporter.say
    if kind == "random":
        return
    try:
        layers = probed_layers(task.model)
        if kind == "zero":
            for layer, _ in layers:
                nn.init.zeros_(layer.weight)
                nn.init.zeros_(layer.bias)
            return
        places = choose_images(task.data.labels, limit=count_affordable(task), seed=task.site.seed)
        vectors, targets = _embed(task, places)
        figures = [_start_layer(task, layer, vectors[:, token], targets, is_sigmoid) for layer, token in layers]
    except NoProbeError as reason:
        say(f"the head starts from random weights: {reason}")
        return
    what = "mean average precision" if task.data.labels.is_multiple else "right"
    say(
        f"the head starts from a probe of {len(targets):,} training images ({np.mean(figures):.1f} % {what} on "
        "a fifth of them held out); head_start=random does without"
    )


def count_probed(task: ImageTask) -> int:
    """How many images a probe would look at, for the plan; whether the head is new shows with the weights."""
    if task.recipe.model.init is None or task.recipe.model.head_start in ("random", "zero"):
        return 0
    try:
        return len(choose_images(task.data.labels, limit=count_affordable(task), seed=task.site.seed))
    except NoProbeError:
        return 0


def count_affordable(task: ImageTask) -> int | None:
    """How many images may be embedded; None where the recipe asks for the probe whatever it costs."""
    recipe = task.recipe
    if recipe.model.head_start == "probe":
        return None
    num_seen = recipe.steps * recipe.batch_size if recipe.steps else recipe.epochs * task.data.num_train
    return int(LARGEST_SHARE * num_seen)


def probed_layers(model: Model) -> list[tuple[nn.Linear, int]]:
    """The linear layers that make logits, each with the summary token it reads; those that can't be are refused."""
    if isinstance(model.head, MlpClassifier):
        return [(model.head.linear, 0)]
    try:
        layers = model.classifier_layers()
    except ValueError:
        raise NoProbeError("its classifier is not one linear layer") from None
    known = {id(parameter) for layer in layers for parameter in layer.parameters()}
    new = [value for name, value in model.named_parameters() if name.startswith(model.head_prefixes())]
    if not layers or any(id(value) not in known for value in new):
        raise NoProbeError("more than a linear layer is new in it")
    return [(layer, -place) for place, layer in enumerate(layers)]


def choose_images(labels: Level, *, limit: int | None, seed: int) -> np.ndarray:
    """Places of training images to probe with: as many of every class, MOST_PER_CLASS or what `limit` in all allows."""
    order = Draws(seed, "head start").array().permutation(len(labels.labels))
    if labels.is_multiple:
        most = MOST_PER_CLASS * len(labels.classes)
        return np.sort(order[: most if limit is None else min(most, limit)])
    of_class = labels.labels[order]
    by_class = np.argsort(of_class, kind="stable")
    counts = np.bincount(of_class[of_class >= 0], minlength=len(labels.classes))
    rank = np.empty(len(order), dtype=np.int64)  # of an image among those of its class
    starts = np.concatenate([[np.sum(of_class < 0)], counts]).cumsum()[:-1]
    rank[by_class] = np.arange(len(order)) - starts[of_class[by_class]]
    each = MOST_PER_CLASS
    if limit is not None:
        each = next((num for num in range(each, 0, -1) if np.minimum(counts, num).sum() <= limit), 0)
    if np.minimum(counts, each).max(initial=0) < 2:
        if counts.max(initial=0) < 2:
            raise NoProbeError("no class has two images, and a probe holds out one")
        raise NoProbeError(
            "a probe would take too large a share of so short a training; head_start=probe takes it anyway"
        )
    return np.sort(order[(rank < each) & (of_class >= 0)])


def _embed(task: ImageTask, places: np.ndarray) -> tuple[Tensor, Tensor]:
    """Summary tokens [images, tokens, dim] of training images as evaluation sees them, with their targets."""
    site, recipe = task.site, task.recipe
    if site.is_sharded:
        raise NoProbeError("no process has the whole model (sharding=full)")
    own = task.model.preprocessing
    loader = ImageLoader(
        Subset(task.data.train, places),
        transform=EvaluationView(
            image_size=recipe.image_size, crop_ratio=own.crop_ratio, interpolation=own.interpolation
        ),
        sampler=Sampler(
            len(places), batch_size=_BATCH * site.world.num_ranks, is_training=False, ranks=site.world.ranks
        ),
        level=task.data.level,
        num_workers=count_workers(recipe, site.device),
        quarantine=NotingQuarantine(lambda problem: None),  # the training tells of it
        pin_memory=site.device.type == "cuda",
    )
    rows = []
    with site.reporter.counting("probe for the head", total=len(places)) as advance:
        found = predict(
            _Summarizer(task.model), loader.epoch(0), normalize=task.normalize, device=site.device, dtype=site.dtype
        )
        for tokens, batch in found:
            rows.append((batch.indices, tokens.cpu(), batch.targets))
            advance(len(tokens) * site.world.num_ranks)
    rows = [row for part in site.world.gather(rows) for row in part]
    if not rows:
        raise NoProbeError("none of its images could be read")
    indices, tokens, targets = (torch.cat(column) for column in zip(*rows, strict=True))
    order = indices.argsort()
    return tokens[order], targets[order]


class _Summarizer(nn.Module):
    """A model without its head."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.training = model.training  # else the pass would leave the model in eval mode

    def forward(self, images: Tensor) -> Tensor:  # [batch, channels, height, width] -> [batch, tokens, dim]
        return self.model.summarize(images)


def _start_layer(task: ImageTask, layer: nn.Linear, vectors: Tensor, targets: Tensor, is_sigmoid: bool) -> float:
    """Write a probe of the vectors into a layer, and say how good it is on what it held out."""
    head = task.model.head
    if isinstance(head, MlpClassifier):
        vectors = _hidden_features(head, vectors)
    if targets.ndim == 1 and is_sigmoid:
        targets = functional.one_hot(targets, task.data.num_classes)
    train = Labelled(vectors, targets.float() if targets.ndim == 2 else targets, task.data.num_classes)
    found: tuple[Tensor, Tensor, float | None] | None = None
    if task.site.world.is_main:
        fitted = fit_logistic(train) if train.is_multiple else fit_discriminant(train)
        assert fitted.linear is not None, "both are linear"
        found = fitted.linear.weight, fitted.linear.bias, fitted.held_out
    weight, bias, figure = task.site.world.share(found)
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
    return figure


@torch.no_grad()
def _hidden_features(head: MlpClassifier, vectors: Tensor) -> Tensor:
    """What the last layer of an MLP reads; its batch normalisation gets the statistics of these images."""
    device = head.hidden.weight.device
    hidden = head.hidden(vectors.to(device))
    norm = head.norm
    mean, variance = hidden.mean(dim=0), hidden.var(dim=0)
    norm.register_buffer("running_mean", mean)
    norm.register_buffer("running_var", variance)
    return functional.relu((hidden - mean) / (variance + norm.eps).sqrt() * norm.weight + norm.bias).cpu()
