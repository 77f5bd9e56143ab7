"""A model as it is exported: bytes in, normalisation inside, named tensors out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

from vitrail.inference.folding import as_folded
from vitrail.models.contract import Model, Preprocessing

Layout = Literal["nchw", "nhwc"]
LAYOUTS: tuple[Layout, ...] = ("nchw", "nhwc")
PRECISIONS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
INPUT = "images"  # name of what goes in
EMBEDDING = "embedding"  # name of what galleries and probes read


class WholeModel(nn.Module):
    """A folded model that takes bytes: it normalises them itself, and gives a tuple of its outputs in float32."""

    scale: Tensor  # [channels, 1, 1]
    shift: Tensor

    def __init__(self, model: Model, *, preprocessing: Preprocessing, layout: Layout, dtype: torch.dtype) -> None:
        super().__init__()
        self.model = as_folded(model).to(dtype)
        self.layout, self.dtype = layout, dtype
        mean, std = (torch.tensor(each, dtype=torch.float64) for each in (preprocessing.mean, preprocessing.std))
        self.register_buffer("scale", (1.0 / (255.0 * std)).float().view(-1, 1, 1))
        self.register_buffer("shift", (-mean / std).float().view(-1, 1, 1))
        self.eval().requires_grad_(False)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.named(images).values())

    def named(self, images: Tensor) -> dict[str, Tensor]:
        """The outputs by name."""
        pixels = images.permute(0, 3, 1, 2) if self.layout == "nhwc" else images
        found = self.model.outputs((pixels.float() * self.scale + self.shift).to(self.dtype))
        return {name: value.float() for name, value in found.items()}


@dataclass(frozen=True, eq=False)
class Draft:
    """A model on its way to an engine."""

    source: Model  # as it was before it was folded
    whole: WholeModel
    size: tuple[int, int]  # height and width of images
    channels: int
    precision: str = "fp32"
    multiple: int | None = None  # sides of images may be any multiple of it; None: they are as `size` says
    metadata: Mapping[str, str] = field(default_factory=dict)  # what the file is to say of itself, where it can

    def example(self, *, batch: int = 2, size: tuple[int, int] | None = None) -> Tensor:
        """Bytes of noise, of the shape that goes in."""
        height, width = size or self.size
        shape = (batch, self.channels, height, width)
        if self.whole.layout == "nhwc":
            shape = (batch, height, width, self.channels)
        return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))

    @cached_property
    def outputs(self) -> dict[str, tuple[int, ...]]:
        """The names of the outputs, and the shape of each for one image."""
        with torch.no_grad():
            found = self.whole.named(self.example(batch=1))
        return {name: tuple(value.shape[1:]) for name, value in found.items()}

    @cached_property
    def program(self) -> torch.export.ExportedProgram:
        """The graph that torch.export records, for any number of images."""
        shapes: dict[int, Any] = {0: torch.export.Dim("batch", min=1)}
        if self.multiple is not None:
            first = 1 if self.whole.layout == "nhwc" else 2
            for place, name in ((first, "rows"), (first + 1, "columns")):
                shapes[place] = self.multiple * torch.export.Dim(name, min=1)
        with torch.no_grad():
            return torch.export.export(self.whole, (self.example(),), dynamic_shapes=(shapes,))
