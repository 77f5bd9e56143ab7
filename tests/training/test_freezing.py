"""Training a part of a model: what learns, what stays as it is bit for bit, and what autograd keeps."""

from pathlib import Path

import pytest
import torch
from shrunk import images_for, randomize, small_model
from tiny_runs import run_in
from torch import nn

import vitrail
from vitrail.models.contract import Model
from vitrail.training.loop.freezing import freeze
from vitrail.training.runs.run_folder import RunFolder

SCALE = "model.settings.layer_scale=1"  # branches that are heard from the first step on
SGD = ("optimizer.name=sgd", "regularisation.ema=null")


def learning(model: Model) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


@pytest.mark.parametrize("name", ["vit_s12x2", "deit_tiny", "cait_xxs24", "resmlp_s12"])
@pytest.mark.parametrize(("part", "path"), [("attention", ".communication."), ("ffn", ".feed_forward.")])
def test_a_part_is_its_weights_and_the_head(name: str, part: str, path: str) -> None:
    model = small_model(name)
    freeze(model, part)
    names = learning(model)
    assert {key for key in names if key.startswith("head.")} == {"head.linear.weight", "head.linear.bias"}
    body = names - {"head.linear.weight", "head.linear.bias"}
    assert body == {key for key, _ in model.named_parameters() if path in key and ".mix." in key}


def test_attention_is_a_third_of_a_vision_transformer() -> None:
    with torch.device("meta"):
        model = vitrail.create_model("deit_small")
    freeze(model, "attention")
    share = sum(p.numel() for p in model.blocks.parameters() if p.requires_grad) / sum(
        p.numel() for p in model.blocks.parameters()
    )
    assert share == pytest.approx(1 / 3, abs=0.01)


def test_parts_add_up_and_blocks_reach_to_the_head() -> None:
    model = small_model("cait_xxs24", depth=4)
    freeze(model, "norm,positions")
    assert {"positions.patches", "norm.weight", "blocks.0.feed_forward.branches.0.norm.bias"} <= learning(model)
    assert not any(".mix." in name for name in learning(model))

    model = small_model("cait_xxs24", depth=4)
    freeze(model, "blocks.2+")
    names = learning(model)
    assert {name.split(".")[1] for name in names if name.startswith("blocks.")} == {"2", "3"}
    assert {"class_stage.tokens", "norm.weight", "head.linear.weight"} <= names
    assert not {"positions.patches", "stem.layers.0.weight"} & names


def test_models_of_timm_have_the_same_parts() -> None:
    model = vitrail.create_model("timm/vit_tiny_patch16_224", image_size=32, num_classes=3)
    freeze(model, "attention")
    assert learning(model) == {
        name
        for name, _ in model.named_parameters()
        if ".attn." in name or name in ("backbone.head.weight", "backbone.head.bias")
    }
    model = vitrail.create_model("timm/resnet18", num_classes=3)
    freeze(model, "head")
    assert learning(model) == {"backbone.fc.weight", "backbone.fc.bias"}


@pytest.mark.parametrize(
    ("name", "num_norms", "classifier"),
    [
        ("resnet18", 20, "fc"),  # bn1, two in each of eight blocks, three in downsample
        ("regnety_002", 44, "head.fc"),  # batch normalisation with an activation: three a block, one in the stem ...
        ("resmlp_12_224", 25, "head"),  # affine layers
    ],
)
def test_the_norms_of_timm_are_found_by_their_type(name: str, num_norms: int, classifier: str) -> None:
    model = vitrail.create_model(f"timm/{name}", num_classes=3)
    freeze(model, "norm")
    body = learning(model) - {f"backbone.{classifier}.weight", f"backbone.{classifier}.bias"}
    assert len(body) == 2 * num_norms
    norms = [part for part in model.modules() if isinstance(part, nn.BatchNorm2d)]
    assert all(part.train().training for part in norms), "what learns its scale goes on counting its statistics"
    assert all(max(model.get_parameter(name).shape) == model.get_parameter(name).numel() for name in body)


def test_the_norms_of_a_stem_are_norms() -> None:
    model = small_model("vit_b12_hmlp")
    freeze(model, "norm")
    names = {f"{path}.weight" for path, part in model.named_modules() if isinstance(part, nn.BatchNorm2d)}
    assert names
    assert names <= learning(model)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("atention", "train_only has no part 'atention': did you mean attention?"),
        ("nothing at all", "it takes attention, ffn, norm, positions, stem, head, all and blocks.N"),
        ("blocks.2+", r"train_only=blocks.2\+: there are the blocks 0 to 1"),
    ],
)
def test_unknown_parts_are_refused_with_the_nearest_name(words: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        freeze(small_model("deit_tiny"), words)


def test_a_part_that_a_model_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match=r"train_only=positions: .* has no such part"):
        freeze(small_model("resmlp_s12"), "positions")


def test_frozen_batch_normalisation_keeps_its_statistics_when_the_model_trains() -> None:
    model = randomize(small_model("patchconvnet_s60", norm="batch", drop_path=0.0))
    freeze(model, "head")
    before = {name: value.clone() for name, value in model.named_buffers()}
    model.eval()
    answer = model(images_for(model))
    model.train()
    assert torch.equal(model(images_for(model)), answer)
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())
    assert any(isinstance(module, nn.BatchNorm2d) for module in model.modules())


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run that others start from."""
    return run_in(tmp_path_factory.mktemp("runs") / "begun", "epochs=1", SCALE)


@pytest.mark.parametrize("words", [(), SGD], ids=["adamw and ema", "sgd"])
@pytest.mark.parametrize("part", ["attention", "head", "blocks.1+"])
def test_a_run_changes_what_it_trains_and_nothing_else(
    begun: RunFolder, tmp_path: Path, part: str, words: tuple[str, ...]
) -> None:
    first = vitrail.load_model(begun.model)
    tuned = run_in(tmp_path / "tuned", "epochs=1", SCALE, f"init={begun.path}", f"train_only={part}", *words)
    model = vitrail.load_model(tuned.model)
    before, after = dict(first.named_parameters()), dict(model.named_parameters())
    freeze(model, part)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed <= learning(model)
    assert {"head.linear.weight", "head.linear.bias"} <= changed
    is_deep = part != "head"
    assert is_deep == any(".mix." in name for name in changed)


def test_frozen_parts_have_no_optimizer_state_and_autograd_keeps_less(tmp_path: Path) -> None:
    run = run_in(tmp_path / "run", "epochs=1", "train_only=attention", "run.keep=1")
    [newest] = sorted((run.path / "checkpoints").glob("step_*.pt"))[-1:]
    state = torch.load(newest, weights_only=True)["optimizer"]
    model = vitrail.load_model(run.model)
    freeze(model, "attention")
    assert len(state["state"]) == len(learning(model))

    kept = {part: bytes_kept(part) for part in ("all", "attention", "blocks.1+", "head")}
    assert kept["all"] > kept["attention"] > kept["head"]
    assert kept["all"] > 1.5 * kept["blocks.1+"]


def bytes_kept(part: str) -> int:
    """What the backward pass of a training step needs, parameters left out."""
    model = small_model("deit_tiny").train()
    freeze(model, part)
    parameters = {parameter.data_ptr() for parameter in model.parameters()}
    sizes: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in parameters:
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model(images_for(model)).sum()
    return sum(sizes.values())
