"""One image at a time, and a batch: folded vitrail models in eager torch against ONNX Runtime and OpenVINO on the same.

python benchmarks/one_image.py [--rounds 40] [--processes 3] [--threads 1] [--only cait] [--clock cpu]

Both engines run an export of the folded model itself; an engine that is not installed is left out. With one thread and
`--clock cpu` the time is that of the process, which others on the machine disturb least.
"""

import argparse
import contextlib
import importlib
import importlib.util
import io
import json
import statistics
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measure import CLOCKS, in_fresh_process, machine
from torch import Tensor, nn

import vitrail

CASES = [
    # model, image size, batch
    ("cait_xxs24", 224, 1),
    ("deit_small", 224, 1),
    ("deit3_small", 224, 1),
    ("resmlp_s24", 224, 1),
    ("patchconvnet_s60", 224, 1),
    ("cait_xxs24", 224, 16),
    ("deit_small", 224, 16),
]
ENGINES = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}
TOLERANCE = 1e-4


def installed_engines() -> list[str]:
    """The engines that can be compared with here."""
    return [name for name in ENGINES if importlib.util.find_spec(name) is not None]


def onnx_runtime(model: nn.Module, images: Tensor, threads: int) -> Callable[[], object]:
    """A call of ONNX Runtime on an export of the model."""
    onnxruntime: Any = importlib.import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "model.onnx")
        torch.onnx.export(model, (images,), file, dynamo=True, verbose=False)
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    feed = {session.get_inputs()[0].name: images.numpy()}
    return lambda: session.run(None, feed)[0]


def openvino(model: nn.Module, images: Tensor, threads: int) -> Callable[[], object]:
    """A call of OpenVINO on the model, in float32."""
    library: Any = importlib.import_module("openvino")  # no dependency of ours
    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    compiled = library.compile_model(library.convert_model(model, example_input=images), "CPU", settings)
    pixels = images.numpy()
    return lambda: compiled(pixels)[0]


def compare(case: int, *, rounds: int, threads: int, clock: str) -> dict[str, float]:
    """Best seconds of each side; their calls alternate."""
    name, image_size, batch = CASES[case]
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = vitrail.fold(vitrail.create_model(name, image_size=image_size))
    images = torch.randn(batch, 3, image_size, image_size)
    make = {"onnxruntime": onnx_runtime, "openvino": openvino}
    now = CLOCKS[clock]
    with torch.inference_mode():
        calls: dict[str, Callable[[], object]] = {"vitrail": lambda: model(images)}
        for engine in installed_engines():
            calls[engine] = make[engine](model, images, threads)
        expected = model(images)
        best = dict.fromkeys(calls, float("inf"))
        for side, call in calls.items():
            difference = (expected - torch.as_tensor(call())).abs().max().item()
            assert difference < TOLERANCE, f"{side} differs by {difference}"
        for _ in range(rounds):
            for side, call in calls.items():
                start = now()
                call()
                best[side] = min(best[side], now() - start)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40, help="alternating calls in a process; the best counts")
    parser.add_argument("--processes", type=int, default=3, help="fresh processes; the median counts")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads of every side")
    parser.add_argument("--only", default="", help="only models whose name starts so")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: the time of the process")
    parser.add_argument("--case", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case is not None:
        warnings.simplefilter("ignore")
        with contextlib.redirect_stdout(io.StringIO()):  # exporters talk
            best = compare(arguments.case, rounds=arguments.rounds, threads=arguments.threads, clock=arguments.clock)
        print(json.dumps(best))
        return
    engines = installed_engines()
    torch.set_num_threads(arguments.threads)
    print(f"{machine()}; {arguments.clock} time; " + ", ".join(ENGINES[engine] for engine in engines) + "\n")
    print(
        "| model | image | batch | vitrail img/s | "
        + " | ".join(f"{ENGINES[each]} img/s" for each in engines)
        + " | of the better |"
    )
    print("|---|---|---|---|" + "---|" * (len(engines) + 1))
    for case, (name, image_size, batch) in enumerate(CASES):
        if not name.startswith(arguments.only):
            continue
        options = ["--case", str(case), "--rounds", str(max(3, arguments.rounds // batch))]
        options += ["--threads", str(arguments.threads), "--clock", arguments.clock]
        found = [in_fresh_process(__file__, *options) for _ in range(arguments.processes)]
        speeds = {side: statistics.median(batch / each[side] for each in found) for side in ("vitrail", *engines)}
        ratios = sorted(min(each[engine] for engine in engines) / each["vitrail"] for each in found) if engines else []
        ratio = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})" if ratios else "-"
        print(
            f"| {name} | {image_size} | {batch} | "
            + " | ".join(f"{each:.1f}" for each in speeds.values())
            + f" | {ratio} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
