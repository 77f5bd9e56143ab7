"""Translation (thesis 4.3.5), and our own recipe for a few ten thousand sentences on a laptop."""

from vitrail.settings.learning import OptimizerSettings, RegularisationSettings, ScheduleSettings
from vitrail.settings.recipe import Recipe
from vitrail.tasks.translate.settings import (
    NetworkSettings,
    TextEvaluationSettings,
    TextSettings,
    TranslateRecipe,
)


def translate_small() -> Recipe:
    """A small sequence-to-sequence ResMLP for a few ten thousand pairs of sentences.

    Command: vitrail train translate_small data=FOLDER out=runs/translate
    Cost: 40 minutes on two cores.
    Published: nothing, it is ours.
    Ours: not run.
    """
    return TranslateRecipe(
        name="translate_small",
        epochs=20.0,
        batch_size=3000,
        network=NetworkSettings(dim=256, depth=3, mlp_dim=1024, num_heads=4, norm="layer", layer_scale=1.0),
        text=TextSettings(vocabulary=8000, max_length=128, piece=1500),
        optimizer=OptimizerSettings(lr=1e-3, weight_decay=0.01, clip=1.0, betas=(0.9, 0.98)),
        schedule=ScheduleSettings(warmup_epochs=1.0, min_lr=1e-5),
        regularisation=RegularisationSettings(dropout=0.2),
        evaluation=TextEvaluationSettings(every=2.0),
    )
