"""The feed-forward network of a transformer block (thesis 3.2), and the activations that ResMLP compares (4.3.4)."""

from torch import Tensor, nn

from vitrail.layers.residual import ScalarBias
from vitrail.layers.sample_draws import Dropout

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "gelu": nn.GELU,
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "hardswish": nn.Hardswish,
}


class FeedForward(nn.Module):
    """Two linear layers around an activation, applied to each token; `scalar_bias` adds Fixup's extra biases.

    `dropout` is on what is hidden; what comes out is the branch's to drop.
    """

    def __init__(
        self,
        dim: int,
        *,
        hidden_dim: int,
        scalar_bias: bool = False,
        dropout: float = 0.0,
        activation: str = "gelu",
    ) -> None:
        super().__init__()
        self.expand = nn.Linear(dim, hidden_dim)
        self.before_activation = ScalarBias() if scalar_bias else nn.Identity()
        self.activation = ACTIVATIONS[activation]()
        self.dropout = Dropout(dropout) if dropout else nn.Identity()
        self.before_contract = ScalarBias() if scalar_bias else nn.Identity()
        self.contract = nn.Linear(hidden_dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.dropout(self.activation(self.before_activation(self.expand(x))))
        return self.contract(self.before_contract(hidden))
