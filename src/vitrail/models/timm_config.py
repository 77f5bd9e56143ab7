"""Settings of timm's backbones, and what timm says of them."""

import difflib
from dataclasses import dataclass, field
from typing import Any

import timm

from vitrail.models.config import CheckedSettings, height_and_width, whole_sides

# Arguments of timm's models that are settings of ours, or not for the one who builds a model to say.
OUR_NAMES = {
    "in_chans": "in_channels",
    "num_classes": "num_classes",
    "img_size": "image_size",
    "drop_path_rate": "drop_path",
    "global_pool": "pool",
}
_WITHHELD = (
    "pretrained",
    "checkpoint_path",
    "pretrained_cfg",
    "pretrained_cfg_overlay",
    "features_only",
    "out_indices",
)


def check_timm_name(name: str) -> None:
    """Refuse a name that timm does not have; the tag of weights behind it too."""
    architecture, _, tag = name.partition(".")
    if not timm.is_model(architecture):
        near = difflib.get_close_matches(architecture, timm.list_models(), n=3)
        hint = f"did you mean {', '.join(f'timm/{known}' for known in near)}?" if near else "see timm.list_models()"
        raise ValueError(f"timm has no model {name!r}: {hint}")
    tags = [known.partition(".")[2] for known in timm.list_pretrained(f"{architecture}.*")]
    if tag and tag not in tags:
        raise ValueError(f"timm has no weights {name!r}; of {architecture} it has: {', '.join(tags) or 'none'}")


def find_timm_facts(name: str) -> dict[str, Any]:
    """What timm says of the weights of a model: where they are, input_size, mean, std and so on."""
    check_timm_name(name)
    facts = timm.get_pretrained_cfg(name)
    return {"input_size": (3, 224, 224)} if facts is None else facts.to_dict()


def check_options(options: object) -> None:
    """Refuse what timm.create_model would take for something else than the shape of a model."""
    if not isinstance(options, dict) or not all(isinstance(name, str) for name in options):
        raise ValueError(f"options are names and values for timm's model, as {{output_stride: 8}}, not {options!r}")
    for name in options:
        if name in OUR_NAMES:
            raise ValueError(f"options: {name} is the setting {OUR_NAMES[name]} of ours")
        if name in _WITHHELD:
            raise ValueError(f"options: {name} does not say how a backbone is built: leave it out")


@dataclass(frozen=True, kw_only=True)
class TimmSettings(CheckedSettings):
    """What a user may set of a timm backbone."""

    image_size: int | tuple[int, int] | None = None  # None: the size timm trained it at
    in_channels: int = 3
    num_classes: int = 1000
    pool: str = "average"  # timm's own pooling and classifier, or "attention": ours
    num_heads: int = 1  # heads of the pooling attention
    classifier: str = "linear"  # or "mlp", ours: two layers, batch norm and ReLU between them (thesis 2.4.6)
    distilled: bool = False  # two heads of ours on the pooled features, the second for a teacher's labels
    drop_path: float = 0.0
    small_images: bool = False  # a ResNet for about 32 pixels: first a convolution of 3x3 without stride, no pooling
    options: dict[str, Any] = field(default_factory=dict)  # what else timm's model takes: channels, output_stride ...

    def __post_init__(self) -> None:
        self.check_counts("in_channels", "num_heads")
        self.check_counts("num_classes", least=0)
        self.check_flags("distilled", "small_images")
        self.check_classifier()
        self.check_number("drop_path", below=1.0)
        check_options(self.options)
        if self.image_size is not None:
            object.__setattr__(self, "image_size", whole_sides(self.image_size))
            height_and_width(self.image_size)
        if self.pool not in ("average", "attention"):
            raise ValueError(f"pool must be average or attention, not {self.pool!r}")
        if self.pool == "average" and self.num_heads != 1:
            raise ValueError("num_heads is a setting of pool='attention'")


@dataclass(frozen=True, kw_only=True)
class TimmConfig(TimmSettings):
    """Settings of a timm backbone and its name."""

    timm_name: str

    def __post_init__(self) -> None:
        super().__post_init__()
        check_timm_name(self.timm_name)

    @property
    def has_own_classifier(self) -> bool:
        """Whether timm's own classifier answers."""
        return self.pool == "average" and not self.distilled and self.classifier == "linear"

    @property
    def timm_facts(self) -> dict[str, Any]:
        """What timm says of the weights it trained: input_size, fixed_input_size, mean, std and so on."""
        return find_timm_facts(self.timm_name)

    @property
    def timm_size(self) -> tuple[int, int]:
        """Height and width of the images timm trained it on."""
        height, width = self.timm_facts["input_size"][-2:]
        return height, width

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the image."""
        return self.timm_size if self.image_size is None else height_and_width(self.image_size)
