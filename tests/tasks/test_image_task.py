"""What tasks on images decide by themselves."""

import pytest

from vitrail.settings.data import DataSettings
from vitrail.settings.model import ModelSettings
from vitrail.tasks.classify.settings import ClassifyRecipe
from vitrail.tasks.classify.task import Classify
from vitrail.tasks.site import Site


@pytest.mark.parametrize(
    ("epochs", "workers", "cores", "expected"),
    [
        (10.0, None, 2, 0),  # a short run reads by itself
        (400.0, None, 1, 0),  # as one on a single core does
        (400.0, None, 2, 1),
        (400.0, None, 5, 2),
        (400.0, 0, 2, 0),  # what the recipe says holds
        (10.0, 2, 1, 2),
    ],
)
def test_long_runs_on_several_cores_read_in_processes_of_their_own(
    epochs: float, workers: int | None, cores: int, expected: int
) -> None:
    recipe = ClassifyRecipe(
        epochs=epochs,
        batch_size=8,
        image_size=16,
        model=ModelSettings(name="deit_tiny", settings={"depth": 1, "dim": 16, "num_heads": 1, "patch_size": 8}),
        data=DataSettings(spec="shapes:size=16,count=64,val=16", workers=workers),
    )
    task = Classify(recipe, Site(num_lanes=cores))
    task.attach(task.make_model(task.describe(task.open().describe())))
    assert task.make_loaders(num_parts=1, listing=None).train.num_workers == expected
