"""The labelled images of a run, opened again for its report, as far as they are still there."""

from dataclasses import dataclass

from vitrail.tasks.contract import RunReader
from vitrail.tasks.images.labelled_data import LabelledData, open_labelled


@dataclass(frozen=True, eq=False)
class OpenedData:
    """Both splits, or why they can't be had."""

    data: LabelledData | None
    reason: str = ""


def open_run_data(run: RunReader) -> OpenedData:
    """The data of the stage that a run has come to."""
    recipe = run.stage_recipe
    if recipe is None:
        return OpenedData(None, "there is no recipe to say where the data is.")
    try:
        return OpenedData(open_labelled(recipe.data))
    except Exception as error:  # whatever has become of the data, there is a report
        return OpenedData(None, f"the data cannot be opened ({error}).")
