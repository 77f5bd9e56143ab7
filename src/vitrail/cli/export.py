"""Write a trained model for an engine, with a certificate that it answers as the model does on real images."""

import argparse
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from vitrail.inference.passes import MODEL_HELP, is_setting, split_words

if TYPE_CHECKING:
    from vitrail.inference.exporting import Exported

SUMMARY = "write a model for ONNX Runtime, OpenVINO or torch"

_KEYS = ("out", "data", "split", "level", "image_size", "crop_ratio", "trunk", "num_images", "threads")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `vitrail export` takes."""
    parser.add_argument("model", metavar="RUN|MODEL", help=MODEL_HELP)
    parser.add_argument(
        "settings",
        nargs="*",
        metavar="key=value",
        help=f"out=FOLDER, and any of {', '.join(_KEYS[1:])}; without data=SPEC it is proved on the run's own val",
    )
    parser.add_argument(
        "--to",
        default="auto",
        metavar="ENGINE",
        help="onnx, openvino, eager, torch, inductor (default: auto, the fastest here)",
    )
    parser.add_argument(
        "--precision",
        help="fp32, fp16 or bf16 where the engine has it, or auto, the faster of fp32 and bf16 within --max-loss "
        "(default: auto with --to auto, else fp32)",
    )
    parser.add_argument("--layout", default="nchw", help="of the bytes that go in: nchw or nhwc (default: nchw)")
    parser.add_argument(
        "--dynamic-size", action="store_true", help="let images have any size that can be cut into patches"
    )
    parser.add_argument(
        "--engines", metavar="NAMES", help="engines that --to auto tries (default: all that are installed)"
    )
    parser.add_argument(
        "--quantise", choices=("int8",), help="compute in int8 as many layers as --max-loss allows; says what it gains"
    )
    parser.add_argument(
        "--max-loss",
        type=float,
        help="points of top-1 that --quantise and --precision auto may lose (default: 0.5)",
    )
    parser.add_argument("--images", nargs="+", metavar="IMAGE", help="a few images to prove it on, instead of data")
    parser.add_argument(
        "--allow-drift", action="store_true", help="keep an export that does not agree with the model, and mark it"
    )
    parser.add_argument("--json", action="store_true", help="print the record and the certificate as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Export, prove, and say what was found."""
    images = [word for word in arguments.images or () if not is_setting(word)]
    behind = [word for word in arguments.images or () if is_setting(word)]  # key=value after the last image
    words, settings = split_words([arguments.model, *arguments.settings, *behind], keys=_KEYS)
    if len(words) != 1 or settings.get("out") in (None, ""):
        raise ValueError("write `vitrail export RUN --to onnx out=FOLDER`")

    from vitrail.cli.predict import find_images
    from vitrail.inference.export_source import export

    exported = export(
        words[0],
        to=arguments.to,
        precision=arguments.precision,
        layout=arguments.layout,
        dynamic_size=arguments.dynamic_size,
        quantise=arguments.quantise,
        max_loss=arguments.max_loss,
        engines=read_engines(arguments.engines),
        images=find_images(images) if arguments.images else (),
        allow_drift=arguments.allow_drift,
        told=tell,
        **{key: value if key != "out" else str(value) for key, value in settings.items()},
    )
    _show(exported, is_json=arguments.json)
    return 0


def tell(line: str) -> None:
    """Say how far it is, on stderr."""
    print(line, file=sys.stderr)


def read_engines(text: str | None) -> list[str]:
    """Names between commas."""
    return [] if text is None else [name.strip() for name in text.split(",") if name.strip()]


def describe_quantised(facts: Mapping[str, Any]) -> Iterator[str]:
    """What int8 cost and gained, for people."""
    yield (
        f"int8: {facts['num_layers'] - len(facts['kept'])} of {facts['num_layers']} layers, {facts['measure']} "
        f"{facts['before']:.2f} % before, {facts['after']:.2f} % after"
    )
    for name, pair in facts["images_per_second"].items():
        yield f"{name.replace('_', ' of ')}: {pair['before']:.1f} images/s before, {pair['after']:.1f} after"
    if not facts["is_faster"]:
        yield "int8 is slower than float32 on this machine: --to auto would not take it"


def _show(exported: "Exported", *, is_json: bool) -> None:
    from vitrail.inference.engines.ways import Way

    record, certificate = exported.record, exported.certificate
    if is_json:
        import json

        content: dict[str, Any] = record.model_dump(mode="json")
        print(json.dumps({"export": content, "certificate": certificate.describe(record)}, indent=2))
        return
    given = record.input
    size = f"any multiple of {given.multiple} px" if given.multiple else f"{given.height} x {given.width} px"
    print(f"{record.model.name} for {record.engine}, {record.precision}, {size}, in {exported.folder}")
    if record.choice is not None:
        way = Way(record.threads, record.part, record.lanes)
        print(f"  the fastest of {len(record.choice['measurements'])} measurements here, with {way}")
    if record.quantised is not None:
        for line in describe_quantised(record.quantised):
            print(f"  {line}")
    for line in certificate.lines():
        print(f"  {line}")
    if record.is_drifting:
        print("  it does NOT agree with the model and is marked so (--allow-drift)")
    print(f"certificate: {exported.folder / 'certificate.html'}")
