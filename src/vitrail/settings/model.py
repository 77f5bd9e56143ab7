"""What is trained."""

from collections.abc import Set
from typing import Any, Literal

from pydantic import Field

from vitrail.settings.section import Section


class ModelSettings(Section):
    """What is trained."""

    name: str = "deit_small"
    """a name of `vitrail models`, or timm/NAME"""
    init: str | None = None
    """weights to start from: a run, a saved model, a file of official or timm weights, hf://OWNER/NAME"""
    train_only: str = "all"
    """parts that learn besides the head: attention, ffn, norm, positions, stem, blocks.18+, several with commas"""
    position_resize: Literal["bicubic", "bilinear"] = "bicubic"
    """how weights to start from are fitted to another image size"""
    settings: dict[str, Any] = Field(default_factory=dict)
    """further settings of the model, such as {depth: 6, patch_size: 4}"""

    def unused(self) -> Set[str]:
        """What is read only where there are weights to start from."""
        return {"position_resize"} if self.init is None else set()
