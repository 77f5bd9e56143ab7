"""Four levels of a pyramid made of a trunk's one resolution (XCiT section 4.3; ViTDet section 3 for `simple`)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitrail.layers.norm import EPSILON
from vitrail.layers.stem import ChannelsFirstLayerNorm
from vitrail.models.config import CheckedSettings
from vitrail.models.contract import Features, Model

KINDS = ("blocks", "last", "chained", "simple")
NORMS = ("batch", "layer")
SCALES = (4.0, 2.0, 1.0, 0.5)  # sides of the levels over those of the trunk's map
_DEPTHS = (4, 6, 8, 12)  # XCiT's out_indices 3, 5, 7, 11, which count from 0, as blocks behind which a map is read
_OF = 12


@dataclass(frozen=True, kw_only=True)
class PyramidSettings(CheckedSettings):
    """Settings of a pyramid."""

    # Maps behind four blocks; the "last" map at all levels, where "chained" goes on from the level twice as fine to the
    # finest one; or ViTDet's "simple" pyramid of it.
    kind: str = "blocks"
    blocks: tuple[int, ...] | None = None  # the four blocks, counted from 0; None: 3, 5, 7, 11 of 12 in proportion
    channels: int = 256  # width of each level of the simple pyramid; others keep the trunk's
    norm: str = "batch"  # on the way to the finest level, but for the simple pyramid, which has layer norm
    scale: float = SCALES[0]  # side of the finest level over that of the trunk's map; each further one has half of it

    def __post_init__(self) -> None:
        self.check_choice("kind", KINDS)
        self.check_choice("norm", NORMS)
        self.check_counts("channels")
        if self.scale not in SCALES[:3]:
            raise ValueError(f"scale must be 4, 2 or 1, not {self.scale}")
        if self.blocks is not None:
            object.__setattr__(self, "blocks", tuple(self.blocks))
            if self.kind != "blocks":
                raise ValueError(f"blocks are chosen for the pyramid of kind blocks: leave them out with {self.kind}")
            if len(self.blocks) != len(SCALES):
                raise ValueError(f"a pyramid has {len(SCALES)} levels: name as many blocks, not {len(self.blocks)}")


class Pyramid(nn.Module):
    """Maps at a quarter, half, once and twice the trunk's stride: 4, 8, 16 and 32 pixels for patches of 16.

    `levels` are the blocks to ask a trunk for, `channels` the width and `strides` the pixels of a cell of each level of
    the result. A trunk with stages of its own, as timm's ResNets, gives its last four as they are.
    """

    def __init__(self, trunk: Model, settings: PyramidSettings | None = None) -> None:
        super().__init__()
        settings = settings or PyramidSettings()
        self.settings = settings
        self.levels: tuple[int, ...] = ()
        scales = tuple(settings.scale / SCALES[0] * scale for scale in SCALES)
        if settings.kind == "blocks":
            self.levels, maps = choose_levels(trunk, settings.blocks)
            is_staged = len({stride for _, stride in maps}) > 1
            scales = (1.0,) * len(SCALES) if is_staged else scales
        else:
            maps = look_at_levels(trunk, ()) * len(SCALES)
        is_simple = settings.kind == "simple"
        steps = [
            _simple_level(dim, scale=scale, channels=settings.channels) if is_simple else _level(dim, scale, settings)
            for (dim, _), scale in zip(maps, scales, strict=True)
        ]
        self.steps = nn.ModuleList(steps)
        self.channels = tuple(settings.channels if is_simple else dim for dim, _ in maps)
        self.strides = tuple(stride / scale for (_, stride), scale in zip(maps, scales, strict=True))

    def read(self, trunk: Model, images: Tensor) -> tuple[Tensor, ...]:
        """The levels of images [batch, channels, height, width]."""
        return self(trunk.features(images, levels=self.levels))

    def forward(self, features: Features) -> tuple[Tensor, ...]:
        """The levels, finest first, each [batch, channels, height, width], of what the trunk said at `levels`."""
        maps = features.levels if self.levels else (features.patches,) * len(self.steps)
        if self.settings.kind == "chained" and self.settings.scale == SCALES[0]:
            finest, *others = self.steps
            levels = [step(values) for step, values in zip(others, maps[1:], strict=True)]
            return finest(levels[0]), *levels
        return tuple(step(values) for step, values in zip(self.steps, maps, strict=True))


def choose_levels(trunk: Model, blocks: Sequence[int] | None = None) -> tuple[tuple[int, ...], list[tuple[int, float]]]:
    """The blocks or stages whose maps are read, and channels and stride of each map.

    Where stages differ in their resolution it is the last four.
    """
    count = trunk.num_levels
    if not count:
        raise ValueError(f"{trunk.name} gives its last map only: choose the pyramid of kind last or simple")
    by_depth = tuple(max(round(depth * count / _OF), 1) - 1 for depth in _DEPTHS)
    levels = by_depth if blocks is None else tuple(blocks)
    first, *maps, last = look_at_levels(trunk, (0, *levels))
    if blocks is not None or first[1] == last[1]:
        return levels, maps
    if count < len(SCALES):
        raise ValueError(f"{trunk.name} has {count} stages, fewer than the {len(SCALES)} levels: choose kind last")
    levels = tuple(range(count - len(SCALES), count))
    return levels, look_at_levels(trunk, levels)[:-1]


def look_at_levels(trunk: Model, levels: Sequence[int]) -> list[tuple[int, float]]:
    """Channels and stride of the maps at levels and, behind them, of the last map; found on an image that is empty."""
    parameter, was_training = next(trunk.parameters()), trunk.training
    height = trunk.config.size[0]
    trunk.eval()
    try:
        with torch.no_grad():
            found = trunk.features(
                parameter.new_zeros(1, trunk.config.in_channels, *trunk.config.size), levels=tuple(levels)
            )
    finally:
        trunk.train(was_training)
    return [(maps.shape[1], height / maps.shape[2]) for maps in (*found.levels, found.patches)]


def freeze_unread(trunk: Model, pyramid: Pyramid | None = None) -> None:
    """Leave out of training what no map depends on: the class stage, and the last norm where blocks are read."""
    unread = [trunk.class_stage]
    if pyramid is not None and pyramid.levels:
        unread += [getattr(part, "norm", None) for part in (trunk, getattr(trunk, trunk.foreign or "", None))]
    for part in unread:
        if isinstance(part, nn.Module):
            part.requires_grad_(False)


def _level(dim: int, scale: float, settings: PyramidSettings) -> nn.Module:
    """XCiT's way to a level: up by transposed convolutions, down by max-pooling."""
    if scale == 4.0:
        norm = nn.BatchNorm2d(dim) if settings.norm == "batch" else ChannelsFirstLayerNorm(dim, eps=EPSILON)
        first = () if settings.kind == "chained" else (_double(dim, dim),)
        return nn.Sequential(*first, norm, nn.GELU(), _double(dim, dim))
    return _double(dim, dim) if scale == 2.0 else _same_or_less(scale)


def _simple_level(dim: int, *, scale: float, channels: int) -> nn.Module:
    """ViTDet's way to a level: as above with halved widths and layer norm, then a product and a convolution."""
    if scale == 4.0:
        norm = ChannelsFirstLayerNorm(dim // 2, eps=EPSILON)
        steps = [_double(dim, dim // 2), norm, nn.GELU(), _double(dim // 2, dim // 4)]
    else:
        steps = [_double(dim, dim // 2) if scale == 2.0 else _same_or_less(scale)]
    width = {4.0: dim // 4, 2.0: dim // 2}.get(scale, dim)
    for before, side in ((width, 1), (channels, 3)):
        steps.append(nn.Conv2d(before, channels, side, padding=side // 2, bias=False))
        steps.append(ChannelsFirstLayerNorm(channels, eps=EPSILON))
    return nn.Sequential(*steps)


def _double(before: int, after: int) -> nn.Module:
    return nn.ConvTranspose2d(before, after, 2, stride=2)


def _same_or_less(scale: float) -> nn.Module:
    return nn.Identity() if scale == 1.0 else nn.MaxPool2d(round(1.0 / scale), ceil_mode=True)
