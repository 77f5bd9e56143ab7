"""Tokenizers: from the patches of an image to one of a few thousand codes each, by k-means or a small discrete VAE."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from vitrail.layers.grid import Grid
from vitrail.models.config import CheckedSettings, whole_sides
from vitrail.models.contract import Features, Model, initialize, to_maps

TOKENIZER_KINDS = ("kmeans", "dvae")
_CHUNK = 8192  # vectors that are compared with the codes at a time


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig(CheckedSettings):
    """Settings of a tokenizer."""

    image_size: int | tuple[int, int] = 112  # side, or height and width
    patch_size: int = 8
    in_channels: int = 3
    kind: str = "dvae"  # one of TOKENIZER_KINDS
    num_codes: int = 8192
    code_dim: int = 32  # width of the codes of a discrete VAE, which have length 1
    dim: int = 128  # width of its encoder and decoder
    depth: int = 2  # residual blocks of each
    teacher: str | None = None  # a model whose patches k-means clusters, in place of pixels
    teacher_dim: int = 0  # width of its patches

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", whole_sides(self.image_size))
        self.check_choice("kind", TOKENIZER_KINDS)
        if self.kind == "kmeans":
            object.__setattr__(self, "depth", 0)  # it has no layers
        self.check_counts("patch_size", "in_channels", "num_codes", "code_dim", "dim")
        self.check_counts("depth", "teacher_dim", least=0)
        if self.teacher is not None and (self.kind != "kmeans" or not self.teacher_dim):
            raise ValueError("a teacher's patches are clustered by k-means: kind must be kmeans, with its teacher_dim")
        if any(side % self.patch_size for side in self.size):
            height, width = self.size
            raise ValueError(f"images of {height}x{width} can't be cut into patches of {self.patch_size}")

    @property
    def num_classes(self) -> int:
        """No logits: a tokenizer answers with the mean of its codes."""
        return 0

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the images."""
        return (self.image_size, self.image_size) if isinstance(self.image_size, int) else self.image_size

    @property
    def grid(self) -> Grid:
        """Rows and columns of the patches, each of which gets a token."""
        return self.size[0] // self.patch_size, self.size[1] // self.patch_size

    @property
    def vector_dim(self) -> int:
        """Numbers that a code is compared with."""
        if self.kind == "dvae":
            return self.code_dim
        return self.teacher_dim or self.in_channels * self.patch_size**2


class Quantised(NamedTuple):
    """What a tokenizer makes of images."""

    vectors: Tensor  # [batch, patches, vector_dim]
    tokens: Tensor  # int64 [batch, patches]: the nearest code
    codes: Tensor  # [batch, patches, vector_dim]: that code
    pixels: Tensor | None  # [batch, channels, height, width]: what the decoder makes of the codes, where there is one


class GridBlock(nn.Module):
    """A residual layer on a map of patches: each sees its eight neighbours."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(1, dim)
        self.look = nn.Conv2d(dim, dim, 3, padding=1)
        self.mix = nn.Conv2d(dim, dim, 1)

    def forward(self, maps: Tensor) -> Tensor:
        return maps + self.mix(functional.gelu(self.look(self.norm(maps))))


class Tokenizer(Model):
    """One token a patch: the nearest of the codes, by k-means of patches or by a discrete VAE (VQ-VAE's form of it).

    The VAE's encoder and decoder work on the grid of patches; the gradient of the decoder passes the quantisation as it
    is (straight through). Codes and what is compared with them have length 1 there. A tokenizer of a teacher's patches
    takes these, [batch, dim, rows, columns], in the place of images.
    """

    config: TokenizerConfig
    family = "tokenizer"
    is_ours_alone = True
    undecayed_tensors = ("codebook",)

    def __init__(self, config: TokenizerConfig) -> None:
        super().__init__(config)
        self.codebook = nn.Parameter(torch.empty(config.num_codes, config.vector_dim))
        self.head = nn.Identity()
        self.encoder = self.decoder = None
        if config.kind == "dvae":
            pixels, dim = config.in_channels * config.patch_size**2, config.dim
            self.encoder = nn.Sequential(
                nn.PixelUnshuffle(config.patch_size),
                nn.Conv2d(pixels, dim, 1),
                *(GridBlock(dim) for _ in range(config.depth)),
                nn.Conv2d(dim, config.code_dim, 1),
            )
            self.decoder = nn.Sequential(
                nn.Conv2d(config.code_dim, dim, 1),
                *(GridBlock(dim) for _ in range(config.depth)),
                nn.Conv2d(dim, pixels, 1),
                nn.PixelShuffle(config.patch_size),
            )

    def init_weights(self) -> None:
        initialize(self)
        nn.init.normal_(self.codebook)

    @property
    def patch_size(self) -> int:
        return self.config.patch_size

    def patch_grid(self, height: int, width: int) -> Grid:
        return height // self.config.patch_size, width // self.config.patch_size

    def forward(self, images: Tensor) -> Tensor | Quantised:  # type: ignore[override]  # more answers in training
        return self.quantise(images) if self.training else self.summarize(images).flatten(1)

    def quantise(self, images: Tensor) -> Quantised:
        """Vectors, tokens and codes of images, and the pixels that the codes stand for."""
        vectors = self.vectors_of(images)
        tokens = self.nearest(vectors)
        codes = functional.embedding(tokens, self.codes)
        if self.decoder is None:
            return Quantised(vectors, tokens, codes, None)
        passed = vectors + (codes - vectors).detach()  # the value of the code, the gradient of the vector
        return Quantised(vectors, tokens, codes, self.decoder(to_maps(passed, self._grid_of(images))))

    def tokens_of(self, images: Tensor) -> Tensor:
        """The token of every patch, int64 [batch, patches]."""
        return self.nearest(self.vectors_of(images))

    def vectors_of(self, images: Tensor) -> Tensor:
        """What is compared with the codes, [batch, patches, vector_dim]."""
        if self.encoder is not None:
            self.check_images(images)
            return functional.normalize(self.encoder(images).flatten(2).transpose(1, 2).float(), dim=2)
        if self.config.teacher is not None:
            return images.flatten(2).transpose(1, 2).float()
        self.check_images(images)
        side = self.config.patch_size
        return functional.unfold(images.float(), side, stride=side).transpose(1, 2)

    @property
    def codes(self) -> Tensor:
        """The codes as vectors are compared with them, [codes, vector_dim]."""
        return self.codebook if self.encoder is None else functional.normalize(self.codebook, dim=1)

    @torch.no_grad()
    def nearest(self, vectors: Tensor) -> Tensor:
        """The nearest code of each vector [batch, patches, vector_dim], int64 [batch, patches]."""
        codes = self.codes.float()
        squares = codes.square().sum(dim=1)
        with torch.autocast(vectors.device.type, enabled=False):
            parts = [
                torch.addmm(squares, part, codes.T, alpha=-2.0).argmin(dim=1)
                for part in vectors.float().flatten(0, 1).split(_CHUNK)
            ]
        return torch.cat(parts).view(vectors.shape[:2])

    @torch.no_grad()
    def paint(self, tokens: Tensor) -> Tensor | None:
        """Pictures of tokens [batch, rows, columns] in the normalised colours of the images; None where there are none.

        Codes of a teacher's patches have no picture.
        """
        codes = functional.embedding(tokens, self.codes).permute(0, 3, 1, 2)
        if self.decoder is not None:
            return self.decoder(codes)
        if self.config.teacher is not None:
            return None
        return functional.pixel_shuffle(codes, self.config.patch_size)

    def features(self, images: Tensor, *, levels: Sequence[int] = ()) -> Features:
        if levels:
            raise ValueError("a tokenizer has no blocks whose maps could be asked for: leave levels out")
        if self.config.teacher is not None:
            raise ValueError(f"this tokenizer reads patches of {self.config.teacher}, not images: use that model")
        codes = functional.embedding(self.tokens_of(images), self.codes)
        return Features(codes.mean(dim=1, keepdim=True), to_maps(codes, self._grid_of(images)))

    def _grid_of(self, images: Tensor) -> Grid:
        height, width = images.shape[-2:]
        return (height, width) if self.config.teacher is not None else self.patch_grid(height, width)

    def resized(self, image_size: int | tuple[int, int]) -> Model:
        if whole_sides(image_size) == self.config.image_size:
            return self
        model = type(self)(dataclasses.replace(self.config, image_size=image_size))
        model.name, model.preprocessing = self.name, self.preprocessing
        model.load_state_dict(self.state_dict())
        return model.eval()

    def parameter_layers(self) -> dict[str, int]:
        """The layer of every parameter: a tokenizer is one layer."""
        return {name: 0 for name, _ in self.named_parameters()}

    def from_block(self, first: int) -> set[str]:
        raise ValueError("a tokenizer has no row of blocks")

    def recompute_blocks(self) -> None:
        raise ValueError("a tokenizer has no blocks to recompute: leave run.checkpointing out")
