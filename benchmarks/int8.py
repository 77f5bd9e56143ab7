"""What int8 does to accuracy and speed, on real images: every engine that has it, against the same engine in float32.

python benchmarks/int8.py "deit_tiny init=FILE data=SPEC" runs/quickstart [--engines onnx,openvino] [--images 500]

Each source is a run, or a model with further words of `vitrail export`; a run is measured on its own val. Printed are
the layers in int8, accuracy before and after, and images a second for one image and for sixteen, by turns in one
process. One that loses more than --max-loss points with half of its layers in float32 is refused, and the row says so.
"""

import argparse
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from measure import machine

import vitrail
from vitrail.inference.passes import split_words

ENGINES = ("onnx", "openvino", "eager")
COLUMNS = ("model", "engine", "layers in int8", "measure", "fp32", "int8", "batch 1: fp32", "int8", "16: fp32", "int8")
KEYS = ("data", "split", "level", "image_size")


def rows_of(source: str, *, engines: list[str], images: int, max_loss: float) -> Iterator[tuple[str, ...]]:
    """A row for each engine."""
    [model], settings = split_words(shlex.split(source), keys=KEYS)
    for engine in engines:
        with tempfile.TemporaryDirectory() as folder:
            options: dict[str, Any] = {"to": engine, "quantise": "int8", "max_loss": max_loss, "num_images": images}
            try:
                exported = vitrail.export(model, out=Path(folder) / "int8", **options, **settings)
            except ValueError as error:
                yield (model, engine, str(error), *[""] * (len(COLUMNS) - 3))
                continue
        facts = exported.record.quantised
        assert facts is not None
        speeds = [
            f"{facts['images_per_second'][f'batch_{batch}'][when]:.1f}"
            for batch in (1, 16)
            for when in ("before", "after")
        ]
        num_int8 = facts["num_layers"] - len(facts["kept"])
        accuracy = (facts["measure"], f"{facts['before']:.1f}", f"{facts['after']:.1f}")
        name = f"{exported.record.model.name}, {model}"
        yield (name, engine, f"{num_int8} of {facts['num_layers']}", *accuracy, *speeds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="+", metavar="SOURCE", help="a run, or a model and words of vitrail export")
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--images", type=int, default=500, help="images that accuracy is measured on, at most")
    parser.add_argument("--max-loss", type=float, default=0.5)
    arguments = parser.parse_args()
    print(f"{machine()}\n")
    for cells in (COLUMNS, ("---",) * len(COLUMNS)):
        print(f"| {' | '.join(cells)} |", flush=True)
    for source in arguments.sources:
        engines = arguments.engines.split(",")
        for row in rows_of(source, engines=engines, images=arguments.images, max_loss=arguments.max_loss):
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
