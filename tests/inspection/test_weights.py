"""LayerScale and sparsity of weights that are set by hand."""

import pytest
import torch
from shrunk import small_model

from vitrail.inspection.weights import scales_of, sparsities_of, sparsity
from vitrail.layers.mixing import CrossPatchLinear


def test_sparsity_counts_what_is_below_5_percent_of_the_greatest_size() -> None:
    assert sparsity(torch.tensor([[-2.0, 0.09], [0.11, 0.0]])) == 0.5
    assert sparsity(torch.ones(3, 3)) == 0.0


def test_a_of_resmlp_is_as_sparse_as_it_is_set() -> None:
    model = small_model("resmlp_s12")
    with torch.no_grad():
        for part in model.modules():
            if isinstance(part, CrossPatchLinear):
                part.linear.weight.copy_(torch.eye(16) + 0.01)
    found = sparsities_of(model)
    assert list(found) == ["A", "B", "C"]
    assert list(found["A"].values()) == [15 / 16, 15 / 16]
    assert all(0.0 < value < 0.5 for value in found["B"].values())


@pytest.mark.parametrize(
    ("name", "matrices"),
    [
        ("deit_tiny", ["query", "key", "value", "projection", "B", "C"]),
        ("cait_xxs24", ["query", "key", "value", "projection", "B", "C"]),
        ("patchconvnet_s60", ["first 1x1", "last 1x1", "query", "key", "value", "projection", "B", "C"]),
    ],
)
def test_other_families_have_matrices_of_the_same_kind(name: str, matrices: list[str]) -> None:
    found = sparsities_of(small_model(name))
    assert list(found) == matrices
    labels = [layer.label for layer in found["value"]]
    assert labels[-1] == {"deit_tiny": "block 2", "cait_xxs24": "class block 2"}.get(name, "class block 1")


def test_each_matrix_of_attention_is_measured_by_itself() -> None:
    model = small_model("deit_tiny", depth=1)
    with torch.no_grad():
        qkv = model.blocks[0].communication.branches[0].mix.qkv.weight
        qkv.fill_(1.0)
        qkv[:48] = 100 * torch.eye(48)  # queries
    found = {name: list(column.values()) for name, column in sparsities_of(model).items()}
    assert found["query"] == [47 / 48]
    assert found["key"] == found["value"] == [0.0]


def test_layer_scales_are_found_in_the_order_of_layers() -> None:
    model = small_model("cait_xxs24", layer_scale=0.5)
    with torch.no_grad():
        model.blocks[0].communication.branches[0].scale.weight[0] = -3.0
    found = scales_of(model)
    assert [(layer.label, layer.kind) for layer, _ in found][:3] == [
        ("block 1", "self-attention"),
        ("block 1", "feed-forward"),
        ("block 2", "self-attention"),
    ]
    assert found[0][1].min() == -3.0
    assert all(torch.equal(weights, torch.full((48,), 0.5)) for _, weights in found[1:])


def test_one_weight_a_branch_counts_as_well_and_none_is_none() -> None:
    rezero = scales_of(small_model("deit_tiny", residual="rezero"))
    assert [weights.tolist() for _, weights in rezero] == [[0.0]] * 4
    assert scales_of(small_model("deit_tiny")) == []
