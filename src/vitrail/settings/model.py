"""The model that a run trains."""

from collections.abc import Set
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from vitrail.settings.section import Section

NO_WEIGHTS = "none"  # as weights to start from: random ones, also where a recipe names others
PRETRAINED = "pretrained"  # as weights to start from: those published for the model, whichever it is


class ModelSettings(Section):
    """Model to train."""

    name: str = "deit_small"
    """name of the model: one of `vitrail models`, or timm/NAME"""
    init: str | None = None
    """weights to start from: none, pretrained (or pretrained@384,in22k), a run or saved model, a file, hf://OWNER/NAME"""
    head_start: Literal["auto", "probe", "random", "zero"] = "auto"
    """way a new classifier on such weights begins: probe (of their features), random, zero; auto: probe if cheap"""
    layer_scale_of: str | None = None
    """a training whose LayerScale weights are taken and kept fixed while all else is learnt anew (CaiT 4.1.2)"""
    train_only: str = "all"
    """parts that learn besides the head: attention, ffn, norm, positions, stem, blocks.18+, or head: no other"""
    position_resize: Literal["bicubic", "bilinear", "antialiased"] = "bicubic"
    """interpolation that fits weights to start from, such as positions, to another image size; antialiased: timm's"""
    settings: dict[str, Any] = Field(default_factory=dict)
    """further settings of the model, such as {depth: 6, patch_size: 4}"""

    @property
    def source(self) -> str | None:
        """Where weights are read before training: those to start from, or those of LayerScale alone."""
        return self.init or self.layer_scale_of

    @field_validator("init", mode="before")
    @classmethod
    def read_none(cls, init: Any) -> Any:
        """Take the word none for no weights, as `data.val=none` does; a folder of that name is ./none."""
        return None if init == NO_WEIGHTS else init

    @model_validator(mode="after")
    def check_source(self) -> "ModelSettings":
        """Refuse to start from the weights of a training and to train anew at once."""
        if self.init is not None and self.layer_scale_of is not None:
            raise PydanticCustomError("two_sources", "init and layer_scale_of are two ways to begin: leave one out")
        if self.init is None and self.head_start == "probe":
            raise PydanticCustomError("no_source", "head_start=probe reads features of weights: add init=pretrained")
        return self

    def unused(self) -> Set[str]:
        """What is read only where there are weights to start from."""
        return {"position_resize", "head_start"} if self.init is None else set()
