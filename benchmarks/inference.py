"""Inference of folded vitrail models against timm's eager ones: the same weights, input and dtype in one process.

python benchmarks/inference.py [--rounds 9] [--only cait]
"""

import argparse

import timm
import torch
from measure import best_times, machine

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
PARALLEL = ("vit_s18x2", "vit_s36")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def compare(ours: str, peer: str, image_size: int, batch: int, dtype: torch.dtype, rounds: int) -> tuple[float, float]:
    """Best seconds of the peer and of ours."""
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
    """Best seconds of the sequential and of the parallel model of the same size, one image, both folded."""
    sequential, parallel = (vitrail.fold(vitrail.create_model(name)) for name in reversed(PARALLEL))
    images = torch.randn(1, 3, 224, 224)
    with torch.inference_mode():
        return best_times(lambda: sequential(images), lambda: parallel(images), rounds=rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default="", help="only models whose name starts so")
    parser.add_argument("--dtype", choices=DTYPES, action="append")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    print(f"{machine()}; timm {timm.__version__}\n")
    print("| model | image | batch | dtype | timm img/s | vitrail img/s | ratio |")
    print("|---|---|---|---|---|---|---|")
    for ours, peer, image_size, batch in CASES:
        if not ours.startswith(arguments.only):
            continue
        for label in arguments.dtype or DTYPES:
            theirs, mine = compare(ours, peer, image_size, batch, DTYPES[label], arguments.rounds)
            row = f"| {ours} | {image_size} | {batch} | {label} | {batch / theirs:.1f} | {batch / mine:.1f} "
            print(f"{row}| {theirs / mine:.2f} |", flush=True)
    if "vit".startswith(arguments.only) or arguments.only.startswith("vit"):
        sequential, parallel = compare_parallel(arguments.rounds)
        print(
            f"\nvit_s18x2 against vit_s36, both folded, batch 1, fp32: {1e3 * parallel:.1f} ms against "
            f"{1e3 * sequential:.1f} ms, ratio {sequential / parallel:.2f}"
        )


if __name__ == "__main__":
    main()
