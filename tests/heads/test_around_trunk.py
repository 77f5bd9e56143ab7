"""A model around a trunk answers for its trunk, and keeps what is to be saved apart from what learns."""

import pytest
import torch
from torch import Tensor, nn

from vitrail.heads.around_trunk import AroundTrunk
from vitrail.models.catalog import create_model
from vitrail.models.contract import Model


class Twofold(AroundTrunk):
    """A trunk with a projector, and a teacher that is saved."""

    def __init__(self, trunk: Model, teacher: Model) -> None:
        super().__init__(trunk)
        self.projector = nn.Linear(self.trunk_dim, 3)
        self.teacher = teacher.requires_grad_(False)
        self.follow_trunk()

    def init_heads(self) -> None:
        nn.init.ones_(self.projector.weight)

    def forward(self, images: Tensor) -> Tensor:
        return self.projector(self.trunk_vectors(images))

    def saved_trunk(self) -> Model:
        return self.teacher


def tiny(**settings: int) -> Model:
    return create_model(
        "deit_tiny", patch_size=8, dim=16, depth=2, num_heads=2, image_size=16, **{"num_classes": 0, **settings}
    )


def test_it_answers_for_its_trunk() -> None:
    trunk = tiny()
    model = Twofold(trunk, tiny()).eval()
    images = torch.zeros(2, 3, 16, 16)
    assert (model.trunk, model.grid, model.patch_size) == (trunk, trunk.grid, trunk.patch_size)
    assert model.residual_blocks() == trunk.residual_blocks()
    assert model(images).shape == (2, 3)
    assert torch.equal(model.summarize(images), trunk.summarize(images))
    names = {name for name, _ in model.named_parameters()}
    assert model.parameter_layers().keys() == names
    around = {name for name in names if not name.startswith("trunk.")}
    assert model.parts()["head"] == around
    assert model.from_block(1) == around | {f"trunk.{name}" for name in trunk.from_block(1)}
    layers = model.parameter_layers()
    assert layers["projector.weight"] == max(layers.values())
    assert {f"trunk.{name}" for name in trunk.undecayed()} <= model.undecayed()


def test_what_is_saved_is_a_backbone_of_its_own() -> None:
    teacher = tiny()
    model = Twofold(tiny(), teacher)
    assert model.for_inference() is teacher
    assert model.resized(16) is model
    with pytest.raises(ValueError, match="a Twofold is trained at one size"):
        model.resized(32)
    model.init_weights()
    assert bool((model.projector.weight == 1.0).all())


def test_a_trunk_has_no_classifier() -> None:
    with pytest.raises(ValueError, match="the trunk has a classifier of 5 classes: create it with num_classes=0"):
        Twofold(tiny(num_classes=5), tiny())
