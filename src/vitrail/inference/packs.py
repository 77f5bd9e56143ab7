"""Packing a run: which trunk it started from, and what of its model is the trunk's still."""

import os
from dataclasses import dataclass
from pathlib import Path

from vitrail.inference.description import TASK_FILE, read_description
from vitrail.inference.trained import load_trained
from vitrail.models.contract import Model
from vitrail.settings.text import read_recipe, stage_of
from vitrail.tasks.images.initial_weights import locate_weights
from vitrail.training.runs.run_folder import RunFolder
from vitrail.weights.pack import (
    PACK_FILE,
    TENSORS_FILE,
    Pack,
    check_replaceable,
    read_pack,
    tensors_of_trunk,
    write_pack,
)
from vitrail.weights.pretrained import read_named
from vitrail.weights.save import build

PACK_FOLDER = "pack"  # in the folder of a run


@dataclass(frozen=True)
class Packed:
    """A pack that was written."""

    folder: Path
    pack: Pack
    num_bytes: int  # of its tensors
    num_model_bytes: int  # of all tensors of the model


def pack_run(
    run: str | os.PathLike[str], *, out: str | os.PathLike[str] | None = None, trunk: str | None = None
) -> Packed:
    """Write what a run's model does not have in common with the weights that the run started from.

    `out` is the folder to write, by default `pack` in that of the run; `trunk` the place of the trunk, by default the
    one that the recipe names (`model.init`). The pack is of the model as it is evaluated, at that image size.
    """
    folder = Path(run).expanduser()
    target = Path(out).expanduser() if out is not None else folder / PACK_FOLDER
    check_replaceable(target)
    source = find_trunk(folder) if trunk is None else trunk
    model = load_trained(folder).model
    if not model.config.num_classes:
        raise ValueError(f"{folder} has learnt no classes: packs are of models that answer with classes")
    description = read_description(folder)
    pack = write_pack(
        target,
        model=model,
        trunk=tensors_of_trunk(locate_weights(source), model=model),
        source=source,
        documents={} if description is None else {TASK_FILE: description},
    )
    return Packed(
        folder=target,
        pack=pack,
        num_bytes=(target / TENSORS_FILE).stat().st_size,
        num_model_bytes=sum(value.nbytes for value in model.state_dict().values()),
    )


def find_trunk(folder: Path) -> str:
    """The place of the weights that a run started from; later stages started from those of the one before."""
    run = RunFolder(folder)
    if not run.is_begun:
        raise ValueError(f"{folder} is not a run, whose recipe would name the trunk: add trunk=PLACE")
    model = stage_of(read_recipe(run.recipe_file), 0).model
    if model.init is None:
        raise ValueError(f"{folder} began from scratch (no init=): there is no trunk to share, its model is in model/")
    named = read_named(model.init, model=model.name)
    return model.init if named is None else str(named)


def load_shared_trunk(pack: str | os.PathLike[str], *, trunk: str | None = None) -> Model:
    """The trunk of a pack as a loaded model, which `load_pack` makes models of that read its memory.

    What always lies in packs (the classifier, and tensors of a grid of another size) has no meaning in it.
    """
    folder = Path(pack).expanduser()
    content = read_pack(folder)
    model = build(content.model, label=str(folder), file=PACK_FILE).trunk
    place = locate_weights(trunk or content.trunk)
    found = tensors_of_trunk(place, model=model)
    state = model.state_dict()
    fitting = {name: value for name, value in found.items() if name in state and value.shape == state[name].shape}
    model.load_state_dict({**state, **fitting})
    return model.requires_grad_(False).eval()
