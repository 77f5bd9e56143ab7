"""The layers of a folded model: what is left of a residual layer when all that is constant has been absorbed."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from vitrail.layers.attention import SelfAttention, TalkingHeadsAttention, join_heads, split_heads
from vitrail.layers.mixing import ConvolutionMix
from vitrail.layers.recording import is_recorded
from vitrail.layers.talking_heads import prefers_whole
from vitrail.layers.talking_heads_forms import HeadMixing, attend_recorded, attend_whole
from vitrail.models.contract import Features, Model

FEW_QUERIES = 64  # attention with up to so many queries (tokens x heads) projects these rather than the patches


def add_to(x: Tensor, update: Tensor) -> Tensor:
    """x + update, in the memory of the update where autocast has not changed its type."""
    return update.add_(x) if update.dtype == x.dtype else x + update


def add_product(x: Tensor, hidden: Tensor, layer: nn.Linear) -> Tensor:
    """x + layer(hidden), in one product on a CPU: it adds to the sum of x and the bias."""
    if not isinstance(layer, nn.Linear) or layer._forward_hooks:  # one of bytes has no weights; one is watched
        return add_to(x, layer(hidden))
    weight, bias = layer.weight, layer.bias
    is_of_one_type = x.dtype == hidden.dtype == weight.dtype  # autocast changes types
    if x.device.type != "cpu" or bias is None or not is_of_one_type or is_recorded():
        return add_to(x, layer(hidden))
    total = x.contiguous() + bias
    total.view(-1, total.shape[-1]).addmm_(hidden.reshape(-1, hidden.shape[-1]), weight.t())
    return total


class FoldedResidual(nn.Module):
    """x + mix(norm(x)), where norm has no weights and mix has absorbed the scale."""

    def __init__(self, *, norm: nn.Module, mix: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.mix = mix

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        if context is not None:
            return add_to(x, self.mix(self.norm(x), self.norm(context)))
        if isinstance(self.norm, nn.Identity):  # x may be large, and is to be rounded once
            return add_to(x, self.mix(x))
        if isinstance(self.mix, SelfAttention):
            return add_product(x, self.mix.gather(self.norm(x)), self.mix.proj)
        if isinstance(self.mix, FoldedFeedForward):
            return add_product(x, self.mix.hidden(self.norm(x)), self.mix.contract)
        return add_to(x, self.mix(self.norm(x)))

    def average(self, x: Tensor) -> Tensor:
        """The mean of what comes out over the patches, [batch, 1, dim], of a feed-forward network.

        Its second layer is linear: it needs to see the mean of the hidden units only.
        """
        assert isinstance(self.mix, FoldedFeedForward)
        hidden = self.mix.hidden(self.norm(x)).mean(dim=1, keepdim=True)
        return x.mean(dim=1, keepdim=True) + self.mix.contract(hidden)


class FoldedConvolution(FoldedResidual):
    """PatchConvNet's whole residual layer, x + mix(norm(x)), on [batch, height, width, dim].

    torch is the fastest with linear layers on channels that lie last. Engines, for which it is recorded, are so with
    convolutions from one end of the branch to the other: they order the channels in blocks once, and add the biases
    inside. They know layer norms of [batch, length, dim] only, and spell out others.
    """

    mix: ConvolutionMix

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        if not is_recorded():
            return super().forward(x, context)
        mix, squeeze_excite = self.mix, self.mix.squeeze_excite
        tokens = x.flatten(1, 2)
        maps = self.norm(tokens).view(x.shape).permute(0, 3, 1, 2)
        maps = mix.activation(convolve(maps, mix.expand))
        maps = mix.activation(mix.spatial(maps))
        squeezed = functional.relu(convolve(maps.mean(dim=(2, 3), keepdim=True), squeeze_excite.reduce))
        maps = convolve(maps * torch.sigmoid(convolve(squeezed, squeeze_excite.expand)), mix.contract)
        return (tokens + maps.permute(0, 2, 3, 1).flatten(1, 2)).view(x.shape)


def convolve(maps: Tensor, layer: nn.Linear) -> Tensor:
    """A linear layer on the channels of maps [batch, dim, height, width], as a 1x1 convolution."""
    return functional.conv2d(maps, layer.weight[:, :, None, None], layer.bias)


class FoldedFeedForward(nn.Module):
    """Two linear layers around an activation; a GELU overwrites its input."""

    def __init__(self, *, expand: nn.Linear, contract: nn.Linear, activation: nn.Module) -> None:
        super().__init__()
        self.expand = expand
        self.activation = activation
        self.contract = contract

    def forward(self, x: Tensor) -> Tensor:
        return self.contract(self.hidden(x))

    def hidden(self, x: Tensor) -> Tensor:
        """What the second layer takes."""
        hidden = self.expand(x)
        return torch.ops.aten.gelu_(hidden) if isinstance(self.activation, nn.GELU) else self.activation(hidden)


class FoldedSelfAttention(SelfAttention):
    """Self-attention as it is the fastest where nothing is learnt.

    Engines, for which it is recorded, copy queries, keys and values out of a product that gives all three, and scale
    the queries: they get a product for each, and the scale in its weights. Few tokens that ask in the last block have
    the projections of keys and values moved to their side.
    """

    def __init__(self, attention: SelfAttention) -> None:
        nn.Module.__init__(self)
        self.num_heads, self.before_proj = attention.num_heads, attention.before_proj
        self.qkv, self.proj = attention.qkv, attention.proj

    def gather(self, tokens: Tensor, context: Tensor | None = None) -> Tensor:
        if context is None and is_recorded() and tokens.device.type == "cpu":
            query, key, value = (
                split_heads(functional.linear(tokens, weight, bias), self.num_heads)
                for weight, bias in zip(self.weights(), self.biases(), strict=True)
            )
            return join_heads(functional.scaled_dot_product_attention(query, key, value, scale=1.0))
        if context is None or tokens.shape[1] * self.num_heads > FEW_QUERIES:
            return super().gather(tokens, context)
        query_weight, key_weight, value_weight = self.weights()
        query_bias, _, value_bias = self.biases()
        found = attend_from_few(
            split_heads(functional.linear(tokens, query_weight, query_bias), self.num_heads),
            key=key_weight.unflatten(0, (self.num_heads, -1)),
            value=value_weight.unflatten(0, (self.num_heads, -1)).transpose(1, 2),
            patches=context,
            tokens=tokens,
        )
        return found + value_bias

    def weights(self) -> tuple[Tensor, Tensor, Tensor]:
        """The weights of queries, with the scale of the scores, of keys and of values."""
        query, key, value = self.qkv.weight.chunk(3)
        return query * self.scale, key, value

    def biases(self) -> tuple[Tensor, None, Tensor]:
        """Their biases; that of the keys drops out of the softmax."""
        query, _, value = self.qkv.bias.chunk(3)
        return query * self.scale, None, value

    @property
    def scale(self) -> float:
        """The scale of the scores."""
        return float((self.proj.in_features // self.num_heads) ** -0.5)


class FoldedTalkingHeads(TalkingHeadsAttention):
    """Self-attention with talking heads, in the form that is the fastest where nothing is learnt."""

    scaled_weight: Tensor  # [heads, heads]: that of the heads before the softmax with the scale of the scores

    def __init__(self, attention: TalkingHeadsAttention) -> None:
        nn.Module.__init__(self)
        self.num_heads, self.before_proj = attention.num_heads, attention.before_proj
        self.qkv, self.proj = attention.qkv, attention.proj
        self.before_softmax, self.after_softmax = attention.before_softmax, attention.after_softmax
        head_dim = self.proj.in_features // self.num_heads
        self.register_buffer("scaled_weight", self.before_softmax.weight.detach() * head_dim**-0.5)

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        before, after = self.before_softmax, self.after_softmax
        if is_recorded():
            mixing = HeadMixing(self.scaled_weight, before.bias, after.weight, after.bias)
            return join_heads(attend_recorded(query, key=key, value=value, mixing=mixing))
        if (torch.is_grad_enabled() and query.requires_grad) or not prefers_whole(query, key=key):
            return super().attend(query, key, value)
        mixing = HeadMixing(self.scaled_weight, before.bias, after.weight, after.bias)
        return join_heads(attend_whole(query, key=key, value=value, mixing=mixing))


class FoldedCrossPatch(nn.Module):
    """ResMLP's whole cross-patch layer (eq. 4.2): x + A (x * scale) + shift.

    A is shared by all channels, so the two scales per channel become one product before it, and what A makes of the
    constants becomes one shift per patch and channel.
    """

    weight: Tensor  # [patches, patches]
    scale: Tensor  # [dim]
    shift: Tensor  # [patches, dim]

    def __init__(self, *, norm: nn.Module, weight: Tensor, scale: Tensor, shift: Tensor) -> None:
        super().__init__()
        self.norm = norm
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)
        self.register_buffer("shift", shift)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        if is_recorded():  # engines have products of one matrix and many; a copy of it for each would be stored
            return x + torch.matmul(self.weight, self.norm(x) * self.scale) + self.shift
        weight = self.weight.expand(x.shape[0], -1, -1)
        return add_to(x + self.shift, torch.bmm(weight, self.norm(x) * self.scale))


class FoldedClassAttention(nn.Module):
    """Class-attention that projects no patch: with few queries it is cheaper to move the projections to their side.

    The bias of the keys adds the same to every score of a query and drops out of the softmax; that of the values is
    added once.
    """

    key: Tensor  # [heads, head_dim, dim]
    value: Tensor  # [heads, dim, head_dim]

    def __init__(
        self, *, query: nn.Linear, key: Tensor, value: Tensor, proj: nn.Linear, num_heads: int, class_in_keys: bool
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.class_in_keys = class_in_keys
        self.query = query  # absorbed the scale of the scores
        self.register_buffer("key", key)
        self.register_buffer("value", value)
        self.proj = proj  # absorbed the bias of the values

    def forward(self, tokens: Tensor, patches: Tensor) -> Tensor:
        query = split_heads(self.query(tokens), self.num_heads)
        seen = tokens if self.class_in_keys else None
        return self.proj(attend_from_few(query, key=self.key, value=self.value, patches=patches, tokens=seen))


def attend_from_few(query: Tensor, *, key: Tensor, value: Tensor, patches: Tensor, tokens: Tensor | None) -> Tensor:
    """Attention from scaled queries [batch, heads, few, head_dim] to patches, and tokens, that nothing projects.

    `key` [heads, head_dim, dim] and `value` [heads, dim, head_dim] are moved to the side of the queries:
    q . (W_k x) = (W_k^T q) . x, and the weighted sum of W_v x is W_v times the weighted sum of x.
    """
    batch, heads, num_queries, _ = query.shape
    moved = torch.matmul(query, key).flatten(1, 2)
    scores = torch.bmm(moved, patches.transpose(1, 2))  # [batch, heads * queries, length]
    if tokens is not None:
        scores = torch.cat([torch.bmm(moved, tokens.transpose(1, 2)), scores], dim=2)
    weights = scores.softmax(dim=2)
    pooled = torch.bmm(weights[:, :, -patches.shape[1] :], patches)
    if tokens is not None:
        pooled = torch.baddbmm(pooled, weights[:, :, : tokens.shape[1]], tokens)
    return join_heads(torch.matmul(pooled.view(batch, heads, num_queries, -1), value))


class FoldedBranch(nn.Module):
    """A folded branch where branches could not be joined into one."""

    def __init__(self, *, norm: nn.Module, mix: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.mix = mix

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        return self.mix(self.norm(x)) if context is None else self.mix(self.norm(x), self.norm(context))


class InFloat32(Model):
    """A model that computes in float32 for callers with 16 bits, on a CPU that would have to emulate theirs."""

    def __init__(self, model: Model, *, dtype: torch.dtype) -> None:
        super().__init__(model.config)
        self.model = model
        self.dtype = dtype
        self.name, self.family, self.preprocessing = model.name, model.family, model.preprocessing

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        answer = self.model(images.float())
        if isinstance(answer, tuple):
            of_class, of_teacher = answer
            return of_class.to(self.dtype), of_teacher.to(self.dtype)
        return answer.to(self.dtype)

    def features(self, images: Tensor, *, levels: Sequence[int] = ()) -> Features:
        summary, patches, maps = self.model.features(images.float(), levels=levels)
        return Features(summary.to(self.dtype), patches.to(self.dtype), tuple(each.to(self.dtype) for each in maps))


def linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """A linear layer that owns these tensors; on a CPU the weights lie input after input, as its products like them."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    stored = weight.t().contiguous().t() if weight.device.type == "cpu" else weight.contiguous()
    layer.weight = nn.Parameter(stored, requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias.contiguous(), requires_grad=False)
    return layer


def pure_layer_norm(norm: nn.LayerNorm) -> nn.LayerNorm:
    """The same normalisation without its weights."""
    return nn.LayerNorm(norm.normalized_shape, eps=norm.eps, elementwise_affine=False)
