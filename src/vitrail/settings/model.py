"""The model that a run trains."""

from collections.abc import Set
from typing import Any, Literal

from pydantic import Field

from vitrail.settings.section import Section


class ModelSettings(Section):
    """Model to train."""

    name: str = "deit_small"
    """name of the model: one of `vitrail models`, or timm/NAME"""
    init: str | None = None
    """weights to start from: pretrained (or pretrained@384,in22k), a run, a saved model, a file, hf://OWNER/NAME"""
    train_only: str = "all"
    """parts that learn besides the head: attention, ffn, norm, positions, stem, blocks.18+, several with commas"""
    position_resize: Literal["bicubic", "bilinear"] = "bicubic"
    """interpolation that fits weights to start from, such as positions, to another image size"""
    settings: dict[str, Any] = Field(default_factory=dict)
    """further settings of the model, such as {depth: 6, patch_size: 4}"""

    def unused(self) -> Set[str]:
        """What is read only where there are weights to start from."""
        return {"position_resize"} if self.init is None else set()
