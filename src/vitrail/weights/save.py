"""save_model and load_model: a folder with model.safetensors and a config.json that says what to build."""

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail import __version__
from vitrail.heads.around_trunk import AroundTrunk
from vitrail.heads.embed import EmbeddingModel, EmbeddingSettings
from vitrail.heads.mask_rcnn import Detector, DetectorSettings
from vitrail.heads.segment import SegmentModel, SegmentSettings
from vitrail.models.build import FAMILIES, OWN, build_model, build_own_model, build_timm_model
from vitrail.models.config import config_from_settings
from vitrail.models.contract import AnyModel, Model, Preprocessing
from vitrail.models.timm_backbone import TimmBackbone
from vitrail.models.tokenizer import Tokenizer, TokenizerConfig
from vitrail.storage import read_json, replacing_files, settle, write_json
from vitrail.storage.reading import WRONG_CONTENT
from vitrail.storage.tensors import write_tensors
from vitrail.translation.network import Seq2Seq, Seq2SeqConfig
from vitrail.weights.hub import HUB_PREFIX, HubAddress, fetch
from vitrail.weights.load import fit_weights, install
from vitrail.weights.size_check import check_sizes
from vitrail.weights.weight_files import GRID_KEY, Weights, format_grid, read_file
from vitrail.weights.weight_sources import locate

WEIGHTS_FILE, CONFIG_FILE = "model.safetensors", "config.json"
VERSION_KEY = "vitrail"
# Models that are saved with what stands on their trunk: the settings of that, and the model.
ON_TRUNK: dict[str, tuple[type[Any], Callable[..., AroundTrunk]]] = {
    EmbeddingModel.family: (EmbeddingSettings, EmbeddingModel),
    SegmentModel.family: (SegmentSettings, SegmentModel),
    Detector.family: (DetectorSettings, Detector),
}
KNOWN_FAMILIES = (*FAMILIES, TimmBackbone.family, *ON_TRUNK, Tokenizer.family, Seq2Seq.family, OWN)
CONFIG_KEYS = (VERSION_KEY, "family", "name", "settings")
IMAGE_KEYS = ("preprocessing",)  # beside these, of a model that takes images


def save_model(
    model: AnyModel, folder: str | os.PathLike[str], *, documents: Mapping[str, Mapping[str, Any]] | None = None
) -> None:
    """Write a model to a folder, which is made if need be: its weights and config, with the preprocessing of images.

    `documents` are JSON files by name that belong to it. All files are complete before they take the place of older
    ones, and load_model never sees one without the others.
    """
    path = Path(folder).expanduser()
    check_saveable(model)
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path}: is a file; save_model writes a folder")
    grid = model.grid
    metadata = {"format": "pt", VERSION_KEY: __version__, **({GRID_KEY: format_grid(grid)} if grid else {})}
    with replacing_files(path, keeps_others=True) as draft:
        write_tensors(separate_tensors(model), draft / WEIGHTS_FILE, metadata=metadata)
        write_json(draft / CONFIG_FILE, describe(model))
        for name, content in (documents or {}).items():
            write_json(draft / name, content)


def load_model(source: str | os.PathLike[str]) -> Model:
    """The model of images that save_model wrote to a folder or that lies on the hub (`hf://owner/name`), in eval mode.

    Its names, shapes and settings have to fit exactly; the parameters are float32 whatever the file's precision.
    """
    model = load_any_model(source)
    if not isinstance(model, Model):
        raise ValueError(f"{source}: is a {model.family}, which takes {model.takes} and no images")
    return model


def load_any_model(source: str | os.PathLike[str]) -> AnyModel:
    """The model that save_model wrote, whatever it takes, in eval mode.

    Its names, shapes and settings have to fit exactly; the parameters are float32 whatever the file's precision.
    """
    config_file = locate_config(source)
    description = read_description(config_file, label=f"{source}")
    weights = read_file(locate(source), label=f"{source}")
    place = f"{source}: {CONFIG_FILE}"
    check_sizes(description["settings"], weights.state, num_tensors=len(weights.state), label=place)
    if description["family"] == Seq2Seq.family:
        return _load_seq2seq(description, weights, label=f"{source}")
    trunk = description["settings"].get("trunk_family", description["family"])
    # Others than ours may keep buffers that their weights do not hold: they are built in full; ours takes memory once.
    with contextlib.nullcontext() if trunk in (TimmBackbone.family, OWN) else torch.device("meta"):
        model = build(description, label=f"{source}")
    install(model, fit_weights(model, weights, is_exact=True))
    return model.eval()


def _load_seq2seq(description: dict[str, Any], weights: Weights, *, label: str) -> AnyModel:
    """A model of text, whose weights have our names alone."""
    name = str(description["name"])
    try:
        model = Seq2Seq(config_from_settings(Seq2SeqConfig, name, with_tuples(description["settings"])))
    except WRONG_CONTENT as error:
        reason = " ".join(str(error).split()) if isinstance(error, ValueError) else f"{type(error).__name__} {error}"
        raise ValueError(f"{label}: {CONFIG_FILE}: {reason}") from error
    wanted = {key: value.shape for key, value in model.state_dict().items()}
    found = {key: value.shape for key, value in weights.state.items()}
    if wanted != found:
        odd = next(key for key in (*wanted, *found) if wanted.get(key) != found.get(key))
        raise ValueError(f"{label}: the weights are not those of the settings beside them ({odd}): get both anew")
    model.load_state_dict({key: value.float() for key, value in weights.state.items()})
    model.name = name
    return model.eval()


def describe(model: AnyModel) -> dict[str, Any]:
    """The content of config.json."""
    return {VERSION_KEY: __version__, **model.describe()}


def check_saveable(model: AnyModel) -> None:
    """Refuse a model of ours that no longer has the parameters that its config asks for."""
    if not isinstance(model, Model):
        return
    if model.trunk is not model:
        check_saveable(model.trunk)
        return
    ours: dict[str, type[Model]] = {family: kind for family, (_, kind) in FAMILIES.items()}
    kind = {**ours, Tokenizer.family: Tokenizer}.get(model.family)
    if model.own_settings is None and model.foreign is None and (kind is None or not isinstance(model, kind)):
        raise ValueError(f"{type(model).__name__} is not a model of vitrail: build it with vitrail.create_model")
    state = model.state_dict()
    if any(value.is_meta for value in state.values()):
        raise ValueError("the model is on the meta device and has no weights to save")
    if kind is None:
        return
    with torch.device("meta"):
        built = kind(model.config).state_dict()
    if {name: value.shape for name, value in state.items()} != {name: value.shape for name, value in built.items()}:
        raise ValueError("the model's parameters are no longer those of its config: save it before it is folded or cut")


def separate_tensors(model: AnyModel) -> dict[str, Tensor]:
    """The state dict on the CPU, contiguous, and tensors that share memory copied, as the file format wants them."""
    separate: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, value in model.state_dict().items():
        tensor = value.cpu().contiguous()
        address = tensor.untyped_storage().data_ptr()
        separate[name] = tensor.clone() if address in seen else tensor
        seen.add(address)
    return separate


def locate_config(source: str | os.PathLike[str]) -> Path:
    text = os.fspath(source)
    if text.startswith(HUB_PREFIX):
        address = HubAddress.parse(text)
        if address.file:
            raise ValueError(f"{address}: load_model takes a whole repository, {HUB_PREFIX}owner/name[@revision]")
        return fetch(address, files=(CONFIG_FILE,))
    folder = Path(text).expanduser()
    if not folder.is_dir():
        raise ValueError(f"{text}: no such folder; load_model reads what save_model wrote (a bare file: load_weights)")
    settle(folder)
    if not (folder / CONFIG_FILE).is_file():
        raise ValueError(f"{text}: no {CONFIG_FILE} in it; create the model and use load_weights(model, {text!r})")
    return folder / CONFIG_FILE


def read_description(path: Path, *, label: str) -> dict[str, Any]:
    """The content of a config.json, checked as far as it can be without building the model."""
    content = read_json(path, label=f"{label}: {CONFIG_FILE}", remedy="save the model again")
    if not isinstance(content, dict) or VERSION_KEY not in content:
        raise ValueError(f"{label}: {CONFIG_FILE} was not written by vitrail; create the model and use load_weights")
    check_description(content, label=label, file=CONFIG_FILE)
    return content


def check_description(content: dict[str, Any], *, label: str, file: str) -> None:
    """Refuse a description of a model that lacks a part, or whose family this version does not have."""
    of_images = () if content.get("family") == Seq2Seq.family else IMAGE_KEYS
    missing = [key for key in (*CONFIG_KEYS, *of_images) if key not in content]
    groups = ("settings", *of_images)
    if missing or not all(isinstance(content[key], dict) for key in groups):
        raise ValueError(f"{label}: {file} is incomplete ({', '.join(missing) or ', '.join(groups)})")
    if content["family"] not in KNOWN_FAMILIES:
        known = ", ".join(KNOWN_FAMILIES)
        raise ValueError(f"{label}: unknown family {content['family']!r}; this vitrail {__version__} knows {known}")


def build(description: dict[str, Any], *, label: str, file: str = CONFIG_FILE) -> Model:
    """The model of a description; settings this version does not have are an error that names both versions."""
    family, name = description["family"], str(description["name"])
    settings, prepared = (with_tuples(description[part]) for part in ("settings", "preprocessing"))
    try:
        preprocessing = config_from_settings(Preprocessing, "preprocessing", prepared)
        model: Model
        if family in ON_TRUNK:
            model = build_on_trunk(family, name=name, settings=settings)
        else:
            model = build_family(family, name=name, settings=settings)
    except WRONG_CONTENT as error:
        reason = " ".join(str(error).split()) if isinstance(error, ValueError) else f"{type(error).__name__} {error}"
        raise ValueError(
            f"{label}: {file}, of vitrail {description[VERSION_KEY]} ({__version__} here): {reason}"
        ) from error
    model.name, model.preprocessing = name, preprocessing
    return model


def build_family(family: str, *, name: str, settings: dict[str, Any]) -> Model:
    """Build a classifier, or the trunk of a model with a head on it."""
    if family == TimmBackbone.family:
        return build_timm_model(str(settings.pop("timm_name", "")), **settings)
    if family == OWN:
        return build_own_model(name, settings)
    if family == Tokenizer.family:
        return Tokenizer.made(config_from_settings(TokenizerConfig, name, settings))
    if family not in FAMILIES:
        raise ValueError(f"there is no family {family!r}")
    return build_model(family, name=name or family, settings=settings)


def build_on_trunk(family: str, *, name: str, settings: dict[str, Any]) -> AroundTrunk:
    """Build a model with a head on a trunk from the parts of its config."""
    if set(settings) != {"trunk_family", "trunk_name", "trunk", "head"}:
        raise ValueError(f"settings of a model of the family {family} must be trunk_family, trunk_name, trunk and head")
    if not all(isinstance(settings[part], dict) for part in ("trunk", "head")):
        raise ValueError(f"trunk and head of a model of the family {family} must be objects with their settings")
    trunk_name = str(settings["trunk_name"])
    trunk = build_family(str(settings["trunk_family"]), name=trunk_name, settings=with_tuples(settings["trunk"]))
    head, kind = ON_TRUNK[family]
    return kind(trunk, config_from_settings(head, name, with_tuples(settings["head"])))


def with_tuples(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as configs have them: JSON knows lists only."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()}
