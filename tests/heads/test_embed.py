"""Embedding models: sizes of the paper, what they answer, and that whatever reads features reads the embedding."""

import dataclasses
import json
from typing import Any

import pytest
import torch
from shrunk import images_for, small_model
from torch.nn import functional

import vitrail
from vitrail.data.augment import EvaluationView
from vitrail.data.blend import Normalize
from vitrail.data.datasets import open_dataset
from vitrail.evaluation.features import Embedder, Extraction, embed
from vitrail.heads.embed import Embedded, EmbeddingModel, EmbeddingSettings, Mlp, make_projector
from vitrail.models.contract import Model

SMALL: dict[str, Any] = {"dim": 8, "hidden_dim": 12}


def count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def trunk(name: str = "deit_tiny", **settings: object) -> Model:
    return small_model(name, num_classes=0, **settings)


def test_projectors_have_the_parameters_of_table_2_7() -> None:
    # ResNet-50 has 23.5 M and features of 2048; the table has 23.8 M with a linear projector and 32.9 M with the MLP.
    with torch.device("meta"):
        mlp = make_projector(2048, EmbeddingSettings(projector="mlp"))
        linear = make_projector(2048, EmbeddingSettings(projector="linear", dim=128))
    assert round(count(mlp) / 1e6, 1) == 9.4
    assert round(count(linear) / 1e6, 1) == 0.3


def test_mlp_is_linear_batch_norm_relu_linear() -> None:
    mlp = Mlp(2, hidden_dim=3, out_dim=1)
    vectors = torch.tensor([[1.0, 0.0], [3.0, 2.0]])
    with torch.no_grad():
        mlp.hidden.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, -1.0], [1.0, -1.0]]))
        mlp.out.weight.copy_(torch.tensor([[1.0, 10.0, 100.0]]))
        mlp.out.bias.fill_(0.5)
    # Hidden columns (1, 3), (0, -2), (1, 1) are normalised to (-1, 1), (1, -1), (0, 0).
    torch.testing.assert_close(mlp(vectors), torch.tensor([[10.5], [1.5]]), rtol=1e-4, atol=1e-4)


def test_in_training_every_part_answers() -> None:
    model = EmbeddingModel(trunk(), EmbeddingSettings(**SMALL, num_classes=5)).train()
    output = model(images_for(model))
    assert isinstance(output, Embedded)
    assert output.trunk.shape == (2, 48)
    assert output.prediction is not None
    assert output.logits is not None
    assert output.projection.shape == output.prediction.shape == (2, 8)
    assert output.logits.shape == (2, 5)
    torch.testing.assert_close(output.projection, model.projector(output.trunk))


def test_parts_that_are_not_wanted_are_not_there() -> None:
    model = EmbeddingModel(trunk(), EmbeddingSettings(projector="none", has_predictor=False)).train()
    output = model(images_for(model))
    assert output.prediction is None
    assert output.logits is None
    assert output.projection is output.trunk
    assert count(model) == count(model.trunk)


@pytest.mark.parametrize("projector", ["none", "linear", "mlp"])
def test_in_evaluation_the_answer_is_the_projection_at_length_one(projector: str) -> None:
    model = EmbeddingModel(trunk(), EmbeddingSettings(**SMALL, projector=projector)).eval()
    images = images_for(model)
    with torch.no_grad():
        expected = functional.normalize(model.projector(model.trunk(images)), dim=1)
        torch.testing.assert_close(model(images), expected)


def test_with_a_classifier_the_answer_in_evaluation_is_its_logits() -> None:
    model = EmbeddingModel(trunk(), EmbeddingSettings(**SMALL, num_classes=5)).eval()
    images = images_for(model)
    with torch.no_grad():
        torch.testing.assert_close(model(images), model.head(model.trunk.summarize(images)))


def test_the_trunk_can_be_what_is_retrieved() -> None:
    model = EmbeddingModel(trunk(), EmbeddingSettings(**SMALL, retrieve="trunk")).eval()
    images = images_for(model)
    with torch.no_grad():
        torch.testing.assert_close(model(images), functional.normalize(model.trunk(images), dim=1))


@pytest.mark.parametrize("name", ["cait_xxs24", "resmlp_s12", "patchconvnet_s60"])
def test_every_family_can_be_the_trunk(name: str) -> None:
    model = EmbeddingModel(trunk(name), EmbeddingSettings(**SMALL)).train()
    assert model(images_for(model)).projection.shape == (2, 8)


def test_tokens_of_a_distilled_trunk_stand_side_by_side() -> None:
    model = EmbeddingModel(trunk(distilled=True), EmbeddingSettings(**SMALL))
    assert model.trunk_dim == 2 * 48


def test_a_timm_model_can_be_the_trunk() -> None:
    backbone = vitrail.create_model("timm/resnet10t", num_classes=0, image_size=32)
    model = EmbeddingModel(backbone, EmbeddingSettings(**SMALL)).train()
    assert model.trunk_dim == 512
    assert model(torch.rand(2, 3, 32, 32)).projection.shape == (2, 8)


def test_embedder_reads_the_embedding() -> None:
    model = EmbeddingModel(trunk(), EmbeddingSettings(**SMALL, num_classes=5)).eval()
    images = images_for(model)
    with torch.no_grad():
        vectors = Embedder(model)(images)
        torch.testing.assert_close(vectors, functional.normalize(model.project(images), dim=1))
        torch.testing.assert_close(model.features(images).summary[:, 0], vectors)


def test_embeddings_of_a_data_set_are_of_length_one() -> None:
    model = EmbeddingModel(trunk(image_size=32, patch_size=16), EmbeddingSettings(**SMALL))
    data = open_dataset("shapes:size=32,count=24,val=24", "val")
    extraction = Extraction(model, EvaluationView(image_size=32), Normalize(), torch.device("cpu"))
    found = embed(extraction, data)
    assert found.vectors.shape == (len(data), 8)
    torch.testing.assert_close(found.vectors.norm(dim=1), torch.ones(len(data)))
    assert extraction.key(data) != dataclasses.replace(
        extraction, model=EmbeddingModel(model.trunk, EmbeddingSettings(**SMALL, retrieve="trunk"))
    ).key(data)


def test_trimmed_model_has_no_predictor_and_the_same_embedding() -> None:
    model = EmbeddingModel(trunk(), EmbeddingSettings(**SMALL)).eval()
    smaller = model.for_inference()
    images = images_for(model)
    with torch.no_grad():
        assert torch.equal(smaller(images), model(images))
    assert count(smaller) == count(model.trunk) + count(model.projector)
    assert not smaller.config.head.has_predictor


def test_folded_model_has_the_same_embedding() -> None:
    model = EmbeddingModel(trunk("cait_xxs24"), EmbeddingSettings(**SMALL)).eval()
    images = images_for(model)
    with torch.no_grad():
        torch.testing.assert_close(vitrail.fold(model).summarize(images), model.summarize(images), rtol=1e-4, atol=1e-4)


def test_config_is_plain_data() -> None:
    model = EmbeddingModel(trunk(), EmbeddingSettings(**SMALL))
    described = json.loads(json.dumps(dataclasses.asdict(model.config)))
    assert described["trunk_family"] == "vit"
    assert described["head"]["dim"] == 8
    assert model.config.size == model.trunk.config.size


def test_initial_weights_are_set_anew_and_leave_a_loaded_trunk_alone() -> None:
    model = EmbeddingModel(trunk(), EmbeddingSettings(**SMALL, num_classes=5))
    before = {name: value.clone() for name, value in model.trunk.state_dict().items()}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not name.startswith("trunk."):
                parameter.fill_(torch.nan)
    model.init_heads()
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert all(torch.equal(before[name], value) for name, value in model.trunk.state_dict().items())


def test_errors_say_what_to_do() -> None:
    with pytest.raises(ValueError, match="classifier of 7 classes: create it with num_classes=0"):
        EmbeddingModel(small_model("deit_tiny"), EmbeddingSettings())
    with pytest.raises(ValueError, match="projector must be one of none, linear, mlp, not 'fc'"):
        EmbeddingSettings(projector="fc")
    with pytest.raises(ValueError, match="dim must be a whole number of at least 1"):
        EmbeddingSettings(dim=0)
