"""fold: an exact, faster copy of a model for inference (thesis 3.5.1 and 4.2 note that it is possible)."""

import copy

import torch
from torch import Tensor, nn

from vitrail.inference.folded_layers import (
    FEW_QUERIES,
    FoldedBranch,
    FoldedClassAttention,
    FoldedConvolution,
    FoldedCrossPatch,
    FoldedFeedForward,
    FoldedResidual,
    FoldedSelfAttention,
    FoldedTalkingHeads,
    InFloat32,
    linear,
    pure_layer_norm,
)
from vitrail.layers.attention import ClassAttention, SelfAttention, TalkingHeadsAttention
from vitrail.layers.bfloat16 import has_native_bfloat16
from vitrail.layers.mixing import ConvolutionMix, CrossPatchLinear
from vitrail.layers.mlp import FeedForward
from vitrail.layers.norm import Affine, ChannelsLastBatchNorm
from vitrail.layers.pooling import ClassStage
from vitrail.layers.residual import Branch, LayerScale, Residual, ScalarBias, ScalarScale
from vitrail.models.contract import Model

FOLDABLE = (SelfAttention, ClassAttention, FeedForward, CrossPatchLinear, ConvolutionMix)


def fold(model: Model) -> Model:
    """A copy of `model` in evaluation mode with the same outputs, to rounding, and fewer operations.

    LayerScale, Aff and batch norms are absorbed by their neighbours, the weights of layer norms by the next linear
    layer, parallel branches become one wide branch, and class-attention no longer projects the patches. The copy can't
    be trained or saved under the model's names: keep the original for that. A timm backbone keeps its own layers.

    A 16-bit model on a CPU that can only emulate 16-bit products is folded into float32, which is many times faster
    there; it still takes and gives 16 bits.
    """
    if not isinstance(model, Model):
        raise ValueError(f"fold takes a model made by create_model or load_model, not {type(model).__name__}")
    if model.is_folded:
        raise ValueError("the model is folded already")
    folded = copy.deepcopy(model).eval().requires_grad_(False)
    dtype = next(folded.parameters()).dtype
    is_emulated = emulates(dtype, device=next(folded.parameters()).device)
    if is_emulated:
        folded.float()
    fold_children(folded)
    folded.is_folded = True
    if not is_emulated:
        return folded
    outer = InFloat32(folded, dtype=dtype).eval()
    outer.is_folded, outer.reads_patches = True, folded.reads_patches
    return outer


def as_folded(model: Model) -> Model:
    """The model folded; itself where it is so already, or where an engine computes it."""
    return model if model.is_folded else fold(model)


def emulates(dtype: torch.dtype, *, device: torch.device) -> bool:
    """Whether a device has no arithmetic of its own for a type."""
    if device.type != "cpu":
        return False
    return dtype == torch.float16 or (dtype == torch.bfloat16 and not has_native_bfloat16())


@torch.no_grad()
def fold_children(module: nn.Module, *, num_tokens: int = 0) -> None:
    """Replace every residual layer below `module` by its folded form, and batch norms that follow a convolution.

    `num_tokens` is the number of queries of the class stage the module belongs to.
    """
    for name, child in module.named_children():
        if isinstance(child, Residual):
            setattr(module, name, fold_residual(child, num_tokens=num_tokens))
        elif isinstance(child, nn.Sequential):
            setattr(module, name, fold_sequence(child))
        elif not (isinstance(module, Model) and name == module.foreign):
            fold_children(child, num_tokens=child.tokens.shape[1] if isinstance(child, ClassStage) else num_tokens)


def fold_residual(residual: Residual, *, num_tokens: int) -> nn.Module:
    """The fastest exact form of a residual layer; the mixings of ablations stay as they are."""
    branches = []
    for branch in residual.branches:
        if not isinstance(branch, Branch) or not isinstance(branch.mix, FOLDABLE):
            return residual
        if residual.join is not None and isinstance(branch.mix, CrossPatchLinear):  # there is no norm to absorb
            return residual
        branches.append(fold_branch(branch, num_tokens=num_tokens))
    if residual.join is not None:
        return Residual([FoldedBranch(norm=norm, mix=mix) for norm, mix in branches], join=residual.join)
    if isinstance(branches[0][1], FoldedCrossPatch):
        return branches[0][1]
    if len(branches) == 1 and isinstance(branches[0][1], ConvolutionMix):
        return FoldedConvolution(norm=branches[0][0], mix=branches[0][1])
    if len(branches) == 1:
        return FoldedResidual(norm=branches[0][0], mix=branches[0][1])
    if all(is_pure(norm) for norm, _ in branches):
        joined = join_mixes([mix for _, mix in branches])
        if joined is not None:
            return FoldedResidual(norm=branches[0][0], mix=joined)
    return Residual([FoldedBranch(norm=norm, mix=mix) for norm, mix in branches])


def fold_branch(branch: Branch, *, num_tokens: int) -> tuple[nn.Module, nn.Module]:
    """The norm without weights and the mixing that absorbed them and the scale, where the mixing can."""
    norm, (weight, shift) = split_norm(branch.norm)
    scale = exact(branch.scale.weight) if isinstance(branch.scale, (LayerScale, ScalarScale)) else None
    mix = branch.mix
    if isinstance(mix, CrossPatchLinear):
        return norm, fold_cross_patch(mix, norm=norm, weight=weight, shift=shift, scale=scale)
    if isinstance(mix, FeedForward):
        return norm, fold_feed_forward(mix, weight=weight, shift=shift, scale=scale)
    if isinstance(mix, SelfAttention):
        bias = scalar_of(mix.before_proj)
        mix.qkv = absorb_before(mix.qkv, weight, shift)
        mix.proj = absorb_after(absorb_before(mix.proj, None, bias), scale)
        mix.before_proj = nn.Identity()
        return norm, FoldedTalkingHeads(mix) if isinstance(mix, TalkingHeadsAttention) else FoldedSelfAttention(mix)
    if isinstance(mix, ClassAttention):
        absorb_around_class_attention(mix, weight=weight, shift=shift, scale=scale)
        return norm, move_projections(mix) if num_tokens * mix.num_heads <= FEW_QUERIES else mix
    if isinstance(mix, ConvolutionMix):
        mix.expand = absorb_before(mix.expand, weight, shift)
        mix.contract = absorb_after(mix.contract, scale)
        return norm, mix
    raise AssertionError(f"no rule to fold {type(mix).__name__}")


def split_norm(norm: nn.Module) -> tuple[nn.Module, tuple[Tensor | None, Tensor | None]]:
    """A norm as a part without weights followed by a scale and a shift per channel, in float64."""
    if isinstance(norm, nn.LayerNorm):
        return pure_layer_norm(norm), (exact(norm.weight), exact(norm.bias))
    if isinstance(norm, Affine):
        return nn.Identity(), (exact(norm.weight), exact(norm.bias))
    if isinstance(norm, ChannelsLastBatchNorm):
        return nn.Identity(), batch_norm_affine(norm.batch_norm)
    if isinstance(norm, ScalarBias):  # Fixup's, alone or behind a layer norm
        return nn.Identity(), (None, exact(norm.bias))
    if isinstance(norm, nn.Sequential) and isinstance(norm[1], ScalarBias):
        pure, (weight, shift) = split_norm(norm[0])
        return pure, (weight, exact(norm[1].bias) if shift is None else shift + exact(norm[1].bias))
    return norm, (None, None)


def batch_norm_affine(norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """What a batch norm does when evaluated, as a scale and a shift per channel."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    weight = exact(norm.weight) / (exact(norm.running_var) + norm.eps).sqrt()
    return weight, exact(norm.bias) - exact(norm.running_mean) * weight


def exact(tensor: Tensor) -> Tensor:
    """A tensor in the widest type its device has, for arithmetic whose result is rounded once."""
    return tensor.to(torch.float32 if tensor.device.type == "mps" else torch.float64)


def absorb_before(layer: nn.Linear, weight: Tensor | None, shift: Tensor | None) -> nn.Linear:
    """layer(weight * x + shift) as one linear layer."""
    matrix, bias = exact(layer.weight), layer.bias
    total = exact(bias) if bias is not None else None
    if shift is not None:
        extra = matrix @ shift.expand(matrix.shape[1])
        total = extra if total is None else total + extra
    if weight is not None:
        matrix = matrix * weight
    return linear(matrix.to(layer.weight.dtype), None if total is None else total.to(layer.weight.dtype))


def absorb_after(layer: nn.Linear, scale: Tensor | None) -> nn.Linear:
    """scale * layer(x) as one linear layer."""
    if scale is None:
        return layer
    dtype = layer.weight.dtype
    matrix = (exact(layer.weight) * scale.view(-1, 1)).to(dtype)
    return linear(matrix, None if layer.bias is None else (exact(layer.bias) * scale).to(dtype))


def scalar_of(module: nn.Module) -> Tensor | None:
    return exact(module.bias) if isinstance(module, ScalarBias) else None


def fold_feed_forward(
    mix: FeedForward, *, weight: Tensor | None, shift: Tensor | None, scale: Tensor | None
) -> FoldedFeedForward:
    expand = absorb_before(mix.expand, weight, shift)
    before_activation = scalar_of(mix.before_activation)
    if before_activation is not None:
        expand.bias.add_(before_activation.to(expand.bias.dtype))
    contract = absorb_after(absorb_before(mix.contract, None, scalar_of(mix.before_contract)), scale)
    return FoldedFeedForward(expand=expand, contract=contract, activation=mix.activation)


def fold_cross_patch(
    mix: CrossPatchLinear, *, norm: nn.Module, weight: Tensor | None, shift: Tensor | None, scale: Tensor | None
) -> FoldedCrossPatch:
    """scale * (A (weight * x + shift) + b), with the constants gathered."""
    matrix, bias = exact(mix.linear.weight), exact(mix.linear.bias)
    assert weight is not None
    assert shift is not None
    assert scale is not None
    constant = (matrix.sum(dim=1, keepdim=True) * shift + bias[:, None]) * scale
    dtype = mix.linear.weight.dtype
    return FoldedCrossPatch(
        norm=norm, weight=mix.linear.weight.detach(), scale=(weight * scale).to(dtype), shift=constant.to(dtype)
    )


def absorb_around_class_attention(
    mix: ClassAttention, *, weight: Tensor | None, shift: Tensor | None, scale: Tensor | None
) -> None:
    mix.query, mix.key, mix.value = (absorb_before(layer, weight, shift) for layer in (mix.query, mix.key, mix.value))
    mix.proj = absorb_after(mix.proj, scale)


def move_projections(mix: ClassAttention) -> FoldedClassAttention:
    """The form that projects queries and pooled values instead of every patch."""
    heads, dim = mix.num_heads, mix.key.in_features
    score_scale = (mix.key.out_features // heads) ** -0.5
    return FoldedClassAttention(
        query=absorb_after(mix.query, torch.full_like(exact(mix.query.weight[:, 0]), score_scale)),
        key=mix.key.weight.view(heads, -1, dim),
        value=mix.value.weight.view(heads, -1, dim).transpose(1, 2).contiguous(),
        proj=absorb_before(mix.proj, None, None if mix.value.bias is None else exact(mix.value.bias)),
        num_heads=heads,
        class_in_keys=mix.class_in_keys,
    )


def join_mixes(mixes: list[nn.Module]) -> nn.Module | None:
    """Branches on the same input as one wide layer: hidden units, or heads, side by side; None where it can't be."""
    feed_forwards = [mix for mix in mixes if isinstance(mix, FoldedFeedForward)]
    if len(feed_forwards) == len(mixes):
        return FoldedFeedForward(
            expand=stack_outputs([mix.expand for mix in feed_forwards]),
            contract=sum_inputs([mix.contract for mix in feed_forwards]),
            activation=feed_forwards[0].activation,
        )
    attentions = [mix for mix in mixes if isinstance(mix, FoldedSelfAttention)]
    return join_attentions(attentions) if len(attentions) == len(mixes) else None


def join_attentions(attentions: list[FoldedSelfAttention]) -> FoldedSelfAttention:
    weights = [attention.qkv.weight.chunk(3) for attention in attentions]
    biases = [attention.qkv.bias.chunk(3) for attention in attentions]
    joined = attentions[0]
    joined.qkv = linear(
        torch.cat([weight[part] for part in range(3) for weight in weights]),
        torch.cat([bias[part] for part in range(3) for bias in biases]),
    )
    joined.num_heads = sum(attention.num_heads for attention in attentions)
    joined.proj = sum_inputs([attention.proj for attention in attentions])
    return joined


def stack_outputs(layers: list[nn.Linear]) -> nn.Linear:
    return linear(torch.cat([layer.weight for layer in layers]), torch.cat([layer.bias for layer in layers]))


def sum_inputs(layers: list[nn.Linear]) -> nn.Linear:
    bias = torch.stack([exact(layer.bias) for layer in layers]).sum(dim=0).to(layers[0].bias.dtype)
    return linear(torch.cat([layer.weight for layer in layers], dim=1), bias)


def is_pure(norm: nn.Module) -> bool:
    """Whether a norm has no weights, so that it is the same for all branches."""
    return isinstance(norm, nn.Identity) or (isinstance(norm, nn.LayerNorm) and not norm.elementwise_affine)


def fold_sequence(sequence: nn.Sequential) -> nn.Sequential:
    """Layers with each batch norm absorbed by the convolution before it."""
    layers: list[nn.Module] = []
    for layer in sequence:
        before = layers[-1] if layers else None
        if isinstance(layer, nn.BatchNorm2d) and isinstance(before, (nn.Conv2d, nn.ConvTranspose2d)):
            layers[-1] = absorb_batch_norm(before, layer)
        else:
            layers.append(layer)
    return nn.Sequential(*layers)


def absorb_batch_norm(
    convolution: nn.Conv2d | nn.ConvTranspose2d, norm: nn.BatchNorm2d
) -> nn.Conv2d | nn.ConvTranspose2d:
    """norm(convolution(x)) as one convolution."""
    scale, shift = batch_norm_affine(norm)
    shape = (1, -1, 1, 1) if isinstance(convolution, nn.ConvTranspose2d) else (-1, 1, 1, 1)
    dtype = convolution.weight.dtype
    if convolution.bias is not None:
        shift = shift + scale * exact(convolution.bias)
    convolution.weight = nn.Parameter((exact(convolution.weight) * scale.view(shape)).to(dtype), False)
    convolution.bias = nn.Parameter(shift.to(dtype), False)
    return convolution
