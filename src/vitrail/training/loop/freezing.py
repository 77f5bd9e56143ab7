"""Training a part of a model and leaving the rest as it is (Three things, section 4)."""

import difflib
import re

from torch import nn

from vitrail.models.contract import AnyModel

ALL = "all"
_FROM_BLOCK = re.compile(r"blocks\.(\d+)\+")


def freeze(model: AnyModel, train_only: str) -> None:
    """Freeze all parameters but those of the named parts, such as `attention`, `ffn,norm` or `blocks.18+`.

    The head always learns: a new task has new classes. With `head` nothing else does. What is frozen gets no gradient
    and no optimizer state, and batch normalisation that is frozen keeps its running statistics too; stochastic depth
    goes on as in training.
    """
    if train_only == ALL:
        return
    learning = _choose(model, [word.strip() for word in train_only.split(",")])
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in learning and parameter.requires_grad)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and not _learns(module):
            module.eval()
            module.train = _stay_in_evaluation.__get__(module)  # type: ignore[method-assign]


def _stay_in_evaluation(module: nn.Module, mode: bool = True) -> nn.Module:
    """What `train` is to a frozen batch normalisation."""
    return module


def _learns(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters(recurse=False))


def _choose(model: AnyModel, words: list[str]) -> set[str]:
    """The names of the parameters that learn; every word must name at least one."""
    parts = model.parts()
    chosen = parts["head"]
    for word in words:
        found = _find_word(model, word, parts)
        if not found and word != "head":  # of a bare trunk that stands below a head
            raise ValueError(f"train_only={word}: {model.name or 'the model'} has no such part")
        chosen = chosen | found
    return chosen


def _find_word(model: AnyModel, word: str, parts: dict[str, set[str]]) -> set[str]:
    if first := _FROM_BLOCK.fullmatch(word):
        try:
            return model.from_block(int(first[1]))
        except ValueError as error:
            raise ValueError(f"train_only={word}: {error}") from None
    if word not in parts:
        near = difflib.get_close_matches(word, parts, n=1)
        hint = f"did you mean {near[0]}?" if near else f"it takes {', '.join((*parts, ALL))} and blocks.N+"
        raise ValueError(f"train_only has no part {word!r}: {hint}")
    return parts[word]
