"""How a segmentation run looked at images, kept in task.json beside its weights, so that all look alike later."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from vitrail.evaluation.segmenting import Looking
from vitrail.tasks.segment.settings import SegmentEvaluationSettings

_KEY = "looking"
_FIELDS = {"short_side", "long_side", "window", "overlap", "scales", "flip"}


def note_looking(settings: SegmentEvaluationSettings) -> dict[str, Any]:
    """What task.json keeps."""
    return {_KEY: settings.model_dump(mode="json", include=_FIELDS)}


def read_looking(description: Mapping[str, Any]) -> Looking:
    """How the run of a model looked at images; plainly where nothing was kept."""
    noted = description.get(_KEY, {})
    try:
        if not isinstance(noted, Mapping) or not set(noted) <= _FIELDS:
            raise ValueError
        return SegmentEvaluationSettings.model_validate(dict(noted)).build()
    except (ValidationError, ValueError) as error:
        raise ValueError(
            f"task.json beside the weights is damaged: {_KEY!r} does not say how to look at images"
        ) from error
