"""Checkpoints: what comes back, what is kept, and what a kill, a full disk or a damaged file leaves."""

import contextlib
import errno
import os
from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
import torch
from shrunk import small_model
from together import run_worlds
from torch import nn

from vitrail.settings.learning import OptimizerSettings
from vitrail.storage import write_whole
from vitrail.training.loop.ema import MovingAverage
from vitrail.training.parallel.distributed import World
from vitrail.training.runs.checkpoint import CheckpointError, Checkpoints, is_whole, load_checkpoint
from vitrail.training.runs.checkpoint_writer import CheckpointWriter
from vitrail.training.runs.divided_checkpoint import COMMON_FILE, part_file, sizes_of


def state_of(step: int, size: int = 10) -> dict[str, Any]:
    return {"step": step, "weights": torch.full((size,), float(step))}


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_runs_state_comes_back_bit_by_bit(tmp_path: Path) -> None:
    model = small_model("cait_xxs24")
    average = MovingAverage(model, decay=0.99, warmup=True)
    states = {"model": model.state_dict(), "average": average.state_dict(), "random": torch.get_rng_state()}
    for name in ("adamw", "lamb", "sgd"):
        optimizer = OptimizerSettings(name=name, layer_decay=0.75).build(model)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        states[name] = optimizer.state_dict()
    states["plain"] = {"best": 81.25, "epoch": 3, "name": "run", "flags": [True, None], "pair": (1, 2.0), "bytes": b"x"}
    path = Checkpoints(tmp_path).save(states, step=7)
    assert_same(load_checkpoint(path), states)


def assert_same(loaded: Any, saved: Any) -> None:
    if isinstance(saved, torch.Tensor):
        assert torch.equal(loaded, saved)
        assert loaded.dtype == saved.dtype
    elif isinstance(saved, dict):
        assert list(loaded) == list(saved)
        for key in saved:
            assert_same(loaded[key], saved[key])
    elif isinstance(saved, (list, tuple)):
        assert len(loaded) == len(saved)
        for one, other in zip(loaded, saved, strict=True):
            assert_same(one, other)
    else:
        assert loaded == saved


def test_the_last_ones_and_the_best_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "folder", keep_last=2)
    assert checkpoints.newest() is None
    for step in (10, 20, 30, 40):
        checkpoints.save(state_of(step), step=step, is_best=step in (10, 20))
    assert names_in(checkpoints.folder) == ["best.pt", "step_000000030.pt", "step_000000040.pt"]
    newest = checkpoints.newest()
    assert newest is not None
    assert load_checkpoint(newest)["step"] == 40
    assert load_checkpoint(checkpoints.folder / "best.pt")["step"] == 20


def test_the_best_is_copied_where_the_file_system_has_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    checkpoints = Checkpoints(tmp_path, keep_last=1)
    checkpoints.save(state_of(1), step=1, is_best=True)
    checkpoints.save(state_of(2), step=2)
    assert load_checkpoint(tmp_path / "best.pt")["step"] == 1


def test_a_checkpoint_that_can_not_be_removed_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = Checkpoints(tmp_path, keep_last=1)
    checkpoints.save(state_of(1), step=1)
    remove = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path.suffix == ".pt":
            raise OSError(errno.EBUSY, "Device or resource busy")
        remove(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    assert checkpoints.save(state_of(2), step=2) == checkpoints.newest()
    assert "step_000000001.pt is no longer needed but can't be removed (Device or resource busy)" in caplog.text


def test_the_same_step_can_be_saved_again(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save({"try": 1}, step=5, is_best=True)
    checkpoints.save({"try": 2}, step=5, is_best=True)
    assert load_checkpoint(tmp_path / "step_000000005.pt") == {"try": 2}
    assert load_checkpoint(tmp_path / "best.pt") == {"try": 2}
    checkpoints.save({"try": 3}, step=5)  # a new file takes the name: the best, which shared the old one, keeps it
    assert load_checkpoint(tmp_path / "best.pt") == {"try": 2}


def test_the_newest_is_by_number_and_other_files_are_left_alone(tmp_path: Path) -> None:
    for name in ("step_99.pt", "step_000000099.pt.backup", "notes.txt"):
        (tmp_path / name).write_text("not a checkpoint")
    checkpoints = Checkpoints(tmp_path, keep_last=3)
    for step in (9, 10, 1_000_000_000_0):
        checkpoints.save(state_of(step), step=step)
    assert checkpoints.steps() == [9, 10, 10_000_000_000]
    assert len(names_in(tmp_path)) == 6


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "garbage"])
def test_a_damaged_file_is_never_taken(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    checkpoints = Checkpoints(tmp_path, keep_last=3)
    good = checkpoints.save(state_of(1), step=1)
    bad = checkpoints.save(state_of(2, size=1000), step=2)
    content = bytearray(bad.read_bytes())
    middle = content.find(torch.full((1000,), 2.0).numpy().tobytes()) + 2000
    content[middle] ^= 1
    damaged: dict[str, bytes | bytearray] = {
        "cut": content[: len(content) // 2],
        "flipped": content,
        "empty": b"",
        "garbage": b"\x80" * 500,
    }
    bad.write_bytes(damaged[damage])
    assert not is_whole(bad)
    assert checkpoints.newest() == good
    assert "step_000000002.pt is damaged" in caplog.text
    with pytest.raises(ValueError, match=r"step_000000002.pt: damaged, or not a checkpoint"):
        load_checkpoint(bad)


def test_if_none_is_whole_nothing_is_begun_anew_unasked(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "checkpoints").newest() is None
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    for step in (1, 2):
        checkpoints.save(state_of(step), step=step).write_bytes(b"half")
    with pytest.raises(ValueError, match=r"no checkpoint in .*checkpoints is whole, 2 damaged: restore one") as error:
        checkpoints.newest()
    assert "\n" not in str(error.value)


def test_after_a_damaged_one_the_run_goes_on_from_what_it_saves(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep_last=1)
    (tmp_path / "step_000000200.pt").write_bytes(b"half a checkpoint")
    saved = checkpoints.save(state_of(110), step=110)
    assert checkpoints.newest() == saved
    assert checkpoints.steps() == [110]


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """A real limit of the system: a write beyond it fails as on a full disk, in its middle."""
    resource = pytest.importorskip("resource", reason="limits of POSIX")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    "allowed", [0, 1000, 20_000, 400_000], ids=["at once", "in the header", "in a tensor", "near the end"]
)
def test_a_write_that_fails_leaves_the_earlier_ones(tmp_path: Path, allowed: int) -> None:
    checkpoints = Checkpoints(tmp_path, keep_last=1)
    checkpoints.save({"step": 1}, step=1, is_best=True)
    with files_of_at_most(allowed), pytest.raises(CheckpointError) as caught:
        checkpoints.save({"step": 2, "weights": torch.zeros(100_001)}, step=2, is_best=True)
    assert str(caught.value) == (
        f"{tmp_path / 'step_000000002.pt'} could not be written (File too large); the checkpoint of step 1 "
        "is kept: make room or check the disk, then run the same command to go on"
    )
    assert names_in(tmp_path) == ["best.pt", "step_000000001.pt"]
    assert load_checkpoint(tmp_path / "best.pt") == load_checkpoint(tmp_path / "step_000000001.pt") == {"step": 1}


@pytest.mark.parametrize("failing", ["save", "fsync"])
def test_a_full_disk_is_told_in_one_line(tmp_path: Path, failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    checkpoints = Checkpoints(tmp_path, keep_last=1)
    checkpoints.save(state_of(1), step=1)
    with monkeypatch.context() as patch:
        if failing == "fsync":
            patch.setattr(os, "fsync", refuse)
        else:
            patch.setattr(torch, "save", refuse)
        with pytest.raises(CheckpointError) as caught:
            checkpoints.save(state_of(2), step=2)
    assert "No space left on device" in str(caught.value)
    assert "the checkpoint of step 1 is kept" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert names_in(tmp_path) == ["step_000000001.pt"]
    checkpoints.save(state_of(2), step=2)
    assert names_in(tmp_path) == ["step_000000002.pt"]


def test_the_first_checkpoint_that_can_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "occupied").write_text("a file where the folder should be")
    with pytest.raises(CheckpointError, match="there is no earlier checkpoint"):
        Checkpoints(tmp_path / "occupied").save(state_of(1), step=1)


def test_what_a_killed_writer_left_is_not_taken_and_is_cleared(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(state_of(1), step=1)
    seen: list[list[str]] = []

    def write(file: BinaryIO) -> None:
        file.write(b"PK and no more")
        seen.append(names_in(tmp_path))

    write_whole(tmp_path / "step_000000002.pt", write)
    partial = seen[0][0]
    (tmp_path / "step_000000002.pt").rename(tmp_path / partial)  # as if the process had ended while it wrote
    assert checkpoints.newest() == tmp_path / "step_000000001.pt"
    checkpoints.save(state_of(3), step=3)
    assert names_in(tmp_path) == ["step_000000001.pt", "step_000000003.pt"]


class Custom:
    """Something that only code could bring back."""


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"a": {"b": [1, Custom()]}}, r"state\['a'\]\['b'\]\[1\] is a Custom: a checkpoint holds tensors"),
        ({"a": np.float64(1.0)}, r"state\['a'\] is a float64"),
        ({"a": nn.Linear(1, 1)}, r"state\['a'\] is a Linear"),
        ({"a": {(1, 2): 3}}, r"keys of a checkpoint are strings or whole numbers, not \(1, 2\)"),
        ({"a": Path("x")}, r"state\['a'\] is a \w*Path"),
        ({"a": defaultdict(int)}, r"state\['a'\] is a defaultdict"),
        ({"a": torch.Size([1])}, r"state\['a'\] is a Size"),
    ],
)
def test_what_could_not_be_loaded_is_not_saved(tmp_path: Path, state: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Checkpoints(tmp_path).save(state, step=1)
    assert names_in(tmp_path) == []


def test_a_file_that_brings_code_is_refused(tmp_path: Path) -> None:
    torch.save({"model": Custom()}, tmp_path / "step_000000001.pt")
    with pytest.raises(ValueError, match="refused, it holds more than tensors"):
        load_checkpoint(tmp_path / "step_000000001.pt")


def test_other_wrong_files_are_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such checkpoint"):
        load_checkpoint(tmp_path / "missing.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(ValueError, match="holds a list where a checkpoint was expected"):
        load_checkpoint(tmp_path / "list.pt")
    with pytest.raises(ValueError, match="keep_last must be at least 1, not 0"):
        Checkpoints(tmp_path, keep_last=0)


def test_an_ordered_dict_of_torch_is_plain(tmp_path: Path) -> None:
    path = Checkpoints(tmp_path).save({"model": OrderedDict(weight=torch.ones(2))}, step=1)
    assert torch.equal(load_checkpoint(path)["model"]["weight"], torch.ones(2))


class Divided:
    """Two processes that divide a tensor by rows, one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, step: int) -> Path:
        """A folder as two processes write it."""
        rows = torch.arange(10.0).view(5, 2) + step
        folder = self.folder / f"step_{step:09d}.parts"
        folder.mkdir(parents=True)
        for rank, part in enumerate(rows.split((3, 2))):
            torch.save({"/model/weight": part.clone()}, folder / part_file(rank))
        state = {"step": step, "model": {"weight": {"divided tensor": "/model/weight"}}, "groups": [{"lr": 0.1}]}
        torch.save({"state": state, "parts": sizes_of(folder)}, folder / COMMON_FILE)
        return folder


def test_parts_are_put_together_in_the_order_of_ranks(tmp_path: Path) -> None:
    Divided(tmp_path).write(3)
    newest = Checkpoints(tmp_path).newest()
    assert newest is not None
    state = load_checkpoint(newest)
    assert torch.equal(state["model"]["weight"], torch.arange(10.0).view(5, 2) + 3)
    assert (state["step"], state["groups"]) == (3, [{"lr": 0.1}])


@pytest.mark.parametrize("damage", ["missing", "cut", "changed", "common"])
def test_a_folder_with_a_damaged_part_is_passed_over(tmp_path: Path, damage: str) -> None:
    first, second = (Divided(tmp_path).write(step) for step in (1, 2))
    part = second / (COMMON_FILE if damage == "common" else part_file(1))
    content = part.read_bytes()
    if damage == "missing":
        part.unlink()
    elif damage == "changed":
        middle = content.index(torch.tensor([[8.0, 9.0]]).numpy().tobytes()[:4])
        part.write_bytes(content[:middle] + b"\x01\x02" + content[middle + 2 :])
    else:
        part.write_bytes(content[: len(content) // 2])
    assert Checkpoints(tmp_path).newest() == first


def test_files_and_folders_of_parts_take_each_others_place(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep_last=1)
    Divided(tmp_path).write(1)
    assert checkpoints.steps() == [1]
    checkpoints.save(state_of(2), step=2, is_best=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best.pt", "step_000000002.pt"]


def test_one_process_writes_a_folder_alone_and_another_kind_of_best_goes(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep_last=1)
    checkpoints.save(state_of(1), step=1, is_best=True)
    with CheckpointWriter(checkpoints) as writer:
        writer.save_divided(state_of(2), step=2, is_best=True, world=World())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best.parts", "step_000000002.parts"]
    newest = checkpoints.newest()
    assert newest is not None
    assert load_checkpoint(newest)["step"] == load_checkpoint(tmp_path / "best.parts")["step"] == 2


@pytest.mark.parametrize("failing", ["folder", "part 0", "part 1", "common"])
def test_a_full_disk_of_one_process_is_told_and_nobody_waits(
    tmp_path: Path, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(tmp_path, keep_last=1)
    kept = Divided(tmp_path).write(1)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    make, save = Path.mkdir, torch.save

    def refuse_folder(path: Path, *arguments: Any, **settings: Any) -> None:
        if path.name.startswith(".step") and failing == "folder":
            raise full
        make(path, *arguments, **settings)

    def refuse_file(content: dict[str, Any], file: Any) -> None:
        is_part = set(content) == {"rank"}
        if failing == (f"part {content['rank']}" if is_part else "common"):
            raise full
        save(content, file)

    def save_in(world: World) -> str:
        # In place of what a process's part holds, which would need divided tensors.
        writer = CheckpointWriter(checkpoints)
        try:
            writer.save_divided({"rank": world.rank}, step=2, is_best=False, world=world)
            writer.wait()
        except CheckpointError as error:
            return str(error)
        return ""

    def take_apart(state: dict[str, Any], parts: dict[str, Any]) -> dict[str, Any]:
        parts.update(state)
        return {"step": 2}

    monkeypatch.setattr(Path, "mkdir", refuse_folder)
    monkeypatch.setattr(torch, "save", refuse_file)
    monkeypatch.setattr("vitrail.training.runs.divided_checkpoint.take_apart", take_apart)
    messages = run_worlds(2, save_in)
    full_rank = 1 if failing == "part 1" else 0
    assert "No space left on device" in messages[full_rank]
    said = {"folder": "the main process could not begin it", "part 1": "another process could not write its part"}
    assert said.get(failing, "") in messages[1 - full_rank]
    assert all("the checkpoint of step 1 is kept" in message for message in messages if message)
    assert checkpoints.newest() == kept


def save_together(checkpoints: Checkpoints, world: World) -> None:
    with CheckpointWriter(checkpoints) as writer:
        writer.save_divided(state_of(3), step=3, is_best=True, world=world)


def test_two_processes_write_a_folder_together(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for _ in range(2):  # the same step may be saved again
        run_worlds(2, lambda world: save_together(checkpoints, world))
    assert names_in(tmp_path) == ["best.parts", "step_000000003.parts"]
    assert names_in(tmp_path / "step_000000003.parts") == [COMMON_FILE, part_file(0), part_file(1)]
    newest = checkpoints.newest()
    assert newest is not None
    assert_same(load_checkpoint(newest), state_of(3))


def read_share(path: Path) -> float:
    """The part of a mapped file that has been read into this process, of all its mappings."""
    size = resident = 0
    lines = Path("/proc/self/smaps").read_text().splitlines()
    for place, line in enumerate(lines):
        if line.endswith(str(path)):
            size += int(lines[place + 1].split()[1])
            resident += next(int(entry.split()[1]) for entry in lines[place + 1 :] if entry.startswith("Rss:"))
    return resident / size if size else 0.0


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux, which tells what of a file was read")
def test_a_process_reads_its_rows_alone_of_a_checkpoint_in_parts(tmp_path: Path) -> None:
    rows = torch.arange(4 * 1024.0)[:, None].expand(-1, 1024)  # 4 MB a part
    folder = tmp_path / "step_000000001.parts"
    folder.mkdir()
    for rank in range(4):
        torch.save({"weights": rows[1024 * rank : 1024 * (rank + 1)].clone()}, folder / part_file(rank))
    torch.save({"state": {"weights": {"divided tensor": "weights"}}, "parts": sizes_of(folder)}, folder / COMMON_FILE)
    state = load_checkpoint(folder, is_divided=True)
    assert [read_share(folder / part_file(rank)) < 0.1 for rank in range(4)] == [True] * 4
    own = state["weights"].rows(1024, 2048)
    assert torch.equal(own, rows[1024:2048])
    shares = [read_share(folder / part_file(rank)) for rank in range(4)]
    assert shares[1] > 0.9
    assert max(shares[0], *shares[2:]) < 0.1
    assert torch.equal(state["weights"].rows(1000, 1030), rows[1000:1030])
    assert torch.equal(load_checkpoint(folder)["weights"], rows)
