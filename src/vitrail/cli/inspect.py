"""Look inside a model: what its layers do, as numbers, pictures and one page that opens without a network."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.inference.passes import MODEL_HELP, load_seeing, open_data, read_whole, show_progress, split_words

if TYPE_CHECKING:
    from torch import Tensor

    from vitrail.data.contract import Dataset
    from vitrail.inference.trained import Trained
    from vitrail.inspection.inspection import Inspection

SUMMARY = "look inside a model, layer by layer"

_KEYS = ("data", "split", "out", "images", "image_size", "crop_ratio", "batch_size", "device", "trunk")
_NUM_IMAGES = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `vitrail inspect` takes."""
    parser.add_argument("model", metavar="RUN|MODEL", help=MODEL_HELP)
    parser.add_argument(
        "settings",
        nargs="*",
        metavar="key=value",
        help=f"any of {', '.join(_KEYS)}; images={_NUM_IMAGES} of data=SPEC are looked at, or of the run's own val, "
        "and the page goes into out=DIR (inspect-NAME)",
    )
    parser.add_argument("--json", action="store_true", help="print all tables as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Measure, write, and tell what was found."""
    sources, settings = split_words([arguments.model, *arguments.settings], keys=_KEYS)
    if len(sources) != 1:
        wrong = (
            f"{sources[1]!r} is no setting: write key=value"
            if sources
            else "which model? Give a run's folder or a model's"
        )
        raise ValueError(wrong)
    (source,) = sources
    limit = read_whole(settings.get("images", _NUM_IMAGES), "images")

    from vitrail.evaluation.predict import choose_device
    from vitrail.inspection.inspection import BATCH_SIZE, inspect_model

    folder = Path(str(settings.get("out") or f"inspect-{Path(source).expanduser().resolve().name}")).expanduser()
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"out={folder} is a file: give a folder")
    batch_size = read_whole(settings.get("batch_size", BATCH_SIZE), "batch_size")
    device = choose_device(str(settings.get("device", "auto")))
    trained = load_seeing(source, settings)
    data, _ = open_data(source, settings, trained)
    images = _read_images(data, trained, limit=limit)
    trained.model.to(device)
    with show_progress("inspect", total=2 * len(images)) as advance:
        found = inspect_model(
            trained.model, images, records=_read_records(source), batch_size=batch_size, advance=advance
        )
    page = found.write(folder, source=source, data=f"{data.split} of {data.name}")
    if arguments.json:
        print(json.dumps(_describe(found, page, data), indent=2))
    else:
        print("\n".join(_show(found, page, data)))
    return 0


def _read_images(data: "Dataset", trained: "Trained", *, limit: int) -> "Tensor":
    """Some images, evenly spread over the data, as the model sees them; those that can't be read are named."""
    import torch

    from vitrail.data.decode import open_image
    from vitrail.explain.measure import choose_places

    images = []
    for place in choose_places(len(data), limit=limit):
        try:
            image = open_image(data.read(place))
            images.append(trained.view.plan((image.height, image.width)).apply(image))
        except (OSError, ValueError) as error:
            print(f"vitrail: {data.locate(place)}: {error}", file=sys.stderr)
    if not images:
        raise ValueError(f"there is no image in {data.split} of {data.name} that can be read")
    return trained.normalize(torch.stack(images))


def _read_records(source: str) -> Sequence[Mapping[str, Any]]:
    """What a run has measured while it trained."""
    from vitrail.training.runs.run_folder import RunFolder

    folder = RunFolder(Path(source).expanduser())
    return folder.read_metrics() if folder.is_begun else []


def _describe(found: "Inspection", page: Path, data: "Dataset") -> dict[str, Any]:
    parts = {
        part.name: {"missing": part.missing}
        if part.missing
        else {
            "finding": part.finding,
            "tables": {
                name: [dict(zip(table.columns, row, strict=True)) for row in table.rows]
                for name, table in part.files.items()
            },
        }
        for part in found.parts
    }
    where = {"page": str(page), "model": found.model_name, "data": data.name, "split": data.split}
    return where | {"num_images": found.num_images, "image_size": found.image_size, "parts": parts}


def _show(found: "Inspection", page: Path, data: "Dataset") -> list[str]:
    height, width = found.image_size
    lines = [
        f"{found.model_name} on {found.num_images:,} images of {data.split} of {data.name}, {height} x {width} px",
        "",
    ]
    lines += [
        f"{part.title}: {f'not available, {part.missing}' if part.missing else part.finding}" for part in found.parts
    ]
    return [*lines, "", f"page: {page}"]
