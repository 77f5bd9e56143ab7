"""Task packs: what is stored, what is shared with the trunk, and which trunks are refused."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from interrupted import interrupt
from safetensors.torch import load_file, save_file
from shrunk import images_for, randomize, small_model

import vitrail
from vitrail.heads.embed import EmbeddingModel, EmbeddingSettings
from vitrail.models.contract import Model
from vitrail.storage.tensors import hash_tensors
from vitrail.weights.pack import read_pack, tensors_of_trunk, unpack, write_pack

NAMES = (
    *("deit_tiny", "deit_tiny_distilled", "cait_xxs24", "resmlp_s12", "patchconvnet_s60"),
    *("timm/test_resnet", "timm/levit_128s"),  # the latter with buffers that no file of weights holds
)


def make(name: str, **settings: Any) -> Model:
    """A small model with weights that matter."""
    if name.startswith("timm/"):
        model = vitrail.create_model(name, **{"num_classes": 7, **settings})
        return randomize(model).eval()
    return randomize(small_model(name, **settings)).eval()


def tune(trunk: Model, *, seed: int = 1, **settings: Any) -> Model:
    """A model of other classes on the trunk, whose attention (or what is in its place) and head have learnt."""
    name = trunk.name
    tuned = make(name, **{"num_classes": 5, **settings})
    vitrail.load_weights(tuned, trunk.state_dict(), reset_head=True)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, value in tuned.named_parameters():
            if is_tuned(key):
                value.add_(0.1 * torch.randn(value.shape, generator=generator))
    return tuned.eval()


def is_tuned(name: str) -> bool:
    is_attention = ".communication." in name and ".mix." in name
    of_timm = (".fc.", ".head", ".layer3.", ".stages.2.")
    return is_attention or name.startswith("head.") or any(part in name for part in of_timm)


def pack_into(folder: Path, tuned: Model, trunk: Model) -> Path:
    write_pack(folder, model=tuned, trunk=trunk.state_dict(), source="weights.safetensors")
    return folder


def assert_same_answers(one: Model, other: Model) -> None:
    images = images_for(one)
    with torch.inference_mode():
        assert torch.equal(one(images), other(images))


@pytest.mark.parametrize("name", NAMES)
def test_a_packed_model_answers_bit_for_bit_as_the_tuned_one(name: str, tmp_path: Path) -> None:
    trunk = make(name)
    tuned = tune(trunk)
    found = unpack(trunk, pack_into(tmp_path / "task", tuned, trunk))
    assert not found.training
    assert (found.name, found.config, found.preprocessing) == (tuned.name, tuned.config, tuned.preprocessing)
    assert_same_answers(found, tuned)


@pytest.mark.parametrize("name", NAMES)
def test_what_the_pack_does_not_hold_is_the_memory_of_the_trunk(name: str, tmp_path: Path) -> None:
    trunk = make(name)
    folder = pack_into(tmp_path / "task", tune(trunk), trunk)
    own = trunk.state_dict()
    before = {key: value.clone() for key, value in own.items()}
    found = unpack(trunk, folder).state_dict()
    stored, shared = load_file(folder / "pack.safetensors"), read_pack(folder).shared
    assert sorted([*shared, *stored]) == sorted(found)
    assert all(found[key].data_ptr() == own[key].data_ptr() for key in shared)
    assert all(torch.equal(own[key], before[key]) for key in own)
    assert all(value.requires_grad for value in trunk.parameters())


def test_only_what_differs_is_stored_beside_head_and_positions(tmp_path: Path) -> None:
    trunk = make("deit_tiny")
    folder = pack_into(tmp_path / "task", tune(trunk), trunk)
    stored = load_file(folder / "pack.safetensors")
    assert set(stored) == {name for name in trunk.state_dict() if is_tuned(name)} | {"positions.patches"}
    assert "blocks.0.feed_forward.branches.0.mix.expand.weight" not in stored


def test_a_pack_of_the_attention_is_about_a_third_of_a_vision_transformer(tmp_path: Path) -> None:
    settings = {"dim": 192, "depth": 12, "num_heads": 3, "num_classes": 37}
    trunk = make("deit_tiny", **settings)
    pack = write_pack(tmp_path / "task", model=tune(trunk, **settings), trunk=trunk.state_dict(), source="x")
    assert pack.num_stored + pack.num_shared == sum(value.numel() for value in trunk.parameters())
    assert pack.stored_share == pytest.approx(1 / 3, abs=0.03)


@pytest.mark.parametrize("name", ["deit_tiny", "cait_xxs24", "resmlp_s12", "patchconvnet_s60"])
@pytest.mark.parametrize("image_size", [(96, 64), 48])
def test_trunk_and_task_may_have_other_classes_and_image_sizes(name: str, image_size: Any, tmp_path: Path) -> None:
    trunk = make(name)
    tuned = tune(trunk, image_size=image_size)
    folder = pack_into(tmp_path / "task", tuned, trunk)
    assert_same_answers(unpack(trunk, folder), tuned)
    other = make(name, image_size=80, num_classes=3)  # the same trunk, loaded for something else again
    vitrail.load_weights(other, trunk.state_dict(), reset_head=True)
    assert_same_answers(unpack(other, folder), tuned)


def test_a_pack_at_the_trunks_own_size_is_free_of_it_too(tmp_path: Path) -> None:
    trunk = make("resmlp_s12")
    tuned = make("resmlp_s12")  # the layer across patches and the head have not changed
    folder = pack_into(tmp_path / "task", tuned, trunk)
    larger = vitrail.load_weights(make("resmlp_s12", image_size=96), trunk.state_dict())
    assert_same_answers(unpack(larger, folder), tuned)


def test_the_trunk_of_an_embedding_is_a_trunk(tmp_path: Path) -> None:
    embedding = EmbeddingModel(make("cait_xxs24", num_classes=0), EmbeddingSettings(projector="linear", dim=4))
    vitrail.save_model(embedding, tmp_path / "embedding")
    tuned = make("cait_xxs24", num_classes=5)
    vitrail.load_weights(tuned, embedding.state_dict(), reset_head=True)
    place = str(tmp_path / "embedding")
    write_pack(tmp_path / "task", model=tuned, trunk=tensors_of_trunk(place, model=tuned), source=place)
    assert_same_answers(unpack(place, tmp_path / "task"), tuned)
    assert_same_answers(unpack(embedding, tmp_path / "task"), tuned)


def test_two_tasks_live_beside_each_other_on_one_trunk(tmp_path: Path) -> None:
    trunk = make("cait_xxs24")
    breeds, animals = tune(trunk, seed=1, num_classes=9), tune(trunk, seed=2, num_classes=2)
    folders = [pack_into(tmp_path / str(model.config.num_classes), model, trunk) for model in (breeds, animals)]
    first, second = (unpack(trunk, folder) for folder in folders)
    assert_same_answers(first, breeds)
    assert_same_answers(second, animals)
    assert_same_answers(first, breeds)


def test_another_trunk_is_refused(tmp_path: Path) -> None:
    trunk = make("deit_tiny")
    folder = pack_into(tmp_path / "task", tune(trunk), trunk)
    with pytest.raises(ValueError, match=r"for the trunk weights.safetensors \(sha256 \w{12}\); .* other values"):
        unpack(randomize(small_model("deit_tiny"), seed=5), folder)
    with pytest.raises(ValueError, match=r"the trunk given has no blocks\.1\."):
        unpack(make("deit_tiny", depth=1), folder)
    with pytest.raises(ValueError, match=r"given has a .* of \[.*\], not \[.*\]: give that trunk, trunk=PLACE"):
        unpack(make("deit_tiny", dim=24), folder)
    with pytest.raises(ValueError, match="the trunk given has no "):
        unpack(make("cait_xxs24"), folder)
    with pytest.raises(ValueError, match="a folded model is no trunk"):
        unpack(vitrail.fold(trunk), folder)


def test_a_trunk_that_changed_after_it_was_hashed_is_refused(tmp_path: Path) -> None:
    trunk = make("deit_tiny")
    folder = pack_into(tmp_path / "task", tune(trunk), trunk)
    unpack(trunk, folder)
    weight = trunk.get_parameter("blocks.0.feed_forward.branches.0.mix.expand.weight")
    with torch.no_grad():
        weight[0, 0] += 1.0
    with pytest.raises(ValueError, match="has other values"):
        unpack(trunk, folder)
    with torch.no_grad():
        weight[0, 0] -= 1.0
        weight.copy_(make("deit_tiny").get_parameter("blocks.0.feed_forward.branches.0.mix.expand.weight"))
    unpack(trunk, folder)


def test_a_trunk_of_inference_tensors_is_hashed_each_time(tmp_path: Path) -> None:
    trunk = make("deit_tiny")
    folder = pack_into(tmp_path / "task", tune(trunk), trunk)
    with torch.inference_mode():
        frozen = copy.deepcopy(trunk)
        assert next(iter(frozen.state_dict().values())).is_inference()
        unpack(frozen, folder)
        frozen.get_parameter("norm.weight").add_(1.0)
        with pytest.raises(ValueError, match="has other values"):
            unpack(frozen, folder)


def test_the_hash_is_of_names_types_shapes_and_bytes() -> None:
    value = torch.arange(6.0)
    hashes = {
        hash_tensors(state)
        for state in (
            {"a": value},
            {"b": value},
            {"a": value.reshape(2, 3)},
            {"a": value.half()},
            {"a": value.view(torch.int32)},
            {"a": -value},
            {"a": torch.cat([torch.tensor([-0.0]), value[1:]])},  # equal, but other bits
            {"a": value, "b": value},
        )
    }
    assert len(hashes) == 8
    transposed = value.reshape(3, 2).T.contiguous().T  # another order in memory
    assert hash_tensors({"a": transposed}) == hash_tensors({"a": value.reshape(3, 2)})


def test_a_trunk_is_read_from_a_file_under_timms_names_and_in_half_precision(tmp_path: Path) -> None:
    half = {name: value.half() for name, value in vitrail.to_timm(make("deit_tiny")).items()}
    save_file(half, tmp_path / "trunk.safetensors")
    trunk = vitrail.load_weights(make("deit_tiny"), half)
    tuned = tune(trunk, image_size=96)
    folder = pack_into(tmp_path / "task", tuned, trunk)
    assert_same_answers(unpack(tmp_path / "trunk.safetensors", folder), tuned)
    with pytest.raises(ValueError, match=r"needs its trunk weights.safetensors .*, trunk=PLACE: .*no such file"):
        unpack(tmp_path / "other.safetensors", folder)


def test_a_pack_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    trunk = make("deit_tiny")
    folder = pack_into(tmp_path / "task", tune(trunk, seed=1), trunk)
    again = tune(trunk, seed=2)
    assert_same_answers(unpack(trunk, pack_into(folder, again, trunk)), again)
    assert [path.name for path in tmp_path.iterdir()] == ["task"]
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("keep")
    for place in (tmp_path / "notes", tmp_path / "notes" / "mine.txt"):
        with pytest.raises(ValueError, match="is there already and is no pack: give another folder as out="):
            pack_into(place, again, trunk)
    assert (tmp_path / "notes" / "mine.txt").read_text() == "keep"


def test_a_trunk_of_another_architecture_is_no_trunk(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="x is no trunk of deit_tiny: it is of another architecture"):
        write_pack(tmp_path / "task", model=make("deit_tiny"), trunk=make("timm/test_resnet").state_dict(), source="x")


def test_damaged_packs_are_one_line(tmp_path: Path) -> None:
    trunk = make("deit_tiny")
    folder = pack_into(tmp_path / "task", tune(trunk), trunk)
    with pytest.raises(ValueError, match=r"is no pack: there is no pack\.json"):
        unpack(trunk, tmp_path)
    content = json.loads((folder / "pack.json").read_text())
    for change, message in (
        ({"pack": 99}, "is of format 99 and vitrail"),
        ({"trunk": {}}, "incomplete: pack the run again"),
        ({"model": {"family": "vit"}}, "pack.json is incomplete"),
        ({"model": {**content["model"], "family": "vgg"}}, "unknown family 'vgg'"),
        ({"model": {**content["model"], "settings": {"wide": 1}}}, "pack.json, of vitrail .* has no setting 'wide'"),
        ({"trunk": {**content["trunk"], "shared": content["trunk"]["shared"][1:]}}, "do not fit each other"),
    ):
        (folder / "pack.json").write_text(json.dumps({**content, **change}))
        with pytest.raises(ValueError, match=message):
            unpack(trunk, folder)
    (folder / "pack.json").write_text("{")
    with pytest.raises(ValueError, match="can't be read"):
        unpack(trunk, folder)


def test_ctrl_c_at_any_rename_leaves_the_old_pack_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trunk = make("deit_tiny")
    old, new = tune(trunk, seed=1), tune(trunk, seed=2)
    found = []
    for at in range(1, 7):  # pack.json, the decision, two files that take their places; then there are no more
        for is_after in (False, True):
            folder = pack_into(tmp_path / f"{at}{is_after}", old, trunk)
            with monkeypatch.context() as patch:
                interrupt(patch, at=at, is_after=is_after)
                try:
                    pack_into(folder, new, trunk)
                except KeyboardInterrupt:
                    found.append((at, is_after))
            is_new = (at, is_after) >= (2, True)
            assert_same_answers(unpack(trunk, folder), new if is_new else old)
            assert sorted(path.name for path in folder.iterdir()) == ["pack.json", "pack.safetensors"]
    assert found == [(at, is_after) for at in range(1, 5) for is_after in (False, True)]
