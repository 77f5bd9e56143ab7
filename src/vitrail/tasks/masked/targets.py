"""What is to be said about a masked patch: its token, its pixels, its gradients, or what a teacher says of it."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.nn import functional

from vitrail.layers.grid import Grid
from vitrail.models.tokenizer import Tokenizer
from vitrail.storage.tensors import hash_tensors
from vitrail.tasks.masked.hog import NUM_BINS, cell_side, oriented_gradients
from vitrail.tasks.masked.settings import MaskedSettings
from vitrail.tasks.tokenizer.patch_teacher import PatchTeacher, resize_pixels
from vitrail.tasks.tokenizer.sheets import to_pixels

_SMALLEST_VARIANCE = 1e-6  # of the pixels of a patch, as in MAE


class Targets(ABC):
    """What is wanted of every patch of images, and what an answer costs."""

    num_outputs: int  # numbers that a model answers with for a patch
    num_codes: int | None = None  # where patches have tokens
    fingerprint: str = ""  # of the model that says what is wanted, where there is one

    @abstractmethod
    def __call__(self, pixels: Tensor) -> Tensor:
        """What is wanted of each patch, of pixels of 0 ... 1: tokens [batch, patches], or [batch, patches, numbers]."""

    @abstractmethod
    def cost(self, outputs: Tensor, wanted: Tensor) -> Tensor:
        """The mean over images and masked patches of what outputs [batch, masked, num_outputs] cost."""

    def paint(self, outputs: Tensor, pixels: Tensor, masks: Tensor) -> Tensor | None:
        """The images with masked patches as the outputs have them, in pixels of 0 ... 1; None: no such picture."""
        return None


class PixelTargets(Targets):
    """The pixels of a patch, brought to a mean of 0 and a deviation of 1 (MAE, section 4.1)."""

    def __init__(self, *, grid: Grid, patch: int) -> None:
        self.grid, self.patch = grid, patch
        self.num_outputs = 3 * patch**2

    def __call__(self, pixels: Tensor) -> Tensor:
        patches = functional.unfold(pixels.float(), self.patch, stride=self.patch).transpose(1, 2)
        mean, deviation = _mean_and_deviation(patches)
        return (patches - mean) / deviation

    def cost(self, outputs: Tensor, wanted: Tensor) -> Tensor:
        return functional.mse_loss(outputs, wanted)

    def paint(self, outputs: Tensor, pixels: Tensor, masks: Tensor) -> Tensor:
        """Masked patches with the mean and deviation that they really have, as MAE shows them."""
        patches = functional.unfold(pixels.float(), self.patch, stride=self.patch).transpose(1, 2)
        mean, deviation = _mean_and_deviation(patches)
        is_masked = masks.flatten(1)
        patches[is_masked] = outputs.flatten(0, 1) * deviation[is_masked] + mean[is_masked]
        size = pixels.shape[-2:]
        return functional.fold(patches.transpose(1, 2), size, self.patch, stride=self.patch).clamp(0.0, 1.0)


def _mean_and_deviation(patches: Tensor) -> tuple[Tensor, Tensor]:
    variance, mean = torch.var_mean(patches, dim=2, keepdim=True)
    return mean, (variance + _SMALLEST_VARIANCE).sqrt()


class GradientTargets(Targets):
    """Histograms of the gradients in the cells of a patch (MaskFeat)."""

    def __init__(self, *, patch: int) -> None:
        self.cell = cell_side(patch)
        self.cells = patch // self.cell
        self.num_outputs = 3 * NUM_BINS * self.cells**2

    def __call__(self, pixels: Tensor) -> Tensor:
        histograms = oriented_gradients(pixels, cell=self.cell)
        return functional.unfold(histograms, self.cells, stride=self.cells).transpose(1, 2)

    def cost(self, outputs: Tensor, wanted: Tensor) -> Tensor:
        return functional.mse_loss(outputs, wanted)


class FeatureTargets(Targets):
    """A teacher's features of a patch; their direction is to be met, by the cosine."""

    def __init__(self, teacher: PatchTeacher) -> None:
        self.teacher, self.num_outputs, self.fingerprint = teacher, teacher.dim, teacher.fingerprint

    def __call__(self, pixels: Tensor) -> Tensor:
        return self.teacher(pixels).flatten(2).transpose(1, 2)

    def cost(self, outputs: Tensor, wanted: Tensor) -> Tensor:
        return 1.0 - functional.cosine_similarity(outputs, wanted, dim=2).mean()


class TokenTargets(Targets):
    """The token of a patch, among those of a tokenizer (BEiT)."""

    num_codes: int

    def __init__(self, tokenizer: Tokenizer, *, teacher: PatchTeacher | None) -> None:
        self.tokenizer, self.teacher = tokenizer, teacher
        self.num_outputs = self.num_codes = tokenizer.config.num_codes
        self.fingerprint = hash_tensors(tokenizer.state_dict()) + ("" if teacher is None else teacher.fingerprint)

    @torch.no_grad()
    def __call__(self, pixels: Tensor) -> Tensor:
        if self.teacher is not None:
            return self.tokenizer.tokens_of(self.teacher(pixels))
        size = self.tokenizer.config.size
        images = pixels if pixels.shape[-2:] == size else resize_pixels(pixels, size)
        statistics = self.tokenizer.preprocessing
        mean, std = (images.new_tensor(value).view(-1, 1, 1) for value in (statistics.mean, statistics.std))
        return self.tokenizer.tokens_of((images - mean) / std)

    def cost(self, outputs: Tensor, wanted: Tensor) -> Tensor:
        return functional.cross_entropy(outputs.flatten(0, 1), wanted.flatten())

    def paint(self, outputs: Tensor, pixels: Tensor, masks: Tensor) -> Tensor | None:
        """Images of the tokenizer: the codes of all patches, of the masked ones those that are found most probable."""
        tokens = self(pixels)
        tokens[masks.flatten(1)] = outputs.argmax(dim=2).flatten()
        painted = self.tokenizer.paint(tokens.view(masks.shape))
        if painted is None:
            return None
        made = to_pixels(painted, self.tokenizer.preprocessing)
        height, width = pixels.shape[-2:]
        return made if made.shape[-2:] == (height, width) else resize_pixels(made, (height, width))


def open_targets(settings: MaskedSettings, *, grid: Grid, size: tuple[int, int], device: torch.device) -> Targets:
    """The targets of a recipe, for a model that cuts images of that size into a grid of patches."""
    if settings.target == "tokens":
        return open_tokens(settings.tokenizer, grid=grid, size=size, device=device)
    if settings.target == "features":
        if settings.teacher is None:
            raise ValueError("no teacher given: add masked.teacher=MODEL, or masked.target=pixels to do without")
        return FeatureTargets(PatchTeacher(settings.teacher, grid=grid, image_size=size, device=device))
    patch = size[0] // grid[0]
    if (grid[0] * patch, grid[1] * patch) != size:
        raise ValueError(
            f"images of {size[0]}x{size[1]} are no whole number of the model's patches: masked.target="
            f"{settings.target} needs an image_size that is a multiple of its patch_size"
        )
    return PixelTargets(grid=grid, patch=patch) if settings.target == "pixels" else GradientTargets(patch=patch)


def open_tokens(spec: str | None, *, grid: Grid, size: tuple[int, int], device: torch.device) -> TokenTargets:
    """The tokens of a tokenizer, a run or a saved model, one for each patch of the grid."""
    from vitrail.inference.trained import load_trained  # which builds runs, and they have tokenizers

    if spec is None:
        raise ValueError(
            "no tokenizer given: train one with `vitrail train tokenizer data=FOLDER out=RUN` and add "
            "masked.tokenizer=RUN, or masked.target=pixels to do without"
        )
    try:
        tokenizer = load_trained(spec).model
    except ValueError as error:
        raise ValueError(f"masked.tokenizer={spec} is no run of `vitrail train tokenizer` ({error})") from None
    if not isinstance(tokenizer, Tokenizer):
        raise ValueError(f"masked.tokenizer={spec} is a {tokenizer.name}, no run of `vitrail train tokenizer`")
    config = tokenizer.config
    if config.grid != grid:
        rows, columns = config.grid
        raise ValueError(
            f"the tokenizer {spec} gives {rows}x{columns} tokens (patches of {config.patch_size} px) and the model has "
            f"{grid[0]}x{grid[1]} patches: train one whose image_size over tokenizer.patch_size is that"
        )
    teacher = None
    if config.teacher is not None:
        teacher = PatchTeacher(config.teacher, grid=grid, image_size=size, device=device)
    return TokenTargets(tokenizer.requires_grad_(False).eval().to(device), teacher=teacher)
