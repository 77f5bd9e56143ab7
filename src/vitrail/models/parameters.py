"""What kinds of parameters a model has: which decay, and which part of it each is."""

from collections.abc import Iterable

from torch import nn

from vitrail.layers.norm import Affine
from vitrail.layers.residual import Block, Branch, Residual

NORMS = (Affine, nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
PARTS = ("attention", "ffn", "norm", "positions", "stem", "head")


def find_undecayed(model: nn.Module) -> set[str]:
    """Names of single numbers and vectors, and of what layers say must not be pulled to zero (`undecayed_tensors`)."""
    names = {name for name, parameter in model.named_parameters() if is_vector(parameter)}
    for path, module in model.named_modules():
        names |= {f"{path}.{own}" if path else own for own in getattr(module, "undecayed_tensors", ())}
    return names


def is_vector(parameter: nn.Parameter) -> bool:
    """Whether a parameter is a number or a vector, also as [1, 1, dim]; a matrix of one row is none."""
    return parameter.ndim <= 1 or (parameter.ndim >= 3 and max(parameter.shape) == parameter.numel())


def names_of(model: nn.Module, parameters: Iterable[nn.Parameter]) -> set[str]:
    """The names that a model has for some of its parameters."""
    wanted = {id(parameter) for parameter in parameters}
    return {name for name, parameter in model.named_parameters() if id(parameter) in wanted}


def find_parts(model: nn.Module) -> tuple[set[str], ...]:
    """For each of PARTS the names of its parameters, where the layers are ours."""
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    norms = (
        module
        for path, module in model.named_modules()
        if isinstance(module, NORMS) or path.split(".")[-1] == "norm"  # which Fixup makes of several layers
    )
    children = (getattr(model, name, None) for name in ("positions", "stem", "head"))
    return (
        names_of(model, _in_branches(block.communication for block in blocks)),
        names_of(model, _in_branches(block.feed_forward for block in blocks)),
        names_of(model, (parameter for norm in norms for parameter in norm.parameters())),
        *(names_of(model, child.parameters() if isinstance(child, nn.Module) else ()) for child in children),
    )


def _in_branches(layers: Iterable[nn.Module]) -> Iterable[nn.Parameter]:
    """The parameters of what the branches of residual layers compute, without their norms and scales."""
    for layer in layers:
        for branch in layer.branches if isinstance(layer, Residual) else ():
            if isinstance(branch, Branch):
                yield from branch.mix.parameters()
