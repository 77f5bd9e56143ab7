"""Measuring a trained model, whatever it has learnt."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitrail.evaluation.together import Alone, Together
from vitrail.inference.passes import check_keys, find_recipe, read_whole, seeing
from vitrail.inference.trained import Trained, load_whatever
from vitrail.settings.text import read_recipe
from vitrail.tasks import find_task
from vitrail.tasks.contract import EvaluationRequest, Initial
from vitrail.tasks.results import Evaluation
from vitrail.training.runs.run_folder import find_run


def evaluate(
    source: str | os.PathLike[str],
    *,
    data: str | None = None,
    sizes: int | Sequence[int] = (),
    crop_ratios: float | Sequence[float] = (),
    tokens: bool = False,
    scales: float | Sequence[float] = (),
    flip: bool = False,
    window: int | None = None,
    short_side: int | None = None,
    beam: int | None = None,
    world: Together | None = None,
    **settings: Any,
) -> Evaluation:
    """Measure a run, a saved model or a pack on data; without `data` on the val of the run.

    `sizes` and `crop_ratios` are compared, `tokens` says how alike class and distillation token are. Segmentation is
    measured at several `scales`, mirrored too with `flip`, by a sliding `window`, at a `short_side`; translation with
    another `beam`. Further settings are those of `vitrail evaluate`: split, level, image_size, crop_ratio, batch_size,
    workers, precision, device and trunk. Processes that measure together, as a `world` that they have joined, look at a
    share of the data each; every one of them gets all figures.
    """
    text = os.fspath(source)
    check_keys(settings)
    given = {**settings, **({} if data is None else {"data": data})}
    trunk = given.get("trunk")
    trained = load_whatever(text, trunk=None if trunk is None else str(trunk))
    if isinstance(trained, Trained):
        trained = seeing(trained, given)
    for name, value in (("window", window), ("short_side", short_side), ("beam", beam)):
        if value is not None:
            read_whole(value, name)
    options = {"sizes": _several(sizes), "crop_ratios": _several(crop_ratios), "tokens": tokens}
    options |= {"scales": _several(scales), "flip": flip, "window": window, "short_side": short_side, "beam": beam}
    recipe = find_recipe(text)
    learnt = None if recipe is None else lambda: read_learnt(text)
    request = EvaluationRequest(text, trained, given, options, recipe, learnt, world or Alone())
    return find_task(trained.task).evaluate(request)


def read_learnt(source: str) -> Initial:
    """All that a run has learnt, by its newest checkpoint: with the head that stood on what it saved."""
    from vitrail.training.runs.checkpoint import Checkpoints, load_run_state

    folder = find_run(Path(source).expanduser())
    newest = Checkpoints(folder.checkpoints).newest()
    if newest is None:
        raise ValueError(f"it needs a checkpoint of the run, and {folder.checkpoints} has none")
    state = load_run_state(newest, num_stages=read_recipe(folder.recipe_file).num_stages)
    weights, average = state["model"], state["average"]
    if average is not None:
        weights = {**weights, **average["weights"], **average["buffers"]}
    return Initial(weights, None, state["data"])


def _several(numbers: float | Sequence[float]) -> list[float]:
    return [numbers] if isinstance(numbers, (int, float)) else list(numbers)
