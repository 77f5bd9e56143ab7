"""Several processes: sharded models, one that dies, one that fails, and where each stands."""

import csv
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from shrunk import small_model
from tiny_runs import run_in, run_two, start, wait_for_step
from torch import nn
from warm import WarmProcess

import vitrail
from vitrail.settings.learning import OptimizerSettings
from vitrail.settings.running import RunSettings
from vitrail.training.parallel import launch
from vitrail.training.parallel.distributed import World, choose_gpu, is_lost_connection, joined_world
from vitrail.training.parallel.launch import MachinePlace, find_place, run_together
from vitrail.training.parallel.sharding import blocks_of, shard, use_divided_updates, whole
from vitrail.training.runs.checkpoint import Checkpoints
from vitrail.training.runs.run_folder import RunFolder

# Dropped paths are drawn by each process for its own images. The last batch of val is a single image, which leaves one
# of two processes without any.
WORDS = (
    "regularisation.drop_path=0",
    "data=shapes:size=16,count=48,val=17",
    "epochs=12",
    "evaluation.every=4",
    "run.save_minutes=0.0001",
)
LAST_STEP = 36


def launch_two(folder: Path, *words: str) -> WarmProcess:
    """`vitrail train`, which starts two processes."""
    return start(folder, *WORDS, *words, devices=2)


def numbers_of(run: RunFolder, name: str) -> dict[int, float]:
    return {record["step"]: record[name] for record in run.read_metrics() if name in record}


def assert_same_run(first: RunFolder, second: RunFolder) -> None:
    """The same but for the order in which numbers are summed, which small differences grow from."""
    assert numbers_of(first, "count") == numbers_of(second, "count")
    for name in ("negative_log_likelihood", "loss"):
        one, other = numbers_of(first, name), numbers_of(second, name)
        common = sorted(one.keys() & other.keys())  # how often the loss is written down depends on the clock
        assert len(common) >= 2
        assert [one[step] for step in common] == pytest.approx([other[step] for step in common], rel=1e-5)
    weights, others = (vitrail.load_model(run.model).state_dict() for run in (first, second))
    assert all(torch.allclose(weights[name], others[name], atol=1e-4) for name in others)


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """In one process, with all its checkpoints."""
    return run_in(tmp_path_factory.mktemp("runs") / "whole", *WORDS, "run.keep=100")


def test_a_sharded_run_stopped_by_ctrl_c_goes_on_in_one_process(tmp_path: Path, whole_run: RunFolder) -> None:
    folder = tmp_path / "stopped"
    process = launch_two(folder, "run.sharding=full", "run.micro_batch=null")  # which is measured when it is divided
    wait_for_step(process, folder, 4)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 130, output
    assert output.count(f"stopped and saved; to go on: vitrail train out={folder}") == 1
    assert "Traceback" not in output
    newest = Checkpoints(folder / "checkpoints").newest()
    assert newest is not None
    assert sorted(path.name for path in newest.iterdir()) == ["common.pt", "rank_00000.pt", "rank_00001.pt"]
    assert_same_run(run_in(folder, *WORDS), whole_run)


def test_a_run_of_one_process_goes_on_sharded_to_its_end(tmp_path: Path, whole_run: RunFolder) -> None:
    folder = tmp_path / "grown"
    shutil.copytree(whole_run.path, folder)
    shutil.rmtree(folder / "model")
    for step in Checkpoints(folder / "checkpoints").steps():
        if step > LAST_STEP - 6:
            (folder / "checkpoints" / f"step_{step:09d}.pt").unlink()
    run_two(folder, *WORDS, "run.sharding=full", "run.checkpointing=true")
    assert_same_run(RunFolder(folder), whole_run)


@pytest.mark.skipif(sys.platform != "linux", reason="finds the process in /proc")
def test_a_killed_rank_ends_the_job_with_one_line_and_the_run_goes_on(tmp_path: Path, whole_run: RunFolder) -> None:
    folder = tmp_path / "killed"
    process = launch_two(folder)
    wait_for_step(process, folder, 4)
    os.kill(child_of_rank(process.pid, 1), signal.SIGKILL)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 128 + signal.SIGKILL, output
    assert output.count("vitrail: error: rank 1 was ended by SIGKILL; run the same command to go on") == 1
    assert "Traceback" not in output
    assert_same_run(run_in(folder, *WORDS), whole_run)


def child_of_rank(parent: int, rank: int) -> int:
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        if f"RANK={rank}".encode() in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
            return int(child)
    raise AssertionError(f"no rank {rank} among the processes of {parent}")


def test_broken_files_of_every_process_are_listed(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0)
    broken = set()
    for split, count in (("train", 32), ("val", 4)):
        for place in range(count):
            path = tmp_path / "data" / split / ("ab"[place % 2]) / f"{place}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(numbers.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(path)
            if split == "train" and place % 4 == 1:
                path.write_bytes(path.read_bytes()[:60])
                broken.add(path.name)
    words = (f"data={tmp_path / 'data'}", "epochs=1", "augmentation.repeats=1", "data.max_broken=1", "workers=0")
    run_two(tmp_path / "run", *words)
    with RunFolder(tmp_path / "run").quarantine_file.open(newline="") as file:
        listed = [Path(row["path"]).name for row in csv.DictReader(file)]
    assert sorted(listed) == sorted(broken)


def test_sharding_over_one_process_is_the_plain_model(tmp_path: Path) -> None:
    words = ("epochs=1", "run.sharding=full")
    one, other = (run_in(tmp_path / name, *words[: 1 + place]) for place, name in enumerate(("plain", "full")))
    weights, others = (vitrail.load_model(run.model).state_dict() for run in (one, other))
    assert all(torch.equal(weights[name], others[name]) for name in weights)


def test_what_cannot_be_sharded_is_refused() -> None:
    world, device = World(num_ranks=2), torch.device("cpu")
    with pytest.raises(ValueError, match="sharding=full does not go with precision=fp16: use precision=bf16"):
        shard(nn.Linear(2, 2), world=world, device=device, dtype=torch.float16)
    model = nn.Linear(2, 2)
    model.gate = nn.Parameter(torch.tensor(1.0))
    with pytest.raises(ValueError, match="gate is a single number"):
        shard(model, world=world, device=device, dtype=torch.float32)


def test_blocks_are_found_in_trunk_and_class_stage_and_in_models_of_timm() -> None:
    with torch.device("meta"):
        cait = vitrail.create_model("cait_xxs24")
        swin = vitrail.create_model("timm/swin_tiny_patch4_window7_224")
    assert len(blocks_of(cait)) == 24 + 2
    assert len(blocks_of(swin)) == 2 + 2 + 6 + 2


def test_a_state_without_divided_tensors_is_whole() -> None:
    state = {"step": 3, "model": {"weight": torch.ones(2)}, "groups": [{"betas": (0.9, 0.99)}]}
    assert whole(state) == state


def test_errors_of_collectives_are_told_from_others() -> None:
    assert is_lost_connection(RuntimeError("[third_party/gloo/gloo/transport/tcp/pair.cc] Connection closed by peer"))
    assert is_lost_connection(torch.distributed.DistBackendError("NCCL error"))
    assert not is_lost_connection(RuntimeError("shapes don't match"))


def run_programs(program: str, capfd: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """A small program in two processes: the exit code and what was said."""
    place = MachinePlace(address="127.0.0.1", port="1", first_rank=0, num_ranks=2, num_local=2)
    code = run_together(
        [sys.executable, "-S", "-c", f"import os, sys, time; rank = os.environ['RANK']\n{program}"], place
    )
    return code, capfd.readouterr().err


def test_an_error_of_one_process_alone_is_passed_on(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_GRACE_SECONDS", 0.2)
    program = "if rank == '1':\n  print('vitrail: error: no such device', file=sys.stderr); sys.exit(2)\ntime.sleep(60)"
    assert run_programs(program, capfd) == (2, "vitrail: error: rank 1: no such device\n")


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_process_that_is_interrupted_alone_ends_the_job(
    rank: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_SAVING_SECONDS", 0.2)
    said = f"vitrail: error: rank {rank} was interrupted, and not the others; run the same command to go on\n"
    assert run_programs(f"if rank == {rank!r}: sys.exit(130)\ntime.sleep(60)", capfd) == (130, said)


def test_processes_that_save_and_stop_because_one_was_told_to_have_stopped_well(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert run_programs("time.sleep(0.3 * (rank == '0')); sys.exit(130)", capfd) == (130, "")


def test_sigterm_goes_to_all_processes_and_the_job_ends_with_their_code(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def tell() -> None:
        while len(list(tmp_path.iterdir())) < 2 or signal.getsignal(signal.SIGTERM) is signal.SIG_IGN:
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGTERM)

    program = f"""import signal
signal.signal(signal.SIGTERM, lambda *_: sys.exit(85))
open(os.path.join({str(tmp_path)!r}, rank), 'w').close()
time.sleep(60)"""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # until the launcher listens
    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        assert run_programs(program, capfd) == (85, "")
    finally:
        signal.signal(signal.SIGTERM, before)
    thread.join()


def test_an_error_that_all_processes_find_is_said_once(capfd: pytest.CaptureFixture[str]) -> None:
    program = "time.sleep(0.3 * (rank == '0')); print('vitrail: error: no data', file=sys.stderr); sys.exit(2)"
    assert run_programs(program, capfd) == (2, "vitrail: error: no data\n")


def test_a_crash_of_one_process_is_shown_in_full(capfd: pytest.CaptureFixture[str]) -> None:
    program = "if rank == '1': raise KeyError('lost')\nsys.exit(75)"
    code, said = run_programs(program, capfd)
    assert code == 1
    assert "KeyError: 'lost'" in said
    assert said.endswith("vitrail: error: rank 1 ended with exit code 1; run the same command to go on\n")


def test_processes_that_end_well_say_nothing_but_the_main_one(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_programs("print('rank', rank, file=sys.stderr)", capfd) == (0, "rank 0\n")


def test_a_job_on_several_machines_finds_its_place() -> None:
    settings = RunSettings(devices=4, nodes=2)
    master = {"MASTER_ADDR": "first", "MASTER_PORT": "29500"}
    with pytest.raises(ValueError, match="nodes=2 needs MASTER_PORT, NODE_RANK in the environment of every machine"):
        find_place(settings, {"MASTER_ADDR": "first"})
    with pytest.raises(ValueError, match="NODE_RANK is 2: with nodes=2 it must be a whole number from 0 to 1"):
        find_place(settings, {**master, "NODE_RANK": "2"})
    place = find_place(settings, {**master, "SLURM_NODEID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0"})
    assert (place.first_rank, place.num_ranks, place.local_rank) == (4, 8, None)
    environment = place.environment(3)
    assert [environment[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")] == ["7", "8", "3"]
    assert [environment[name] for name in master] == ["first", "29500"]


@pytest.mark.parametrize(("nodes", "rank"), [(2, "6"), (1, "2")])
def test_a_task_that_slurm_started_for_each_device_is_one_of_the_processes(nodes: int, rank: str) -> None:
    environment = {
        "MASTER_ADDR": "first",
        "MASTER_PORT": "29500",
        "SLURM_NODEID": str(nodes - 1),
        "SLURM_STEP_NUM_TASKS": str(4 * nodes),
        "SLURM_LOCALID": "2",
    }
    place = find_place(RunSettings(devices=4, nodes=nodes), environment)
    assert place.local_rank == 2
    assert place.environment(2)["RANK"] == rank


def test_each_process_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_LOCALID", raising=False)
    assert choose_gpu(3, 4) == 3
    with pytest.raises(ValueError, match="there are 4 GPUs on this machine, too few for its processes: lower devices"):
        choose_gpu(4, 4)
    monkeypatch.setenv("SLURM_LOCALID", "3")
    assert choose_gpu(3, 1) == 0


def test_a_state_that_cannot_be_divided_is_refused() -> None:
    optimizer = OptimizerSettings(name="adafactor").build(small_model("resmlp_s12"))
    with pytest.raises(ValueError, match="sharding=full can't divide the state of Adafactor: use another optimizer"):
        use_divided_updates(optimizer)


def test_a_loss_that_is_not_finite_costs_two_processes_one_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_once.py").write_text(
        "from torch.nn import functional\n"
        "calls = 0\n"
        "def loss(logits, targets):\n"
        "    global calls\n"
        "    calls += 1\n"
        "    return functional.cross_entropy(logits, targets) * (float('nan') if calls == 20 else 1.0)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITRAIL_OWN", "broken_once:loss")
    run_two(tmp_path / "run", *WORDS, "objective.loss=broken_once:loss", "run.on_nan=skip")
    [*_, last] = [record for record in RunFolder(tmp_path / "run").read_metrics() if record["kind"] == "train"]
    assert (last["step"], last["num_skipped"]) == (LAST_STEP, 1)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"WORLD_SIZE": "", "MASTER_PORT": ""}, "RANK is set in the environment and WORLD_SIZE, MASTER_PORT is not: "),
        ({"RANK": "2"}, "RANK is 2 in the environment and WORLD_SIZE 2: ranks go from 0 to 1"),
        ({"RANK": "-1"}, "RANK is '-1' in the environment: it must be a whole number"),
        ({"LOCAL_RANK": "one"}, "LOCAL_RANK is 'one' in the environment"),
    ],
)
def test_a_place_that_can_not_be_is_one_line(
    changes: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", **changes}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"^{said}") as caught, joined_world(torch.device("cpu")):
        pass
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system forks no processes")
def test_workers_of_a_process_that_was_killed_end_with_the_job(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    program = f"""if rank == '1':
    if (worker := os.fork()) == 0: time.sleep(60)
    open({str(tmp_path / "worker")!r}, 'w').write(str(worker))
    os.kill(os.getpid(), 9)
sys.exit(75 if os.path.exists({str(tmp_path / "worker")!r}) else time.sleep(0.5))"""
    assert run_programs(program, capfd)[0] == 128 + signal.SIGKILL
    worker = int((tmp_path / "worker").read_text())
    for _ in range(1000):  # the system takes a moment to end it
        state = Path(f"/proc/{worker}/stat")
        if not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] == "Z":
            return
        time.sleep(0.005)
    pytest.fail(f"process {worker} is still there")
