"""Task packs: of a fine-tuned model only what differs from its trunk, and a hash that tells the trunk from others.

Three things, section 4: where only the attention is fine-tuned, tasks share two thirds of their parameters.
"""

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from vitrail import __version__
from vitrail.models.contract import TRUNK, Model
from vitrail.models.resizing import grid_tensors
from vitrail.storage import is_partial, read_json_object, replacing_files, settle, write_json
from vitrail.storage.reading import WRONG_CONTENT
from vitrail.storage.tensors import Remembered, as_bytes, hash_tensors, write_tensors
from vitrail.weights.load import dialect_of, split_trunk
from vitrail.weights.save import VERSION_KEY, build, check_description, check_saveable, describe
from vitrail.weights.size_check import check_sizes
from vitrail.weights.translate import translate_to_ours
from vitrail.weights.weight_files import read_file
from vitrail.weights.weight_sources import WeightSource, read_weights

TENSORS_FILE, PACK_FILE = "pack.safetensors", "pack.json"
FORMAT = 1
_SHOWN_DIGITS = 12  # of a hash, in messages

_REMEMBERED: "WeakKeyDictionary[Model, Remembered]" = WeakKeyDictionary()  # digests of the tensors of loaded trunks


@dataclass(frozen=True)
class Pack:
    """The content of a pack.json."""

    model: dict[str, Any]  # as in the config.json of a saved model
    trunk: str  # where the trunk's weights were
    trunk_hash: str  # of the shared tensors
    shared: tuple[str, ...]  # names of the tensors that are the trunk's, sorted
    num_stored: int  # parameters in the pack
    num_shared: int  # parameters of the trunk

    @property
    def stored_share(self) -> float:
        """Parameters of the pack over those of the model."""
        return self.num_stored / max(1, self.num_stored + self.num_shared)

    @property
    def trunk_label(self) -> str:
        """The trunk's place and the beginning of the hash of what is shared with it."""
        if not self.shared:
            return f"{self.trunk} (no weight is shared)"
        return f"{self.trunk} (sha256 {self.trunk_hash[:_SHOWN_DIGITS]})"


def write_pack(
    folder: Path, *, model: Model, trunk: Mapping[str, Tensor], source: str, documents: Mapping[str, Any] | None = None
) -> Pack:
    """Write what differs between a model and the tensors of its trunk, which came from `source`.

    The classifier and what belongs to the grid of patches are always in the pack, so that the trunk may be loaded for
    any number of classes and any image size. `documents` are further JSON files by name. A pack that is there already
    is replaced, anything else is not; at any moment the folder is read as the old pack or the new.
    """
    check_saveable(model)
    check_replaceable(folder)
    state: dict[str, Tensor] = model.state_dict()
    if not any(name in trunk and trunk[name].shape == value.shape for name, value in state.items()):
        raise ValueError(f"{source} is no trunk of {model.name or 'the model'}: it is of another architecture")
    shared = find_shared(model, trunk)
    parameters = {name: value.numel() for name, value in model.named_parameters()}
    num_shared = sum(count for name, count in parameters.items() if name in shared)
    pack = Pack(
        model=describe(model),
        trunk=source,
        trunk_hash=hash_tensors({name: trunk[name] for name in shared}),
        shared=shared,
        num_stored=sum(parameters.values()) - num_shared,
        num_shared=num_shared,
    )
    stored = {name: value.cpu().contiguous().clone() for name, value in state.items() if name not in shared}
    try:
        with replacing_files(folder, keeps_others=False) as draft:
            write_tensors(stored, draft / TENSORS_FILE, metadata={"format": "pt", VERSION_KEY: __version__})
            for name, content in {PACK_FILE: as_json(pack), **(documents or {})}.items():
                write_json(draft / name, content)
    except OSError as error:
        raise ValueError(f"cannot write the pack {folder}: {error.strerror}") from None
    return pack


def unpack(trunk: Model | WeightSource, folder: Path) -> Model:
    """The model of a pack, in eval mode, on a loaded trunk or one that is read; the wrong trunk is an error.

    What is the trunk's is not copied: the model reads the memory of the trunk, on whose device it is, and its
    parameters are frozen so that no training of it changes the trunk.
    """
    pack = read_pack(folder)
    label = str(folder)
    stored = read_file(folder / TENSORS_FILE, label=f"{folder / TENSORS_FILE}").state
    num_tensors = len(stored) + len(pack.shared)
    check_sizes(pack.model["settings"], stored, num_tensors=num_tensors, label=f"{folder / PACK_FILE}")
    # A timm model keeps buffers that its weights do not hold, so it is built in full.
    family = pack.model["settings"].get("trunk_family", pack.model["family"])
    with contextlib.nullcontext() if family == "timm" else torch.device("meta"):
        model = build(pack.model, label=label, file=PACK_FILE)
    wanted: dict[str, Tensor] = model.state_dict()
    shapes = {name: value.shape for name, value in wanted.items() if name not in pack.shared}
    if {name: value.shape for name, value in stored.items()} != shapes or not set(pack.shared) <= wanted.keys():
        raise ValueError(f"{label}: {TENSORS_FILE} and {PACK_FILE} do not fit each other: pack the run again")
    try:
        tensors = tensors_of_trunk(trunk, model=model) if pack.shared else {}
    except ValueError as error:
        raise ValueError(f"{label} needs its trunk {pack.trunk_label}, trunk=PLACE: {error}") from None
    check_trunk(pack, tensors, trunk=trunk, wanted=wanted, label=label)
    device = next(iter(tensors.values())).device if tensors else torch.device("cpu")
    values = {name: value.to(device) for name, value in stored.items()}
    model.load_state_dict({**values, **{name: tensors[name] for name in pack.shared}}, assign=True)
    if device.type != "cpu":
        model.to(device)  # the few buffers that no weights hold
    return model.requires_grad_(False).eval()


def read_pack(folder: Path) -> Pack:
    """The content of a folder's pack.json."""
    settle(folder)
    path = folder / PACK_FILE
    if not path.is_file():
        raise ValueError(f"{folder} is no pack: there is no {PACK_FILE} in it (vitrail pack RUN makes one)")
    remedy = "pack the run again"
    content = read_json_object(path, remedy=remedy)
    if content.get("pack") != FORMAT:
        raise ValueError(f"{path} is of format {content.get('pack')!r} and vitrail {__version__} reads {FORMAT}")
    try:
        model, trunk, parameters = dict(content["model"]), content["trunk"], content["parameters"]
        pack = Pack(
            model=model,
            trunk=str(trunk["source"]),
            trunk_hash=str(trunk["sha256"]),
            shared=tuple(map(str, trunk["shared"])),
            num_stored=int(parameters["stored"]),
            num_shared=int(parameters["shared"]),
        )
    except WRONG_CONTENT:
        raise ValueError(f"{path} is incomplete: {remedy}") from None
    check_description(model, label=str(folder), file=PACK_FILE)
    return pack


def as_json(pack: Pack) -> dict[str, Any]:
    """A pack as `read_pack` reads it."""
    return {
        "pack": FORMAT,
        "model": pack.model,
        "trunk": {"source": pack.trunk, "sha256": pack.trunk_hash, "shared": list(pack.shared)},
        "parameters": {"stored": pack.num_stored, "shared": pack.num_shared},
    }


def tensors_of_trunk(trunk: Model | WeightSource, *, model: Model) -> dict[str, Tensor]:
    """A trunk's tensors under the names of `model`: those of a loaded one, or as they lie in a file.

    They keep their own shapes: nothing is resized, so that what is shared does not depend on how. Of a trunk with a
    head of its own they are those below that head.
    """
    prefix = "" if model.trunk is model else TRUNK
    if isinstance(trunk, Model):
        if trunk.is_folded:
            raise ValueError("a folded model is no trunk: give the model that was folded")
        return {f"{prefix}{name}": value for name, value in trunk.trunk.state_dict().items()}
    weights, _ = split_trunk(read_weights(trunk))
    below = model.trunk
    translation = translate_to_ours(weights.state, below, dialect=dialect_of(below, weights), grid=weights.grid)
    dtypes = {name: value.dtype for name, value in below.state_dict().items()}
    return {f"{prefix}{name}": value.to(dtypes[name]) for name, value in translation.state.items() if name in dtypes}


def check_trunk(
    pack: Pack, tensors: Mapping[str, Tensor], *, trunk: Model | WeightSource, wanted: Mapping[str, Tensor], label: str
) -> None:
    """Refuse a trunk that is not the pack's."""
    missing = [name for name in pack.shared if name not in tensors]
    misshapen = [name for name in pack.shared if name in tensors and tensors[name].shape != wanted[name].shape]
    if missing:
        reason = f"has no {missing[0]}"
    elif misshapen:
        shapes = [list(side[misshapen[0]].shape) for side in (tensors, wanted)]
        reason = f"has a {misshapen[0]} of {shapes[0]}, not {shapes[1]}"
    else:
        known = _REMEMBERED.setdefault(trunk, {}) if isinstance(trunk, Model) else None
        shared = {name: tensors[name] for name in pack.shared}
        if hash_tensors(shared, known=known) == pack.trunk_hash:
            return
        reason = "has other values"
    given = str(trunk) if isinstance(trunk, (str, os.PathLike)) else "the trunk given"
    raise ValueError(
        f"{label} is a pack for the trunk {pack.trunk_label}; {given} {reason}: give that trunk, trunk=PLACE"
    )


def find_shared(model: Model, trunk: Mapping[str, Tensor]) -> tuple[str, ...]:
    """The sorted names of what is the trunk's, bit for bit, and belongs neither to the classes nor to the grid."""
    head, of_grid = model.head_prefixes(), grid_tensors(model)
    return tuple(
        sorted(
            name
            for name, value in model.state_dict().items()
            if name in trunk and not name.startswith(head) and name not in of_grid and is_same(value, trunk[name])
        )
    )


def is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal bit for bit."""
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(as_bytes(one), as_bytes(other))


def check_replaceable(folder: Path) -> None:
    """Refuse to overwrite what is neither nothing, an empty folder nor a pack."""
    if not folder.exists() or (folder / PACK_FILE).is_file():
        return
    if not folder.is_dir() or not all(map(is_partial, folder.iterdir())):
        raise ValueError(f"{folder} is there already and is no pack: give another folder as out=")
