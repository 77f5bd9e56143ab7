"""Inference of folded vitrail models against timm's eager ones: the same weights, input and dtype on both sides.

python benchmarks/inference.py [--rounds 7] [--processes 3] [--only cait] [--dtype fp32]
"""

import argparse
import json

import timm
import torch
from measure import best_times, default_dtypes, in_fresh_process, machine, summarize

import vitrail

CASES = [
    # ours, timm's, image size, batch
    ("cait_xxs24", "cait_xxs24_224", 224, 16),
    ("cait_s24", "cait_s24_224", 224, 16),
    ("cait_xxs24", "cait_xxs24_384", 384, 4),
    ("deit_small", "deit_small_patch16_224", 224, 16),
    ("deit3_small", "deit3_small_patch16_224", 224, 16),
    ("resmlp_s24", "resmlp_24_224", 224, 16),
]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def compare(case: int, dtype: torch.dtype, rounds: int) -> tuple[float, float]:
    """Best seconds of the peer and of ours."""
    ours, peer, image_size, batch = CASES[case]
    reference = timm.create_model(peer, pretrained=False).eval()
    model = vitrail.create_model(ours, image_size=image_size)
    vitrail.load_weights(model, reference.state_dict())
    folded = vitrail.fold(model.to(dtype))
    reference = reference.to(dtype)
    images = torch.randn(batch, 3, image_size, image_size, dtype=dtype)
    with torch.inference_mode():
        difference = (reference(images).float() - folded(images).float()).abs().max().item()
        assert difference < (1e-3 if dtype == torch.float32 else 0.1), f"{ours} differs from {peer} by {difference}"
        return best_times(lambda: reference(images), lambda: folded(images), rounds=rounds)


def compare_parallel(rounds: int) -> tuple[float, float]:
    """Best seconds of vit_s36 and of vit_s18x2: the same size in sequence and in parallel, one image, both folded."""
    sequential, parallel = (vitrail.fold(vitrail.create_model(name)) for name in ("vit_s36", "vit_s18x2"))
    images = torch.randn(1, 3, 224, 224)
    with torch.inference_mode():
        return best_times(lambda: sequential(images), lambda: parallel(images), rounds=rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="alternating calls in a process; the best counts")
    parser.add_argument("--processes", type=int, default=3, help="fresh processes; the median counts")
    parser.add_argument("--only", default="", help="only models whose name starts so")
    parser.add_argument("--dtype", choices=DTYPES, action="append", help="default: fp32, and bf16 if the CPU has it")
    parser.add_argument("--case", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    labels: list[str] = arguments.dtype or default_dtypes()
    torch.manual_seed(0)
    if arguments.case is not None:
        is_parallel = arguments.case == len(CASES)
        dtype, rounds = DTYPES[labels[0]], arguments.rounds
        print(json.dumps(compare_parallel(rounds) if is_parallel else compare(arguments.case, dtype, rounds)))
        return

    def repeat(case: int, label: str) -> list[tuple[float, float]]:
        options = ("--case", str(case), "--dtype", label, "--rounds", str(arguments.rounds))
        return [in_fresh_process(__file__, *options) for _ in range(arguments.processes)]

    print(f"{machine()}; timm {timm.__version__}\n")
    print("| model | image | batch | dtype | timm img/s | vitrail img/s | ratio (range) |")
    print("|---|---|---|---|---|---|---|")
    for case, (ours, _, image_size, batch) in enumerate(CASES):
        for label in labels if ours.startswith(arguments.only) else ():
            theirs, mine, ratio = summarize(repeat(case, label))
            row = f"| {ours} | {image_size} | {batch} | {label} | {batch / theirs:.1f} | {batch / mine:.1f} | {ratio} |"
            print(row, flush=True)
    if "vit_s18x2".startswith(arguments.only):
        sequential, parallel, ratio = summarize(repeat(len(CASES), "fp32"))
        milliseconds = f"{1e3 * parallel:.0f} ms against {1e3 * sequential:.0f} ms"
        print(f"\nvit_s18x2 against vit_s36, both folded, one image, fp32: {milliseconds}, ratio {ratio}")


if __name__ == "__main__":
    main()
