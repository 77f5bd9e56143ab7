"""Everything the papers publish about each catalogue model: size, cost, regularisation and accuracy.

"CaiT" is "Going deeper with Image Transformers", "Three things" is "Three things everyone should know about Vision
Transformers", and "thesis" is H. Touvron's, which holds DeiT (chapter 3), ResMLP (4), PatchConvNet (5), DeiT III (6).
"""

from vitrail.models.figures.cait import CAIT
from vitrail.models.figures.deit import DEIT
from vitrail.models.figures.deit3 import DEIT3
from vitrail.models.figures.patchconvnet import PATCHCONVNET
from vitrail.models.figures.record import Figures, Result, Variant
from vitrail.models.figures.resmlp import RESMLP
from vitrail.models.figures.vit import VIT

__all__ = ["FIGURES", "Figures", "Result", "Variant"]

FIGURES: dict[str, Figures] = {**DEIT, **DEIT3, **VIT, **CAIT, **RESMLP, **PATCHCONVNET}
