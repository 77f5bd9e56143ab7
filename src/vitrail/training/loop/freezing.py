"""Training a part of a model and leaving the rest as it is (Three things, section 4)."""

import difflib
import re
from collections.abc import Callable

from torch import nn

from vitrail.models.contract import Model
from vitrail.models.timm_backbone import TimmBackbone

ALL = "all"
# A part, and where its parameters are: in our models, in timm's.
PARTS = {
    "attention": (r"communication\.branches\.\d+\.mix\.", r"(^|\.)attn\d*\."),
    "ffn": (r"feed_forward\.branches\.\d+\.mix\.", r"(^|\.)mlp\d*\."),
    "norm": (r"(^|\.)norm\.", r"(^|\.)norm\w*\."),
    "positions": (r"^positions\.", r"(^|\.)pos_embed"),
    "stem": (r"^stem\.", r"^backbone\.(patch_embed|stem|conv1|bn1)\b"),
    "head": (r"^head\.", r"$^"),  # timm says itself what its classifier is
}
_FROM_BLOCK = re.compile(r"blocks\.(\d+)\+")
_BLOCK = re.compile(r"^(?:backbone\.)?blocks\.(\d+)\.")
_BELOW_BLOCKS = re.compile(r"^(backbone\.)?(stem|patch_embed|pos_embed|cls_token|dist_token|positions|tokens)\b")


def freeze(model: Model, train_only: str) -> None:
    """Freeze all parameters but those of the named parts, such as `attention`, `ffn,norm` or `blocks.18+`.

    The head always learns: a new task has new classes. What is frozen gets no gradient and no optimizer state, and
    batch normalisation that is frozen keeps its running statistics too; stochastic depth goes on as in training.
    """
    if train_only == ALL:
        return
    is_trained = _choose(model, [word.strip() for word in train_only.split(",")])
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(is_trained(name) and parameter.requires_grad)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and not _learns(module):
            module.eval()
            module.train = _stay_in_evaluation.__get__(module)  # type: ignore[method-assign]


def _stay_in_evaluation(module: nn.Module, mode: bool = True) -> nn.Module:
    """What `train` is to a frozen batch normalisation."""
    return module


def _learns(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters(recurse=False))


def _choose(model: Model, words: list[str]) -> Callable[[str], bool]:
    """From a parameter's name to whether it is trained; every word must name at least one parameter."""
    names = [name for name, _ in model.named_parameters()]
    chosen = _of_head(model, names)
    for word in words:
        found = {name for name in names if _is_part(model, word, name)} if word != "head" else chosen
        if not found:
            raise ValueError(f"train_only={word}: {model.name or 'the model'} has no such part")
        chosen = chosen | found
    return chosen.__contains__


def _of_head(model: Model, names: list[str]) -> set[str]:
    """The classifier's parameters."""
    own = {name for name in names if re.search(PARTS["head"][0], name)}
    if not own and isinstance(model, TimmBackbone):
        classifier = {id(parameter) for parameter in model.backbone.get_classifier().parameters()}
        own = {name for name, parameter in model.named_parameters() if id(parameter) in classifier}
    return own


def _is_part(model: Model, word: str, name: str) -> bool:
    if first := _FROM_BLOCK.fullmatch(word):
        return _is_from_block(model, int(first[1]), name)
    if word not in PARTS:
        near = difflib.get_close_matches(word, PARTS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"it takes {', '.join((*PARTS, ALL))} and blocks.N+"
        raise ValueError(f"train_only has no part {word!r}: {hint}")
    if isinstance(model, TimmBackbone):
        return bool(re.search(PARTS[word][1] if name.startswith("backbone.") else PARTS[word][0], name))
    return bool(re.search(PARTS[word][0], name))


def _is_from_block(model: Model, first: int, name: str) -> bool:
    """Whether a parameter belongs to a block from the first on, or to what comes after the blocks."""
    if isinstance(model, TimmBackbone) and not hasattr(model.backbone, "blocks"):
        raise ValueError(f"train_only=blocks.{first}+: timm/{model.config.timm_name} has no row of blocks")
    blocks = model.backbone.blocks if isinstance(model, TimmBackbone) else model.blocks
    if first >= len(blocks):
        raise ValueError(f"train_only=blocks.{first}+: there are the blocks 0 to {len(blocks) - 1}")
    found = _BLOCK.match(name)
    return int(found[1]) >= first if found else not _BELOW_BLOCKS.match(name)
