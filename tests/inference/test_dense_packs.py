"""One trunk, three packs in one process: it is in memory once, and each answers as its run does."""

import json
from pathlib import Path

import pytest
import torch
from tiny_dense import DETECT
from tiny_runs import run_in

import vitrail
from vitrail.inference.packs import pack_run
from vitrail.inference.trained import load_trained
from vitrail.training.runs.run_folder import RunFolder

MODEL = ("model=deit_tiny", "model.settings={patch_size: 8, dim: 16, depth: 2, num_heads: 2}")
SHORT = ("epochs=1", "regularisation.ema=null", "train_only=head", "batch_size=8", "run.micro_batch=8")
TASKS = {
    "classify": ("data=shapes:size=32,count=16,val=8", "image_size=32", "augmentation.repeats=1"),
    "segment": ("task=segment", "data=shapes:size=48,count=16,val=4", "image_size=[32, 40]", "segment.head=linear"),
    "detect": (
        *DETECT,
        "data=shapes:size=64,count=16,val=4",
        "augmentation.short_sides=[64]",
        "augmentation.crop=0",
    ),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunFolder]:
    """Three tasks that were learnt on one trunk, which stayed as it was."""
    folder = tmp_path_factory.mktemp("packs")
    torch.manual_seed(0)
    trunk = vitrail.create_model("deit_tiny", patch_size=8, dim=16, depth=2, num_heads=2, image_size=32, num_classes=5)
    vitrail.save_model(trunk, folder / "trunk")
    return {
        name: run_in(folder / name, *MODEL, *SHORT, *words, f"init={folder / 'trunk'}") for name, words in TASKS.items()
    }


def test_three_tasks_share_one_trunk_in_memory(runs: dict[str, RunFolder]) -> None:
    folder = runs["detect"].path.parent
    packs = {name: pack_run(run.path) for name, run in runs.items()}
    trunk = vitrail.load_model(folder / "trunk")
    loaded = {name: vitrail.load_pack(trunk, pack.folder) for name, pack in packs.items()}
    kept = dict(trunk.named_parameters())
    blocks = {name for name in kept if name.startswith("blocks.")}
    assert blocks
    for trained in loaded.values():
        own = dict(trained.model.trunk.named_parameters())
        assert {name for name in blocks if own[name].data_ptr() != kept[name].data_ptr()} == set()
    for name, pack in packs.items():
        shared = json.loads((pack.folder / "pack.json").read_text())["trunk"]["shared"]
        assert {key.removeprefix("trunk.") for key in shared} >= blocks
        assert (loaded[name].task, loaded[name].description["task"]) == (name, name)


def test_packs_answer_as_their_runs(runs: dict[str, RunFolder]) -> None:
    trunk = vitrail.load_model(runs["detect"].path.parent / "trunk")
    image = torch.randint(256, (3, 64, 80), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    for run in runs.values():
        pack = run.path / "pack" if (run.path / "pack").is_dir() else pack_run(run.path).folder
        said, wanted = (trained.predict(image) for trained in (vitrail.load_pack(trunk, pack), load_trained(run.path)))
        assert not isinstance(said, list)
        assert not isinstance(wanted, list)
        assert said.record() == wanted.record()


def test_another_trunk_is_refused(runs: dict[str, RunFolder], tmp_path: Path) -> None:
    run = runs["detect"]
    pack = run.path / "pack" if (run.path / "pack").is_dir() else pack_run(run.path).folder
    other = vitrail.load_model(run.path.parent / "trunk")
    with torch.no_grad():
        next(other.blocks.parameters()).add_(1.0)
    with pytest.raises(ValueError, match="is a pack for the trunk"):
        vitrail.load_pack(other, pack)
