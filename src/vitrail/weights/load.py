"""load_weights: any known source into a model, checked in full before anything is changed."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from vitrail.layers.grid import MODES, Grid
from vitrail.models.contract import TRUNK, Model
from vitrail.models.resizing import count_patches, resize_state
from vitrail.weights.misfit import Misfit, find_hints
from vitrail.weights.parameter_names import TIMM, VITRAIL, recognize_dialect, recognize_family
from vitrail.weights.translate import Translation, square_side, translate_to_ours
from vitrail.weights.weight_files import Weights
from vitrail.weights.weight_sources import WeightSource, read_weights

OPTIONAL = "num_batches_tracked"  # older files have none; it starts anew


def load_weights(
    model: Model,
    source: WeightSource,
    *,
    reset_head: bool = False,
    interpolation: str = "bicubic",
    grid: Grid | None = None,
) -> Model:
    """Load weights into a model and return it; what does not fit is an error, and then the model is as before.

    `source` is a .safetensors, .pth, .pt or .bin file, a folder with one, `hf://owner/name[@revision][/file]` or a
    state dict, under vitrail's names, the official ones or timm's. Of a training checkpoint the model is read, not
    its moving average. Weights of another resolution are resized (`interpolation` "bicubic", "bilinear", or
    "antialiased" as timm's); their patches form a square unless the file says otherwise or `grid` does, as (rows,
    columns). A state dict under our own names with as many patches as the model is taken to have the model's grid.

    `reset_head` leaves the classifier as the model has it, for another number of classes; with one pooling token
    per class these tokens too, and on a timm backbone with our attention pooling all that is ours.
    """
    if interpolation not in MODES:
        raise ValueError(f"interpolation must be one of {', '.join(MODES)}, not {interpolation!r}")
    if model.is_folded:
        raise ValueError("a folded model takes no weights: load them into the model that was folded and fold it again")
    weights = read_weights(source)
    prepared = fit_weights(model, weights, reset_head=reset_head, interpolation=interpolation, grid=grid)
    install(model, prepared)
    return model


def fit_weights(
    model: Model,
    weights: Weights,
    *,
    reset_head: bool = False,
    interpolation: str = "bicubic",
    grid: Grid | None = None,
    is_exact: bool = False,
) -> dict[str, Tensor]:
    """The tensors for `model`, under its names, in its shapes and dtypes.

    `is_exact` allows our own names only, and no resizing. Weights go on a model with a head on a trunk part by part; of
    the weights of such a model any other takes the trunk.
    """
    if model.trunk is not model:
        return fit_on_trunk(
            model, weights, reset_head=reset_head, interpolation=interpolation, grid=grid, is_exact=is_exact
        )
    weights = split_trunk(weights)[0]
    dialect = dialect_of(model, weights)
    if is_exact and dialect != VITRAIL:
        raise ValueError(f"{weights.label}: the names are {dialect}, not vitrail's; read it with load_weights")
    told = grid or weights.grid
    translation = translate_to_ours(weights.state, model, dialect=dialect, grid=told)
    wanted: dict[str, Tensor] = model.state_dict()
    if reset_head:
        translation.state, wanted = (without_head(state, model) for state in (translation.state, wanted))
    hints: list[str] = []
    resized: Mapping[str, Tensor] = translation.state
    if not is_exact:
        resized = resize_to(model, translation.state, hints, told=told, is_own=dialect == VITRAIL, mode=interpolation)
    misfit = compare(translation, resized, wanted)
    if misfit:
        family, source_family = model.family, recognize_family(weights.state)
        title = f"{weights.label}: the weights ({dialect} names) do not fit {model.name or family}"
        if source_family and model.foreign is None and family != source_family:
            title = (
                f"{weights.label}: the weights are of a {source_family} and {model.name or 'the model'} is a {family}"
            )
        elif is_exact:  # nobody chose these settings: they lie beside the weights
            misfit.hints = ["they are not those of the settings beside them, get both anew"]
        else:
            misfit.hints = [*hints, *find_hints(translation.state, wanted, model, head=model.head_prefixes())]
        raise ValueError(misfit.describe(title))
    return {name: value.to(wanted[name].dtype) for name, value in resized.items()}


def split_trunk(weights: Weights) -> tuple[Weights, dict[str, Tensor]]:
    """The weights of a trunk, under its own names, and those of what stands on it.

    Of other weights, all are the trunk's.
    """
    if not any(name.startswith(TRUNK) for name in weights.state):
        return weights, {}
    of_trunk = {name.removeprefix(TRUNK): value for name, value in weights.state.items() if name.startswith(TRUNK)}
    others = {name: value for name, value in weights.state.items() if not name.startswith(TRUNK)}
    return replace(weights, state=of_trunk), others


def fit_on_trunk(
    model: Model,
    weights: Weights,
    *,
    reset_head: bool,
    interpolation: str,
    grid: Grid | None,
    is_exact: bool,
) -> dict[str, Tensor]:
    """The tensors for a model with heads on a trunk: all of the trunk, and what fits of the heads, or all if exact.

    Of a classifier all but its head goes on the trunk. The classifier on the trunk is left out with `reset_head`.
    """
    of_trunk, others = split_trunk(weights)
    has_classifier = of_trunk is weights and not is_exact  # the trunk has none
    fitted = fit_weights(
        model.trunk, of_trunk, reset_head=has_classifier, interpolation=interpolation, grid=grid, is_exact=is_exact
    )
    wanted = {name: value for name, value in model.state_dict().items() if not name.startswith(TRUNK)}
    if reset_head:
        others = without_head(others, model)
    found = {
        name: value.to(wanted[name].dtype)
        for name, value in others.items()
        if name in wanted and value.shape == wanted[name].shape
    }
    if is_exact and (found.keys() != wanted.keys() or len(found) != len(others)):
        names = ", ".join(sorted(found.keys() ^ (wanted.keys() | others.keys()))[:3])
        raise ValueError(f"{weights.label}: the weights on the trunk do not fit its settings: {names}")
    return {f"{TRUNK}{name}": value for name, value in fitted.items()} | found


def without_head(state: Mapping[str, Tensor], model: Model) -> dict[str, Tensor]:
    return {name: value for name, value in state.items() if not name.startswith(model.head_prefixes())}


def dialect_of(model: Model, weights: Weights) -> str:
    if model.own_settings is not None or model.is_ours_alone:  # no other library has names for it
        return VITRAIL
    if model.foreign is not None:
        return VITRAIL if any(name.startswith(f"{model.foreign}.") for name in weights.state) else TIMM
    dialect = recognize_dialect(weights.state)
    if dialect is None:
        first = ", ".join(list(weights.state)[:4])
        raise ValueError(f"{weights.label}: its names ({first}, ...) are not those of a model of vitrail, DeiT or timm")
    return dialect


def resize_to(
    model: Model, state: Mapping[str, Tensor], hints: list[str], *, told: Grid | None, is_own: bool, mode: str
) -> Mapping[str, Tensor]:
    """Our tensors on the model's grid; where that can't be done they stay and `hints` says why."""
    new, count = model.grid, count_patches(model, state)
    if new is None or count is None:
        return state
    if told is not None and told[0] * told[1] != count:
        hints.append(f"a grid of {told[0]}x{told[1]} has {told[0] * told[1]} patches and the weights have {count}")
        return state
    old = told or guess_grid(count, new, is_own=is_own)
    if old is None:
        hints.append(f"the weights' {count} patches form no square: say their rows and columns, grid=(rows, columns)")
        return state
    try:
        return resize_state(model, state, old=old, new=new, mode=mode)
    except ValueError as error:  # of a layer that can't be resized
        hints.append(str(error))
        return state


def guess_grid(count: int, new: Grid, *, is_own: bool) -> Grid | None:
    """The grid of `count` patches whose source does not tell: a square, or the model's own."""
    side, is_same = square_side(count), count == new[0] * new[1]
    if is_same and (is_own or side is None):
        return new
    return (side, side) if side else None


def compare(translation: Translation, resized: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> Misfit:
    """All differences between the weights and what a model wants."""
    origins = translation.origins
    unexpected = [origins[name] for name in resized if name not in wanted]
    return Misfit(
        unexpected=[*translation.unknown, *dict.fromkeys(unexpected)],
        missing=[name for name in wanted if name not in resized and not name.endswith(OPTIONAL)],
        misshapen=[
            (name, list(translation.state[name].shape), list(wanted[name].shape))
            for name, value in resized.items()
            if name in wanted and value.shape != wanted[name].shape
        ],
    )


@torch.no_grad()
def install(model: Model, prepared: Mapping[str, Tensor]) -> None:
    """Copy fitting tensors into a model; one on the meta device takes copies of them as its parameters."""
    state = model.state_dict()
    if not any(value.is_meta for value in state.values()):
        for name, value in prepared.items():
            state[name].copy_(value)
        return
    values = {name: value.clone() for name, value in prepared.items()}
    for name in state.keys() - values.keys():
        if state[name].is_meta and not name.endswith(OPTIONAL):
            raise ValueError("the model is on the meta device and its head has no values: build it on a real device")
        values[name] = torch.zeros_like(state[name], device="cpu") if state[name].is_meta else state[name]
    model.load_state_dict(values, assign=True)
