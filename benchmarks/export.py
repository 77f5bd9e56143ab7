"""`vitrail export --to auto` against the best of what a timm user has: eager, compiled, ONNX Runtime, OpenVINO.

python benchmarks/export.py [--models cait_xxs24,deit_small] [--batch 1,16] [--seconds 8] [--keep results.json]

The same weights on both sides. Ours is chosen by `auto` once for each model. Its competitors are timm's own model in
eager torch, exported by itself to ONNX Runtime and OpenVINO, each with one thread and with all cores, and under
torch.compile with all cores. OpenVINO's is tried for batches of any size and, as a user can do, once more reshaped to
the very batch that is timed. With `--precision auto` or bf16, on a CPU that has it, eager torch and OpenVINO compete in
bfloat16 too. A first round finds the competitors that are within a fifth of the fastest of them; these and ours are
then timed by turns, in the same process, for `--seconds` each and batch. The ratio is the median of those of single
turns: two calls, one after the other, meet the same machine. PatchConvNet, which timm does not have, competes with our
own model, unfolded.

`--keep FILE` keeps the rows of every model that is done: the same command goes on where it was ended. The table with
the geometric mean is printed at the end, and after each model as far as it is known.
"""

import argparse
import io
import json
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from measure import machine
from torch import Tensor, nn

import vitrail
from vitrail.inference.benchmarking import thread_counts, time_by_turns
from vitrail.inference.choosing import choose_engines
from vitrail.inference.engines import open_engine
from vitrail.inference.engines.onnx_engine import open_session
from vitrail.inference.engines.openvino_engine import compile_model, import_openvino
from vitrail.inference.engines.threads import torch_threads
from vitrail.inference.engines.ways import Way
from vitrail.inference.exporting import ExportSettings
from vitrail.inference.proof_images import ProofImages
from vitrail.inference.quantising import write_fastest
from vitrail.inference.trained import Trained, make_trained
from vitrail.layers.bfloat16 import has_native_bfloat16

CASES = [
    # ours, timm's
    ("cait_xxs24", "cait_xxs24_224"),
    ("deit_small", "deit_small_patch16_224"),
    ("deit3_small", "deit3_small_patch16_224"),
    ("resmlp_s24", "resmlp_24_224"),
    ("patchconvnet_s60", None),
]
Ask = Callable[[], object]
OURS = "ours"
_OF_SIZE = " for batches of "  # in the name of a competitor
WITHIN = 1.2  # of the fastest competitor's time: who is slower in the first round is not timed again


class Normalized(nn.Module):
    """A model that takes bytes, as ours does: what a timm user would put in front of it."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, trained: Trained) -> None:
        super().__init__()
        self.model = model
        for name, values in (("mean", trained.normalize.mean), ("std", trained.normalize.std)):
            self.register_buffer(name, torch.tensor(values).view(1, 3, 1, 1) * 255.0)

    def forward(self, images: Tensor) -> Tensor:
        return self.model((images.float() - self.mean) / self.std)


def make_pair(ours: str, peer: str | None, *, image_size: int) -> tuple[Trained, nn.Module]:
    """Our model and its peer, with the same weights."""
    torch.manual_seed(0)
    model = vitrail.create_model(ours, image_size=image_size).eval()
    if peer is None:
        return make_trained(model, None, label=ours), model
    reference = timm.create_model(peer, pretrained=False, **({} if image_size == 224 else {"img_size": image_size}))
    nn.init.normal_(reference.get_classifier().weight, std=0.02)  # ResMLP's begins with zeros, which hide differences
    vitrail.load_weights(model, reference.state_dict())
    return make_trained(model, None, label=ours), reference.eval()


def peers_of(
    whole: nn.Module, example: Tensor, folder: Path, *, batches: Sequence[int], skips_compile: bool, has_bfloat16: bool
) -> dict[str, Callable[[Tensor], Any]]:
    """The peer in every way that a user would try, with one thread and with all cores.

    Those for one size of batches have it behind their name.
    """
    openvino = import_openvino()
    found: dict[str, Callable[[Tensor], Any]] = {}
    shapes = ({0: torch.export.Dim("batch", min=1)},)
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        program = torch.export.export(whole, (example,), dynamic_shapes=shapes)
        exported = torch.onnx.export(program, dynamo=True, input_names=["images"], verbose=False)
        assert exported is not None
        exported.save(str(folder / "peer.onnx"))
        converted = openvino.convert_model(program)
    models = {"": converted}
    for batch in batches:
        models[f"{_OF_SIZE}{batch}"] = reshaped = converted.clone()
        reshaped.reshape([batch, *example.shape[1:]])
    torch.compiler.reset()  # it counts what was compiled for the models before
    compiled = None if skips_compile else torch.compile(whole, dynamic=False)
    for threads in thread_counts():
        session = open_session(folder / "peer.onnx", threads=threads)
        found[f"eager, {threads}"] = torch_way(whole, threads)
        found[f"onnx, {threads}"] = partial(ask_onnx, session)
        if has_bfloat16:
            found[f"eager in bf16, {threads}"] = torch_way(whole, threads, has_bfloat16=True)
        for precision in ("fp32", "bf16")[: 1 + has_bfloat16]:
            named = "openvino" if precision == "fp32" else "openvino in bf16"
            for size, model in models.items():
                request = compile_model(model, threads=threads, precision=precision).create_infer_request()
                found[f"{named}, {threads}{size}"] = partial(ask_openvino, request)
        if compiled is not None and threads == max(thread_counts()):  # it compiles anew for every number
            found[f"compiled, {threads}"] = torch_way(compiled, threads)
    return found


def takes(label: str, batch: int) -> bool:
    """Whether a competitor computes batches of that size."""
    _, _, size = label.partition(_OF_SIZE)
    return not size or int(size) == batch


def ask_onnx(session: Any, images: Tensor) -> Any:
    return session.run(None, {"images": images.numpy()})[0]


def ask_openvino(request: Any, images: Tensor) -> Any:
    return next(iter(request.infer([images.numpy()], share_inputs=True).values()))


def torch_way(model: Any, threads: int, *, has_bfloat16: bool = False) -> Callable[[Tensor], Any]:
    def ask(images: Tensor) -> np.ndarray:
        autocast = torch.autocast("cpu", dtype=torch.bfloat16, enabled=has_bfloat16)
        with torch.inference_mode(), torch_threads(threads), autocast:
            return model(images).float().numpy()

    return ask


def compare(
    ours: str,
    peer: str | None,
    *,
    image_size: int,
    batches: Sequence[int],
    seconds: float,
    engines: Sequence[str],
    precision: str,
    skips_compile: bool,
) -> list[dict[str, Any]]:
    """A row for each batch: our speed, and that of the best peer."""
    trained, reference = make_pair(ours, peer, image_size=image_size)
    pixels = torch.randint(0, 256, (max(16, *batches), 3, image_size, image_size), dtype=torch.uint8)
    images = ProofImages(pixels, None, "noise")
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "ours"
        folder.mkdir()
        names = choose_engines(engines, precision=precision)
        say(f"{ours}: writing it for {', '.join(names)}, and choosing")
        record, _ = write_fastest(
            folder,
            trained,
            ExportSettings(engine="auto", precision=precision),
            engines=names,
            images=images,
            source=ours,
            max_loss=100.0,  # the weights are random: which class comes first says nothing about bfloat16
            batches=batches,
            seconds=seconds / 4,
        )
        engine = open_engine(folder, record)
        whole = Normalized(reference, trained).eval()
        say(f"{ours}: {record.engine} with {record.threads} threads is chosen; preparing its competitors")
        has_bfloat16 = precision != "fp32" and has_native_bfloat16()
        peers = peers_of(
            whole, pixels[:2], Path(name), batches=batches, skips_compile=skips_compile, has_bfloat16=has_bfloat16
        )
        wanted = peers["eager, 1"](pixels[:2])
        gap = float(np.abs(engine(pixels[:2])["logits"].numpy() - wanted).max())
        assert gap < (1e-3 if record.precision == "fp32" else 1e-1) * max(1.0, float(np.abs(wanted).max())), (
            f"{ours} differs from its peer by {gap}"
        )
        for batch in batches:
            given = pixels[:batch].contiguous()
            say(f"{ours}: {batch} images at a time")
            here = {label: partial(ask, given) for label, ask in peers.items() if takes(label, batch)}
            first = medians_of(time_all(here, seconds=seconds / 8))
            kept = [label for label, found in first.items() if found <= WITHIN * min(first.values())]
            turns = time_all({OURS: partial(engine, given), **{label: here[label] for label in kept}}, seconds=seconds)
            times = medians_of(turns)
            ratios = {
                label: statistics.median(theirs / own for own, theirs in zip(turns[OURS], turns[label], strict=True))
                for label in kept
            }
            best = min(ratios, key=lambda label: ratios[label])
            rows.append(
                {
                    "model": ours,
                    "batch": batch,
                    "ours": f"{record.engine} in {record.precision}, {Way(record.threads, record.part, record.lanes)}",
                    "speed": batch / times[OURS],
                    "best": best,
                    "best_speed": batch / times[best],
                    "ratio": ratios[best],
                    "peers": {label: batch / found for label, found in {**first, **times}.items() if label != OURS},
                }
            )
    return rows


def time_all(asks: Mapping[str, Ask], *, seconds: float) -> dict[str, list[float]]:
    """Seconds of the calls of each, by turns."""
    labels = list(asks)
    times = time_by_turns(dict(enumerate(asks.values())), seconds=seconds)
    return {labels[place]: found for place, found in times.items()}


def medians_of(times: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {label: statistics.median(found) for label, found in times.items()}


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def show(rows: Sequence[dict[str, Any]]) -> None:
    """The table in markdown, with the geometric mean of all ratios."""
    print("| model | batch | ours (auto) | images/s | best of timm's, threads | images/s | ratio |")
    print("|---|---|---|---|---|---|---|")
    ratios = [row["ratio"] for row in rows]
    for row, ratio in zip(rows, ratios, strict=True):
        cells = (row["model"], row["batch"], row["ours"], f"{row['speed']:.1f}", row["best"])
        print(f"| {' | '.join(map(str, cells))} | {row['best_speed']:.1f} | {ratio:.2f} |")
    print(f"\ngeometric mean {statistics.geometric_mean(ratios):.3f}, least {min(ratios):.3f}\n", flush=True)


def main() -> None:
    known = [ours for ours, _ in CASES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(known), help="names between commas (default: all five)")
    parser.add_argument("--batch", default="1,16")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--seconds", type=float, default=8.0, help="for each finalist and batch")
    parser.add_argument("--engines", default="", help="that auto may choose; default: all that are installed")
    parser.add_argument("--precision", default="fp32", help="fp32, bf16, or auto: both where the CPU has it")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile of timm's model out")
    parser.add_argument("--keep", type=Path, help="a file of rows; models that it has are not measured again")
    arguments = parser.parse_args()
    batches = [int(part) for part in arguments.batch.split(",")]
    engines = [name for name in arguments.engines.split(",") if name]
    wanted = arguments.models.split(",")
    if missing := next((name for name in wanted if name not in known), None):
        parser.error(f"there is no {missing}: there are {', '.join(known)}")
    kept: Path | None = arguments.keep
    rows: list[dict[str, Any]] = json.loads(kept.read_text()) if kept is not None and kept.exists() else []
    print(f"{machine()}; timm {timm.__version__}\n")
    for ours, peer in CASES:
        if ours not in wanted or any(row["model"] == ours for row in rows):
            continue
        start = time.perf_counter()
        rows += compare(
            ours,
            peer,
            image_size=arguments.image_size,
            batches=batches,
            seconds=arguments.seconds,
            engines=engines,
            precision=arguments.precision,
            skips_compile=arguments.no_compile,
        )
        say(f"{ours}: done in {time.perf_counter() - start:.0f} seconds")
        if kept is not None:
            kept.write_text(json.dumps(rows, indent=1))
        show(rows)
    if not wanted or all(row["model"] not in wanted for row in rows):
        parser.error("nothing was measured")
    show([row for row in rows if row["model"] in wanted])


if __name__ == "__main__":
    main()
