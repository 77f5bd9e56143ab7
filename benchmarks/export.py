"""`vitrail export --to auto` against the best of what a timm user has: eager, compiled, ONNX Runtime, OpenVINO.

python benchmarks/export.py [--only cait] [--batch 1,16] [--seconds 20] [--engines eager,onnx,openvino,inductor]

The same weights on both sides. Ours is chosen by `auto` once for each model. Its competitors are timm's own model in
eager torch, under torch.compile, and exported by itself to ONNX Runtime and OpenVINO, each with one thread and with all
cores. Everything of one model is timed in one run, by turns. PatchConvNet, which timm does not have, competes with our
own model, unfolded.
"""

import argparse
import io
import statistics
import tempfile
import warnings
from collections.abc import Callable, Sequence
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
from vitrail.inference.engines import find_engine
from vitrail.inference.engines.onnx_engine import open_session
from vitrail.inference.engines.openvino_engine import compile_model, import_openvino
from vitrail.inference.engines.threads import torch_threads
from vitrail.inference.exporting import ExportSettings
from vitrail.inference.proof_images import ProofImages
from vitrail.inference.quantising import write_fastest
from vitrail.inference.trained import Trained, make_trained

CASES = [
    # ours, timm's
    ("cait_xxs24", "cait_xxs24_224"),
    ("deit_small", "deit_small_patch16_224"),
    ("deit3_small", "deit3_small_patch16_224"),
    ("resmlp_s24", "resmlp_24_224"),
    ("patchconvnet_s60", None),
]
Ask = Callable[[], object]


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
    vitrail.load_weights(model, reference.state_dict())
    return make_trained(model, None, label=ours), reference.eval()


def peers_of(
    whole: nn.Module, example: Tensor, folder: Path, *, skips_compile: bool
) -> dict[str, Callable[[Tensor], Any]]:
    """The peer in every way that a user would try, each with one thread and with all cores."""
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
    compiled = None if skips_compile else torch.compile(whole, dynamic=False)
    for threads in thread_counts():
        session = open_session(folder / "peer.onnx", threads=threads)
        request = compile_model(converted, threads=threads).create_infer_request()
        found[f"eager, {threads}"] = torch_way(whole, threads)
        found[f"onnx, {threads}"] = partial(ask_onnx, session)
        found[f"openvino, {threads}"] = partial(ask_openvino, request)
        if compiled is not None:
            found[f"compiled, {threads}"] = torch_way(compiled, threads)
    return found


def ask_onnx(session: Any, images: Tensor) -> Any:
    return session.run(None, {"images": images.numpy()})[0]


def ask_openvino(request: Any, images: Tensor) -> Any:
    return next(iter(request.infer([images.numpy()], share_inputs=True).values()))


def torch_way(model: Any, threads: int) -> Callable[[Tensor], Any]:
    def ask(images: Tensor) -> np.ndarray:
        with torch.inference_mode(), torch_threads(threads):
            return model(images).numpy()

    return ask


def compare(
    ours: str,
    peer: str | None,
    *,
    image_size: int,
    batches: Sequence[int],
    seconds: float,
    engines: Sequence[str],
    skips_compile: bool,
) -> list[float]:
    """Print a row for each batch; the ratios of our speed to that of the best peer."""
    trained, reference = make_pair(ours, peer, image_size=image_size)
    pixels = torch.randint(0, 256, (max(16, *batches), 3, image_size, image_size), dtype=torch.uint8)
    images = ProofImages(pixels, None, "noise")
    ratios = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "ours"
        folder.mkdir()
        chosen = ExportSettings(engine="auto")
        names = choose_engines(engines, precision="fp32")
        record = write_fastest(
            folder, trained, chosen, engines=names, images=images, source=ours, batches=batches, seconds=seconds / 2
        )
        engine = find_engine(record.engine).open(folder, record, threads=record.threads)
        whole = Normalized(reference, trained).eval()
        peers = peers_of(whole, pixels[:2], Path(name), skips_compile=skips_compile)
        wanted = peers["eager, 1"](pixels[:2])
        gap = float(np.abs(engine(pixels[:2])["logits"].numpy() - wanted).max())
        assert gap < 1e-3 * max(1.0, float(np.abs(wanted).max())), f"{ours} differs from its peer by {gap}"
        for batch in batches:
            given = pixels[:batch].contiguous()
            contenders: list[Callable[[Tensor], Any]] = [engine, *peers.values()]
            asks: dict[int, Ask] = {place: partial(ask, given) for place, ask in enumerate(contenders)}
            times = {place: statistics.median(found) for place, found in time_by_turns(asks, seconds=seconds).items()}
            best = min((place for place in times if place), key=lambda place: times[place])
            ratios.append(times[best] / times[0])
            label = list(peers)[best - 1]
            print(
                f"| {ours} | {batch} | {record.engine}, {record.threads} | {batch / times[0]:.1f} | {label} | "
                f"{batch / times[best]:.1f} | {ratios[-1]:.2f} |",
                flush=True,
            )
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only models whose name starts so")
    parser.add_argument("--batch", default="1,16")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--seconds", type=float, default=20.0, help="for each contender and batch")
    parser.add_argument("--engines", default="", help="that auto may choose; default: all that are installed")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile of timm's model out")
    arguments = parser.parse_args()
    batches = [int(part) for part in arguments.batch.split(",")]
    engines = [name for name in arguments.engines.split(",") if name]
    print(f"{machine()}; timm {timm.__version__}\n")
    print("| model | batch | ours (auto) and threads | images/s | best of timm's and threads | images/s | ratio |")
    print("|---|---|---|---|---|---|---|")
    ratios: list[float] = []
    for ours, peer in CASES:
        if ours.startswith(arguments.only):
            ratios += compare(
                ours,
                peer,
                image_size=arguments.image_size,
                batches=batches,
                seconds=arguments.seconds,
                engines=engines,
                skips_compile=arguments.no_compile,
            )
    print(f"\ngeometric mean {statistics.geometric_mean(ratios):.3f}, least {min(ratios):.3f}")


if __name__ == "__main__":
    main()
