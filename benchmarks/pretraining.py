"""What learning without labels is worth: pre-training, then a short fine-tuning on a tenth of the labels.

python benchmarks/pretraining.py --data FOLDER --out RUNS [--arms scratch dino masked features ...] [--seeds 0]

FOLDER has train/CLASS/* and val/CLASS/*. All arms have the same small trunk and the same fine-tuning, on the same tenth
of the training images; pre-training looks at all of them. `supervised_*` learns from all labels from scratch. Runs are
kept in RUNS: what is finished is not run again, what was interrupted goes on. Printed are the figures of the last
evaluation of both runs, and the minutes of the first.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from head_start import draw

SHARE = 0.1
SIZE = ["image_size=48"]
TRUNK = {"patch_size": 8, "dim": 96, "depth": 5, "num_heads": 3, "init_std": None}
VIT = {**TRUNK, "pool": "average", "layer_scale": 0.1}
# Probes and pictures come at the end alone.
RARE = ["evaluation.every=5", "watch.probe_every=1000", "watch.pictures=null"]
LABELS = [*SIZE, "optimizer.layer_decay=1.0"]
FINE_TUNING = [*LABELS, "epochs=60", "evaluation.every=60"]


class Arm(NamedTuple):
    """A way to come to weights, and what it is fine-tuned as."""

    recipe: str | None
    words: list[str]
    model: str = "deit3_tiny"
    settings: Mapping[str, object] = VIT


def with_stem(stem: str) -> dict[str, object]:
    """The trunk behind another stem."""
    return {**VIT, "stem": stem}


MASKED = [*SIZE, "epochs=40", "watch.knn=false"]
SUPERVISED = [*LABELS, "epochs=20", "evaluation.every=10"]
# Pictures of 32 pixels have nothing to show in a crop of a twentieth, and nothing to lose by a blur.
CROPS = ["crops.num_local=2", "crops.local_size=24", "crops.local.scale=[0.2,0.5]"]
DINO = [*SIZE, *CROPS, *(f"crops.{crop}.blur=0" for crop in ("first", "second", "local"))]
STEMS = ("linear", "conv_bn", "hmlp_bn", "hmlp_ln")
RESMLP = {**{key: value for key, value in TRUNK.items() if key != "num_heads"}, "layer_scale": 0.1}
ARMS = {
    "scratch": Arm(None, []),
    "dino": Arm("dino_small", [*DINO, "epochs=40"]),
    "masked": Arm("masked_small", MASKED),
    "features": Arm("features_small", [*SIZE, "epochs=40", "teacher.cache=views:2", "teacher.image_size=112"]),
    "scratch_resmlp": Arm(None, [], "resmlp_s12", RESMLP),
    "dino_resmlp": Arm("dino_small", [*DINO, "epochs=25"], "resmlp_s12", RESMLP),
    **{f"masked_{stem}": Arm("masked_small", MASKED, settings=with_stem(stem)) for stem in STEMS if stem != "linear"},
    **{f"supervised_{stem}": Arm("masked_small_labels", SUPERVISED, settings=with_stem(stem)) for stem in STEMS},
}


def run(verb: str, recipe: str, out: Path, words: list[str]) -> dict[str, float]:
    """The last evaluation of a run, and its minutes; what is finished is read only."""
    command = [sys.executable, "-m", "vitrail", verb, recipe, f"out={out}", *words]
    with (out.parent / f"{out.name}.log").open("a") as log:
        subprocess.run(command, check=True, stdout=log, stderr=subprocess.STDOUT)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return {key: value for line in lines for key, value in line.items() if isinstance(value, (int, float))}


def describe(figures: dict[str, float]) -> str:
    """The figures of a pre-training in a few words."""
    keys = ("knn_top1", "probe_top1", "top1")
    return ", ".join(f"{key} {figures[key]:.1f}" for key in keys if key in figures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--teacher", default="deit_tiny", help="of the arm features: a name or a saved model")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    arguments = parser.parse_args()
    per_class = [len(list(place.iterdir())) for place in (arguments.data / "train").iterdir()]
    few = arguments.out / "few"
    if not few.exists():
        draw(arguments.data, few, per_class=round(SHARE * sum(per_class) / len(per_class)), seed=0)
    print("| arm | seed | at its end | fine-tuned on a tenth, top-1 % |\n|---|---|---|---|", flush=True)
    for seed in arguments.seeds:
        for name in arguments.arms:
            arm, out = ARMS[name], arguments.out / f"{name}_{seed}"
            model = [f"model={arm.model}", f"model.settings={json.dumps(arm.settings)}", f"seed={seed}"]
            before: dict[str, float] = {}
            if arm.recipe is not None:
                is_labelled = arm.recipe.endswith("_labels")
                words = [f"data={arguments.data}", *model, *arm.words, *(["init=null"] if is_labelled else RARE)]
                words += [f"teacher={arguments.teacher}"] if name == "features" else []
                before = run("train" if is_labelled else "pretrain", arm.recipe, out, words)
            after = "-"
            if not name.startswith("supervised"):
                init = f"init={out}" if arm.recipe else "init=null"
                words = [f"data={few}", *model, init, *FINE_TUNING]
                figures = run("train", "masked_small_labels", arguments.out / f"{name}_{seed}_labels", words)
                after = f"{figures['top1']:.1f}"
            print(f"| {name} | {seed} | {describe(before) or '-'} | {after} |", flush=True)


if __name__ == "__main__":
    main()
