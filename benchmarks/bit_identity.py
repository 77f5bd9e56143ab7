"""Whether training still ends with the same bits: a table of short runs, recorded once and compared after a change.

python benchmarks/bit_identity.py record FILE.json [--only NAME ...]
python benchmarks/bit_identity.py compare FILE.json [--only NAME ...]

Every run is a `vitrail train` of the importable source in a process of its own, on the embedded data, with all that
decides the order of sums fixed. Bits are those of one processor and one version of torch: record and compare on the
same machine. `compare` exits with 1 if a run differs.
"""

import argparse
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load_file

SECOND_STAGE = 10**9  # what the numbers of checkpoints begin with there
PACKAGES = ("torch", "torchvision", "timm", "numpy", "pillow")  # whose versions may change bits
# What a clock has no part in. Names are listed so that a new figure beside them makes no difference.
STEP_FIGURES = ("stage", "step", "epoch", "loss", "lr", "gradient_norm")
EVALUATION_FIGURES = ("stage", "step", "epoch", "top1", "top5", "coarse_top1", "negative_log_likelihood", "count")

# Parts of a step are equally large in every run: 16 images, in two micro-batches or two processes of two.
COMMON = (
    "data=shapes:size=16,count=64,val=32",
    "image_size=16",
    "batch_size=16",
    "epochs=2",
    "lr=3e-3",
    "workers=0",
    "precision=fp32",
    "optimizer.reference_batch=null",
    "schedule.warmup_epochs=0.5",
    "evaluation.image_size=null",
    "evaluation.every=1",
    "run.device=cpu",
    "run.micro_batch=8",
    "run.threads=1",
)
# Models are narrow, and begun so that their first answers are far from even: then small changes show.
NARROW = "patch_size: 4, dim: 16, init_std: null"
CAIT = ("model=cait_xxs24", f"model.settings={{{NARROW}, depth: 2, num_heads: 2, layer_scale: 1.0}}")
VIT = ("model=deit_tiny", f"model.settings={{{NARROW}, depth: 3, num_heads: 2}}")
RESMLP = ("model=resmlp_s12", f"model.settings={{{NARROW}, depth: 2, layer_scale: 1.0}}")
PATCHCONVNET = ("model=patchconvnet_s60", f"model.settings={{{NARROW}, depth: 2, layer_scale: 1.0}}")
RESNET = ("model=timm/test_resnet", "image_size=32")
MIXED = (
    "augmentation.policy=rand",
    "augmentation.colour_jitter=0.3",
    "augmentation.erasing=0.25",
    "blend.mixup=0.8",
    "blend.cutmix=1.0",
    "objective.smoothing=0.1",
    "regularisation.drop_path=0.2",
)
THREE = ("augmentation.policy=three", "augmentation.crop=simple", "augmentation.interpolation=random")
PLAIN = ("regularisation.drop_path=0", "regularisation.ema=null")
GRAFIT = (
    *CAIT,
    "lr=0.1",
    "data.level=coarse",
    "embedding.views=2",
    "embedding.dim=8",
    "embedding.hidden_dim=12",
    "embedding.target_decay=0.9",
    "regularisation.drop_path=0",
)
STAGES = "stages=[{epochs: 2}, {epochs: 2, image_size: 24, lr: 1e-4, augmentation.erasing: 0.0}]"
CACHE = ("teacher=classify", "teacher.cache=views:2", "teacher.cache_folder=cache", "teacher.cache_top=5")


class Run(NamedTuple):
    """One row of the table: what follows `vitrail train`, beside COMMON and the folder, which has the run's name."""

    recipe: str
    settings: tuple[str, ...]
    needs: tuple[str, ...] = ()  # runs that it learns or starts from
    kill_after: int | None = None  # the number of a checkpoint after which it is killed, to go on by the same command
    is_cut_short: bool = False  # by early stopping: then its last step is written down only if the clock says so


RUNS: Mapping[str, Run] = {
    # Labels
    "classify": Run("small", (*CAIT, *MIXED, "regularisation.ema=null")),
    "average": Run(
        "small", (*CAIT, *MIXED, *THREE, "blend.per=pair", "regularisation.ema=0.3", "evaluation.layers=true")
    ),
    "fashion": Run("small", ("data=fashion", "image_size=28", "epochs=1", "steps=8")),
    "strikes_back": Run("a2", RESNET),
    "deit": Run("deit_small", VIT),
    "deit3": Run("deit3_small_400", (*VIT, "against=null", "epochs=4")),
    "balanced": Run("small", (*CAIT, *PLAIN, "data.balanced=true", "objective.class_weights=true")),
    "class_weights": Run("small", (*CAIT, *MIXED, "objective.loss=bce", "objective.class_weights=true")),
    "resmlp": Run("resmlp_s12", RESMLP),
    "patchconvnet": Run("patchconvnet_s60", PATCHCONVNET),
    "timm_vit": Run("small", ("model=timm/test_vit", "model.settings={}", "image_size=32", *PLAIN)),
    "timm_attention": Run("small", (*RESNET, "model.settings={pool: attention, num_heads: 2}", *PLAIN)),
    # How the weights move
    "sgd_in_steps": Run("resmlp_s12_old", (*RESMLP, "lr=0.1", "schedule.decay_epochs=1", "epochs=3")),
    "constant": Run("small", (*VIT, "schedule.kind=constant", "schedule.min_lr=0", "regularisation.dropout=0.1")),
    "early_stop": Run(
        "small", (*CAIT, *PLAIN, "lr=1e-12", "epochs=8", "regularisation.early_stop=2"), is_cut_short=True
    ),
    "stages": Run("small", (*VIT, *MIXED, STAGES)),
    "fine_tune": Run(
        "fine_tune",
        (*CAIT, "init=classify", "data.level=coarse", "train_only=attention,norm", "optimizer.layer_decay=0.75"),
        needs=("classify",),
    ),
    "bfloat16": Run("small", (*CAIT, *MIXED, "precision=bf16")),
    "float16": Run("small", (*VIT, *MIXED, "precision=fp16")),
    "recomputed": Run("small", (*CAIT, *MIXED, "run.checkpointing=true")),
    # Teachers
    "distil_soft": Run("small", (*VIT, *MIXED, "teacher=classify", "teacher.kind=soft"), needs=("classify",)),
    "distil_hard": Run(
        "small",
        (*RESMLP, "teacher=classify,average", "teacher.kind=hard", "teacher.image_size=24"),
        needs=("classify", "average"),
    ),
    "distil_token": Run("deit_small_distilled", (*VIT, "teacher=classify"), needs=("classify",)),
    "distil_token_of_cait": Run("cait_xxs24_distilled", (*CAIT, "teacher=classify"), needs=("classify",)),
    "cache_filled": Run("small", (*VIT, *CACHE, "epochs=3"), needs=("classify",)),
    "cache_read": Run(
        "small", (*CAIT, *CACHE, "blend.mixup=0.8", "epochs=3", "seed=1", "teacher.kind=soft"), needs=("cache_filled",)
    ),
    # Embeddings
    "grafit": Run("grafit_cifar100", GRAFIT),
    "grafit_fc": Run("grafit_fc_cifar100", (*GRAFIT, "embedding.views=4", "embedding.target_schedule=byol")),
    "snca": Run("grafit_snca_cifar100", (*GRAFIT, "embedding.views=1", "schedule.decay_epochs=1", "epochs=3")),
    "triplet": Run(
        "fine_tune_grafit",
        (
            *GRAFIT,
            "lr=3e-3",
            "init=classify",
            "embedding.triplet=0.5",
            "embedding.cross_entropy=1",
            "embedding.retrieve=trunk",
        ),
        needs=("classify",),
    ),
    "clusters": Run(
        "grafit_clusterfit_plus_cifar100",
        (*CAIT, "lr=0.1", "clusters.number=6", "clusters.of=classify"),
        needs=("classify",),
    ),
    # Several processes
    "two_processes": Run("small", (*CAIT, *MIXED, "devices=2", "run.micro_batch=4")),
    "sharded": Run("small", (*CAIT, *MIXED, "devices=2", "run.micro_batch=4", "sharding=full", "optimizer.clip=0.1")),
    "grafit_of_two": Run("grafit_cifar100", (*GRAFIT, "devices=2", "run.micro_batch=4")),
    # Killed with SIGKILL, and gone on with; the first must end as `stages` does
    "killed": Run("small", (*VIT, *MIXED, STAGES), kill_after=SECOND_STAGE + 2),
    "killed_grafit": Run("grafit_cifar100", (*GRAFIT, "epochs=4"), kill_after=5),
    "killed_student": Run(
        "deit_small_distilled", (*VIT, *CACHE, "teacher.kind=token", "epochs=5"), needs=("classify",), kill_after=6
    ),
}


def machine() -> str:
    """What the bits depend on beside the source."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), name)
    return f"{name}, {', '.join(f'{package} {importlib.metadata.version(package)}' for package in PACKAGES)}"


def source() -> Path:
    """The folder that vitrail is imported from here; found without importing it."""
    spec = importlib.util.find_spec("vitrail")
    if spec is None or spec.origin is None:
        raise SystemExit("vitrail cannot be imported: install it, or set PYTHONPATH=src")
    return Path(spec.origin).resolve().parents[1]


def with_needs(names: Iterable[str]) -> list[str]:
    """The names, each after the runs that it needs."""
    ordered: list[str] = []
    for name in names:
        ordered += [found for found in [*with_needs(RUNS[name].needs), name] if found not in ordered]
    return ordered


def words_of(name: str) -> list[str]:
    """What follows `python -m vitrail`; a later word for the same key holds."""
    run = RUNS[name]
    saving = () if run.kill_after is None else ("run.save_minutes=0.0001",)
    return ["train", run.recipe, *COMMON, *run.settings, *saving, f"out={name}"]


def run_all(names: Iterable[str]) -> Iterator[tuple[str, dict[str, Any], float]]:
    """Each run's name, its bits and how many seconds it took; one after the other, in one folder."""
    environment = {**os.environ, "PYTHONPATH": str(source()), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            started = time.monotonic()
            train(name, folder=Path(folder), environment=environment)
            bits = bits_of(Path(folder) / name, is_cut_short=RUNS[name].is_cut_short)
            yield name, bits, time.monotonic() - started


def train(name: str, *, folder: Path, environment: Mapping[str, str]) -> None:
    """Train to the end, by way of a kill where the table says so."""
    kill_after = RUNS[name].kill_after
    if kill_after is not None:
        process = start(name, folder=folder, environment=environment)
        while process.poll() is None and newest_checkpoint(folder / name) < kill_after:
            time.sleep(0.005)
        process.kill()
        said, _ = process.communicate()
        if newest_checkpoint(folder / name) < kill_after or (folder / name / "model").exists():
            raise SystemExit(f"{name} could not be killed in the middle:\n{said}")
    process = start(name, folder=folder, environment=environment)
    said, _ = process.communicate()
    if process.returncode != 0:
        raise SystemExit(f"{name} failed: python -m vitrail {' '.join(words_of(name))}\n{said}")


def start(name: str, *, folder: Path, environment: Mapping[str, str]) -> subprocess.Popen[str]:
    """`vitrail train` in a process of its own."""
    command = [sys.executable, "-m", "vitrail", *words_of(name)]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def newest_checkpoint(run: Path) -> int:
    """Its number, -1 where there is none."""
    return max((int(path.stem.removeprefix("step_")) for path in run.glob("checkpoints/step_*")), default=-1)


def bits_of(run: Path, *, is_cut_short: bool = False) -> dict[str, Any]:
    """What a run has come to: hashes of its weights, its answers on val and its figures, and the last loss.

    Of a run that was cut short it is the first loss, which is always written down.
    """
    with np.load(run / "predictions.npz") as archive:
        predictions = {name: archive[name] for name in archive.files}
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    step = [record for record in records if record["kind"] == "train"][0 if is_cut_short else -1]
    evaluations = [record for record in records if record["kind"] == "eval"]
    figures = [{name: step[name] for name in STEP_FIGURES}]
    figures += [{name: record.get(name) for name in EVALUATION_FIGURES} for record in evaluations]
    return {
        "weights": hash_of(load_file(run / "model" / "model.safetensors")),
        "predictions": hash_of(predictions),
        "figures": hashlib.sha256(json.dumps(figures).encode()).hexdigest(),
        "loss": step["loss"],
    }


def hash_of(arrays: Mapping[str, np.ndarray]) -> str:
    """Of names, types, shapes and bytes, in the order of the names; how a file stores them plays no part."""
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def record(file: Path, names: Iterable[str], *, is_part: bool) -> None:
    """Run and write down the bits; a part of the table takes the place of its rows in a file that is there."""
    found = json.loads(file.read_text())["runs"] if is_part and file.exists() else {}
    for name, bits, seconds in run_all(names):
        found[name] = bits
        print(f"{name:24}{seconds:6.1f} s  loss {bits['loss']:.4f}", flush=True)
    file.write_text(json.dumps({"machine": machine(), "runs": found}, indent=2) + "\n")


def compare(file: Path, names: Sequence[str]) -> bool:
    """Run again and print what is as it was recorded and what is not; whether everything is."""
    content = json.loads(file.read_text())
    if content["machine"] != machine():
        print(f"recorded with {content['machine']}; here is {machine()}: the bits may differ for that")
    num_same = 0
    for name, bits, seconds in run_all(names):
        before = content["runs"].get(name, {})
        parts = [part for part in bits if bits[part] != before.get(part)]
        verdict = f"DIFFERENT: {', '.join(parts)}; loss {before.get('loss')} -> {bits['loss']}" if parts else "same"
        print(f"{name:24}{seconds:6.1f} s  {verdict if before else 'NOT RECORDED'}", flush=True)
        num_same += not parts
    print(f"{num_same} of {len(names)} runs are the same")
    return num_same == len(names)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("file", type=Path, metavar="FILE.json")
    parser.add_argument("--only", nargs="+", choices=RUNS, metavar="NAME", help="these runs, and those they need")
    arguments = parser.parse_args()
    names = with_needs(arguments.only or RUNS)
    print(f"{source()} on {machine()}", flush=True)
    if arguments.action == "record":
        record(arguments.file, names, is_part=arguments.only is not None)
        return 0
    return 0 if compare(arguments.file, names) else 1


if __name__ == "__main__":
    sys.exit(main())
