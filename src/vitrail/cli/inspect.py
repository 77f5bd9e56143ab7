"""Look inside a model: what its layers do, as numbers, pictures and one page that opens without a network.

Several models are laid over each other, a colour each.
"""

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.cli.run_names import name_runs
from vitrail.inference.passes import MODEL_HELP, load_seeing, open_data, read_whole, show_progress, split_words

if TYPE_CHECKING:
    from torch import Tensor

    from vitrail.data.contract import Dataset
    from vitrail.inference.trained import Trained
    from vitrail.inspection.inspection import Inspection
    from vitrail.inspection.inspection_parts import InspectionPart

SUMMARY = "look inside a model, layer by layer"

_KEYS = ("data", "split", "out", "images", "image_size", "crop_ratio", "batch_size", "device", "trunk")
_NUM_IMAGES = 64
_UNFIT = re.compile(r"[^\w.@,-]+")  # in the name of a folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `vitrail inspect` takes."""
    parser.add_argument(
        "settings",
        nargs="+",
        metavar="RUN|key=value",
        help=f"{MODEL_HELP}, several to compare them; and any of "
        f"{', '.join(_KEYS)}; images={_NUM_IMAGES} of data=SPEC are looked at, or of the run's own val, "
        "and the page goes into out=DIR (inspect-NAME)",
    )
    parser.add_argument("--json", action="store_true", help="print all tables as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Measure, write, and tell what was found."""
    sources, settings = split_words(arguments.settings, keys=_KEYS)
    if not sources:
        raise ValueError("which model? Give a run's folder or a model's")
    names = name_runs(sources)

    from vitrail.inspection.comparison import compare_inspections

    own_names = (Path(source).expanduser().resolve().name for source in sources)
    folder = Path(str(settings.get("out") or _UNFIT.sub("-", f"inspect-{'-'.join(own_names)}"))).expanduser()
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"out={folder} is a file: give a folder")
    looks = {name: _look(source, settings) for name, source in names.items()}
    if len(looks) == 1:
        ((found, data),) = looks.values()
        page = found.write(folder, source=sources[0], data=_name_data(data))
        print(json.dumps(_describe(found, page, data), indent=2) if arguments.json else _show(found, page, data))
        return 0
    comparison = compare_inspections({name: found for name, (found, _) in looks.items()})
    seen = dict.fromkeys(_name_data(data) for _, data in looks.values())
    page = comparison.write(folder, data=" and ".join(seen))
    if arguments.json:
        runs = {name: _describe(found, page, data) for name, (found, data) in looks.items()}
        print(json.dumps({"page": str(page), "runs": runs, "parts": _describe_parts(comparison.parts)}, indent=2))
    else:
        lines = [_name_look(found, data, name=name) for name, (found, data) in looks.items()]
        print("\n".join([*lines, "", *_show_parts(comparison.parts), "", f"page: {page}"]))
    return 0


def _look(source: str, settings: Mapping[str, Any]) -> "tuple[Inspection, Dataset]":
    """Measure one model, on the data asked for or its run's own."""
    from vitrail.evaluation.predict import choose_device
    from vitrail.inspection.inspection import BATCH_SIZE, inspect_model

    limit = read_whole(settings.get("images", _NUM_IMAGES), "images")
    batch_size = read_whole(settings.get("batch_size", BATCH_SIZE), "batch_size")
    device = choose_device(str(settings.get("device", "auto")))
    trained = load_seeing(source, settings)
    trained.model.require_inside()
    data, _ = open_data(source, settings, trained, labels="optional")
    images = _read_images(data, trained, limit=limit)
    trained.model.to(device)
    with show_progress("inspect", total=2 * len(images)) as advance:
        found = inspect_model(
            trained.model, images, records=_read_records(source), batch_size=batch_size, advance=advance
        )
    return found, data


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
    where = {"page": str(page), "model": found.model_name, "data": data.name, "split": data.split}
    parts = _describe_parts(found.parts)
    return where | {"num_images": found.num_images, "image_size": found.image_size, "parts": parts}


def _describe_parts(parts: "Sequence[InspectionPart]") -> dict[str, Any]:
    return {
        part.name: {"missing": part.missing}
        if part.missing
        else {
            "finding": part.finding,
            "tables": {
                name: [dict(zip(table.columns, row, strict=True)) for row in table.rows]
                for name, table in part.files.items()
            },
        }
        for part in parts
    }


def _show(found: "Inspection", page: Path, data: "Dataset") -> str:
    return "\n".join([_name_look(found, data), "", *_show_parts(found.parts), "", f"page: {page}"])


def _name_look(found: "Inspection", data: "Dataset", *, name: str = "") -> str:
    height, width = found.image_size
    model = f"{name}: {found.model_name}" if name else found.model_name
    return f"{model} on {found.num_images:,} images of {_name_data(data)}, {height} x {width} px"


def _name_data(data: "Dataset") -> str:
    return f"{data.split} of {data.name}"


def _show_parts(parts: "Sequence[InspectionPart]") -> list[str]:
    return [f"{part.title}: {f'not available, {part.missing}' if part.missing else part.finding}" for part in parts]
