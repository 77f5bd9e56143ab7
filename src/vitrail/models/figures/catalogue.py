"""Published figures of every catalogue model, by its name."""

from dataclasses import replace

from vitrail.models.figures.cait import CAIT
from vitrail.models.figures.deit import DEIT
from vitrail.models.figures.deit3 import DEIT3
from vitrail.models.figures.patchconvnet import PATCHCONVNET
from vitrail.models.figures.record import Figures
from vitrail.models.figures.resmlp import RESMLP
from vitrail.models.figures.speeds import SPEEDS
from vitrail.models.figures.vit import VIT

FIGURES: dict[str, Figures] = {
    name: replace(figures, speeds=SPEEDS.get(name, ()))
    for family in (DEIT, DEIT3, VIT, CAIT, RESMLP, PATCHCONVNET)
    for name, figures in family.items()
}
