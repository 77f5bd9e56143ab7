"""Packs of runs: the trunk is the one that the recipe names, and a pack is used as the run itself is."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from tiny_runs import run_in

import vitrail
from vitrail.inference.packs import Packed, pack_run
from vitrail.inference.trained import Trained, load_trained
from vitrail.training.runs.run_folder import RunFolder

SHORT = ("epochs=1", "regularisation.ema=null", "augmentation.repeats=1")
FINE_TUNING = (*SHORT, "train_only=attention", "data.level=coarse", "lr=1e-2")


@pytest.fixture(scope="module")
def trunk(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run_in(tmp_path_factory.mktemp("runs") / "trunk", *SHORT)


@pytest.fixture(scope="module")
def task(trunk: RunFolder) -> RunFolder:
    """Its attention and a head of other classes were trained, at another image size than the trunk."""
    words = (f"init={trunk.path}", "image_size=[24, 16]", "evaluation.image_size=32", "evaluation.crop_ratio=0.9")
    return run_in(trunk.path.parent / "task", *FINE_TUNING, *words)


@pytest.fixture(scope="module")
def packed(task: RunFolder) -> Packed:
    return pack_run(task.path)


def logits_of(trained: Trained) -> torch.Tensor:
    size = trained.view.image_size
    sides = (size, size) if isinstance(size, int) else size
    images = torch.randint(256, (2, 3, *sides), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    with torch.inference_mode():
        return trained.model(trained.normalize(images))


def test_a_pack_is_used_as_its_run(trunk: RunFolder, task: RunFolder, packed: Packed) -> None:
    own = load_trained(task.path)
    for found in (
        vitrail.load_pack(vitrail.load_model(trunk.model), packed.folder),
        vitrail.load_pack(str(trunk.path), packed.folder),
        vitrail.load_pack(trunk.model, str(packed.folder)),
        load_trained(packed.folder),
    ):
        assert torch.equal(logits_of(found), logits_of(own))
        assert (found.classes, found.coarse, found.level) == (own.classes, own.coarse, own.level)
        assert found.view == own.view
        assert found.normalize.mean == own.normalize.mean
        assert not found.model.training
    assert own.view.image_size == 32


def test_a_pack_holds_the_parts_that_learnt_and_says_so(trunk: RunFolder, task: RunFolder, packed: Packed) -> None:
    assert packed.folder == task.path / "pack"
    assert sorted(path.name for path in packed.folder.iterdir()) == ["pack.json", "pack.safetensors", "task.json"]
    assert (packed.folder / "task.json").read_text() == (task.model / "task.json").read_text()
    content = json.loads((packed.folder / "pack.json").read_text())
    assert content["trunk"]["source"] == str(trunk.path)
    assert content["trunk"]["shared"] == sorted(content["trunk"]["shared"])
    assert not any("mix.qkv" in name for name in content["trunk"]["shared"])
    assert "blocks.0.feed_forward.branches.0.mix.expand.weight" in content["trunk"]["shared"]
    assert content["model"]["settings"]["image_size"] == 32
    assert content["model"]["preprocessing"]["crop_ratio"] == 0.9
    assert packed.num_bytes < packed.num_model_bytes
    num_parameters = sum(value.numel() for value in load_trained(task.path).model.parameters())
    assert content["parameters"]["stored"] + content["parameters"]["shared"] == num_parameters


def test_two_tasks_share_one_loaded_trunk(trunk: RunFolder, task: RunFolder, packed: Packed, tmp_path: Path) -> None:
    other = run_in(tmp_path / "other", *FINE_TUNING, f"init={trunk.path}", "seed=3")
    loaded = vitrail.load_model(trunk.model)
    before = {name: value.clone() for name, value in loaded.state_dict().items()}
    first = vitrail.load_pack(loaded, packed.folder)
    second = vitrail.load_pack(loaded, pack_run(other.path).folder)
    name = "blocks.0.feed_forward.branches.0.mix.expand.weight"
    places = {model.get_parameter(name).data_ptr() for model in (loaded, first.model, second.model)}
    assert len(places) == 1
    assert torch.equal(logits_of(first), logits_of(load_trained(task.path)))
    assert torch.equal(logits_of(second), logits_of(load_trained(other.path)))
    assert all(torch.equal(value, before[name]) for name, value in loaded.state_dict().items())


def test_the_trunk_of_stages_is_what_the_first_began_with(trunk: RunFolder, tmp_path: Path) -> None:
    stages = "stages=[{image_size: 16}, {image_size: 24}]"
    run = run_in(tmp_path / "run", *FINE_TUNING, f"init={trunk.path}", stages)
    packed = pack_run(run.path)
    assert packed.pack.num_shared > packed.pack.num_stored
    assert torch.equal(logits_of(load_trained(packed.folder)), logits_of(load_trained(run.path)))


def test_a_trunk_is_found_from_the_working_folder_or_where_it_is_said_to_be(
    trunk: RunFolder, task: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(trunk.model, tmp_path / "here" / "weights")
    monkeypatch.chdir(tmp_path / "here")
    packed = pack_run(task.path, out="mine", trunk="weights")
    assert packed.pack.trunk == "weights"
    assert torch.equal(logits_of(load_trained("mine")), logits_of(load_trained(task.path)))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ValueError, match=r"here/mine needs its trunk weights \(sha256 \w+\), trunk=PLACE: .*no such file"
    ):
        load_trained("here/mine")
    found = load_trained("here/mine", trunk="here/weights")
    assert torch.equal(logits_of(found), logits_of(load_trained(task.path)))
    other = load_trained(trunk.path).model
    with torch.no_grad():
        other.get_parameter("norm.bias").add_(1.0)
    vitrail.save_model(other, tmp_path / "other")
    with pytest.raises(ValueError, match="other has other values: give that trunk"):
        load_trained("here/mine", trunk="other")
    with pytest.raises(ValueError, match="is no pack: it has no trunk="):
        load_trained(task.path, trunk="here/weights")


def test_a_run_from_scratch_has_no_trunk(trunk: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"began from scratch \(no init=\): there is no trunk to share"):
        pack_run(trunk.path)
    with pytest.raises(ValueError, match="is not a run, whose recipe would name the trunk: add trunk=PLACE"):
        pack_run(trunk.model)
    with pytest.raises(ValueError, match="give another folder as out="):
        pack_run(trunk.path, out=trunk.path)


def test_a_run_that_trained_everything_shares_next_to_nothing_but_is_packed(trunk: RunFolder, tmp_path: Path) -> None:
    run = run_in(tmp_path / "run", *SHORT, f"init={trunk.path}")
    packed = pack_run(run.path)
    assert packed.pack.stored_share > 0.99
    assert torch.equal(logits_of(load_trained(packed.folder)), logits_of(load_trained(run.path)))
