"""Embeddings: a trunk with a projector, and a predictor and a classifier for training (Grafit, thesis 2.3.1)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional

from vitrail.heads.around_trunk import AroundTrunk, AroundTrunkConfig
from vitrail.layers.classifier import Classifier
from vitrail.models.config import CheckedSettings
from vitrail.models.contract import TRUNK, Features, Model, initialize

PROJECTORS = ("none", "linear", "mlp")
RETRIEVED = ("projection", "trunk")


@dataclass(frozen=True, kw_only=True)
class EmbeddingSettings(CheckedSettings):
    """Settings of what stands on the trunk.

    The sizes are those of the papers: the thesis projects to 256, and its 9.4 M parameters of the MLP for a trunk of
    2048 are those of BYOL's hidden layer of 4096. Its 0.3 M of the linear projector are those of a dim of 128.
    """

    projector: str = "mlp"  # P, one of PROJECTORS; "linear" is Grafit FC's
    dim: int = 256  # embedding dimension, behind the projector
    hidden_dim: int = 4096  # width inside the MLPs
    has_predictor: bool = True  # q, which the instance loss needs
    num_classes: int = 0  # logits of a linear classifier on the trunk's features, for the cross-entropy; 0: none
    retrieve: str = "projection"  # features that are the embedding of an image, one of RETRIEVED

    def __post_init__(self) -> None:
        self.check_choice("projector", PROJECTORS)
        self.check_choice("retrieve", RETRIEVED)
        self.check_counts("dim", "hidden_dim")
        self.check_counts("num_classes", least=0)
        self.check_flags("has_predictor")


@dataclass(frozen=True, kw_only=True)
class EmbeddingConfig(AroundTrunkConfig):
    """All that an embedding model is built from."""

    head: EmbeddingSettings

    @property
    def num_classes(self) -> int:
        """Logits of an image; 0 where the model answers with its embedding."""
        return self.head.num_classes


class Embedded(NamedTuple):
    """What an embedding model says about images when it is trained."""

    trunk: Tensor  # [batch, dim of the trunk]: f(x)
    projection: Tensor  # [batch, dim]: g(x) = P(f(x)), not normalised; f(x) where there is no projector
    prediction: Tensor | None  # [batch, dim]: q(g(x))
    logits: Tensor | None  # [batch, classes]


class Mlp(nn.Module):
    """Two linear layers with batch normalisation and ReLU between them: the papers' projector and predictor."""

    def __init__(self, in_dim: int, *, hidden_dim: int, out_dim: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(in_dim, hidden_dim, bias=False)  # the normalisation has one
        self.norm = nn.BatchNorm1d(hidden_dim)
        self.out = nn.Linear(hidden_dim, out_dim)

    def forward(self, vectors: Tensor) -> Tensor:  # [batch, in_dim] -> [batch, out_dim]
        return self.out(functional.relu(self.norm(self.hidden(vectors))))


class EmbeddingModel(AroundTrunk):
    """A trunk f, its projector P, and for training a predictor q and a classifier.

    In training mode it answers with all of them, as `Embedded`. In evaluation mode its answer is that of any model: the
    logits, or without a classifier the embedding. `summarize` always gives the embedding, of length 1, as the one
    summary token, so whatever reads a model's features (probes, retrieval) reads the embedding. At test time the
    predictor is not used; `for_inference` leaves it out.
    """

    config: EmbeddingConfig
    family = "embedding"

    def __init__(self, trunk: Model, settings: EmbeddingSettings) -> None:
        super().__init__(
            trunk, EmbeddingConfig(trunk_family=trunk.family, trunk_name=trunk.name, trunk=trunk.config, head=settings)
        )
        self.dim = self.trunk_dim if settings.projector == "none" else settings.dim  # of the projection
        self.projector = make_projector(self.trunk_dim, settings)
        self.predictor: nn.Module | None = None
        if settings.has_predictor:
            self.predictor = Mlp(self.dim, hidden_dim=settings.hidden_dim, out_dim=self.dim)
        self.head = Classifier(self.trunk_dim, num_classes=settings.num_classes)
        self.follow_trunk()

    def init_heads(self) -> None:
        """The part of `init_weights` that is not the trunk's, for one that has its weights already."""
        for part in (self.projector, self.predictor):
            if part is not None:
                initialize(part, std=None)
        initialize(self.head)

    def forward(self, images: Tensor) -> Tensor | Embedded:  # type: ignore[override]  # more answers in training
        vectors = self.trunk_vectors(images)
        logits = self.head(vectors.unsqueeze(1)) if self.config.num_classes else None
        if not self.training:
            return self.embedding_of(vectors) if logits is None else logits
        projection = self.projector(vectors)
        prediction = None if self.predictor is None else self.predictor(projection)
        return Embedded(vectors, projection, prediction, logits)

    def outputs(self, images: Tensor) -> dict[str, Tensor]:
        vectors = self.trunk_vectors(images)
        logits = {"logits": self.head(vectors.unsqueeze(1))} if self.config.num_classes else {}
        return {**logits, "embedding": self.embedding_of(vectors)}

    def forward_whole(self, images: Tensor) -> Tensor:
        vectors = self.trunk.features(images).summary.flatten(1)
        embedding = self.embedding_of(vectors)
        return self.head(vectors.unsqueeze(1)) if self.config.num_classes else embedding

    def project(self, images: Tensor) -> Tensor:
        """g(x) = P(f(x)), not normalised, [batch, dim]."""
        return self.projector(self.trunk_vectors(images))

    def embedding_of(self, vectors: Tensor) -> Tensor:
        """The embeddings of length 1 for the trunk's features."""
        wanted = vectors if self.config.head.retrieve == "trunk" else self.projector(vectors)
        return functional.normalize(wanted.float(), dim=1)

    def summarize(self, images: Tensor) -> Tensor:
        return self.embedding_of(self.trunk_vectors(images)).unsqueeze(1)

    def features(self, images: Tensor, *, levels: Sequence[int] = ()) -> Features:
        found = self.trunk.features(images, levels=levels)
        return found._replace(summary=self.embedding_of(found.summary.flatten(1)).unsqueeze(1))

    def for_inference(self) -> "EmbeddingModel":
        """The model of test time, on the same weights: without the predictor (2.3.1)."""
        smaller = EmbeddingModel(self.trunk, replace(self.config.head, has_predictor=False))
        smaller.projector, smaller.head = self.projector, self.head
        return smaller.train(self.training)

    def resized(self, image_size: int | tuple[int, int]) -> Model:
        trunk = self.trunk.resized(image_size)
        if trunk is self.trunk:
            return self
        model = EmbeddingModel(trunk, self.config.head)
        model.name, model.preprocessing = self.name, self.preprocessing
        model.load_state_dict({**self.state_dict(), **{f"{TRUNK}{name}": v for name, v in trunk.state_dict().items()}})
        return model.eval()


def make_projector(width: int, settings: EmbeddingSettings) -> nn.Module:
    """P, from the trunk's features to the projection."""
    if settings.projector == "none":
        return nn.Identity()
    if settings.projector == "linear":
        return nn.Linear(width, settings.dim)
    return Mlp(width, hidden_dim=settings.hidden_dim, out_dim=settings.dim)
