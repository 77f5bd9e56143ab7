"""Everything the papers publish about their models: size, cost, regularisation and accuracy, each figure written once.

"CaiT" is "Going deeper with Image Transformers", "Three things" is "Three things everyone should know about Vision
Transformers", and "thesis" is H. Touvron's, which holds Grafit (chapter 2), DeiT and CaiT (3), ResMLP (4), PatchConvNet
(5), and DeiT III (6); docs/references.md lists them all.
"""

from vitrail.models.figures.catalogue import FIGURES
from vitrail.models.figures.find import Published, find_figure
from vitrail.models.figures.others import OTHERS
from vitrail.models.figures.record import SETUPS, Figures, Result, Score, Speed, Variant
from vitrail.models.figures.scores import SCORES

__all__ = [
    "FIGURES",
    "OTHERS",
    "SCORES",
    "SETUPS",
    "Figures",
    "Published",
    "Result",
    "Score",
    "Speed",
    "Variant",
    "find_figure",
]
