"""What a recipe of masked image modelling says beside what every recipe without labels does."""

from collections.abc import Set
from typing import Literal

from pydantic import Field, PositiveInt, model_validator
from pydantic_core import PydanticCustomError

from vitrail.settings.section import Section
from vitrail.tasks.unlabelled.settings import UnlabelledRecipe, WatchSettings


class MaskedSettings(Section):
    """What is masked, and what is to be said about it."""

    form: Literal["full", "mae"] = "full"
    """full: a learned token in place of masked patches; mae: the trunk sees the others alone, a decoder tells these"""
    mask: Literal["blocks", "random"] = "blocks"
    """patches that are masked: blocks of at least 16 of 196 (BEiT), or random ones (MAE)"""
    share: float = Field(default=75 / 196, gt=0.0, lt=1.0)
    """share of the patches that is masked; BEiT: 75 of 196, MAE: 0.75"""
    target: Literal["tokens", "pixels", "hog", "features"] = "tokens"
    """what is told of a masked patch: token (BEiT), normalised pixels (MAE), hog (MaskFeat), features of a teacher"""
    tokenizer: str | None = None
    """run of `vitrail train tokenizer` whose tokens are predicted"""
    teacher: str | None = None
    """model whose patches are predicted: a run, a saved model, or a name such as deit_small or timm/NAME"""
    decoder_dim: PositiveInt = 512
    """width of the decoder of the form mae"""
    decoder_depth: PositiveInt = 8
    """blocks of the decoder"""
    decoder_heads: PositiveInt = 16
    """attention heads of the decoder"""
    window: PositiveInt = 50
    """steps after which a code of the tokenizer that no patch had counts as dead"""

    def unused(self) -> Set[str]:
        """What other forms and targets read."""
        of_decoder = set() if self.form == "mae" else {"decoder_dim", "decoder_depth", "decoder_heads"}
        of_tokens = set() if self.target == "tokens" else {"tokenizer", "window"}
        return of_decoder | of_tokens | (set() if self.target == "features" else {"teacher"})

    @model_validator(mode="after")
    def check_decoder(self) -> "MaskedSettings":
        """Refuse heads that do not divide the decoder's width."""
        if self.form == "mae" and self.decoder_dim % self.decoder_heads:
            raise PydanticCustomError(
                "no_divisor",
                "decoder_dim={dim} must be a multiple of decoder_heads={heads}",
                {"dim": self.decoder_dim, "heads": self.decoder_heads},
            )
        return self


class MaskedRecipe(UnlabelledRecipe):
    """A recipe that learns to complete masked images."""

    task: str = "masked"
    masked: MaskedSettings = MaskedSettings()
    # Neighbours say little about what masks teach: MAE's ViT-B has 11 % by kNN and 81 % fine-tuned.
    watch: WatchSettings = WatchSettings(knn=False)
