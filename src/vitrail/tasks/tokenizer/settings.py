"""What a recipe of tokenizers says beside what every recipe without labels does."""

from collections.abc import Set
from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveInt

from vitrail.settings.model import ModelSettings
from vitrail.settings.section import Section
from vitrail.tasks.unlabelled.settings import UnlabelledRecipe, WatchSettings


class TokenizerSettings(Section):
    """Tokenizer that is learnt: codes, and what maps a patch to one of them."""

    kind: Literal["dvae", "kmeans"] = "dvae"
    """dvae: a small discrete VAE, trained; kmeans: clusters of patches, found before the first step and then refined"""
    codes: int = Field(default=8192, ge=2)
    """number of codes"""
    patch_size: PositiveInt = 8
    """side of a patch, which gets one token; image_size over it must be the grid of the model that is to learn them"""
    code_dim: PositiveInt = 32
    """width of the codes of a dvae"""
    dim: PositiveInt = 128
    """width of the encoder and decoder of a dvae"""
    depth: int = Field(default=2, ge=0)
    """residual blocks of each of them"""
    commitment: NonNegativeFloat = 0.25
    """weight of the loss that keeps a dvae's vectors near their codes"""
    teacher: str | None = None
    """model whose patches kmeans clusters, a run, a saved model or a name such as deit_small; null: pixels"""
    sampled: int = Field(default=100_000, ge=2)
    """patches that kmeans looks at before the first step, at most"""
    window: PositiveInt = 20
    """steps after which a code that no patch was mapped to counts as dead"""
    revive: bool = True
    """put a dead code on a patch of the batch"""

    def unused(self) -> Set[str]:
        """What the other kind reads."""
        return {"teacher", "sampled"} if self.kind == "dvae" else {"code_dim", "dim", "depth", "commitment"}


class TokenizerRecipe(UnlabelledRecipe):
    """A recipe that learns visual tokens."""

    task: str = "tokenizer"
    tokenizer: TokenizerSettings = TokenizerSettings()
    model: ModelSettings = ModelSettings(name="tokenizer")
    watch: WatchSettings = WatchSettings(knn=False, probe_every=None)

    def unused(self) -> Set[str]:
        """What measures features, of which a tokenizer has none."""
        return {"watch"}
