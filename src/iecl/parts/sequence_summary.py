"""A small transformer that reads a short sequence of vectors and gives one vector: what it makes of the first."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from iecl.errors import UserError


class SequenceSummary(nn.Module):
    """Attention over `length` vectors with a position code, without dropout.

    Dropout would draw from torch's own generator, whose history a resumed run does not have.
    """

    places: Tensor

    def __init__(self, width: int, length: int, *, layers: int, heads: int) -> None:
        super().__init__()
        if width % heads:
            raise UserError(
                f"vectors of {width} cannot be shared by {heads} attention heads",
                where="method.out_dim",
                do=f"use a multiple of {heads}",
            )
        layer = nn.TransformerEncoderLayer(width, heads, dim_feedforward=2 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.register_buffer("places", _waves(length, width))  # saved: a run must not go on with another code

    def forward(self, x: Float[Tensor, "n length width"]) -> Float[Tensor, "n width"]:
        """The first vector, after it has looked at all."""
        read: Tensor = self.layers(x + self.places)
        return read[:, 0]


def _waves(length: int, width: int) -> Tensor:
    """For each vector a wave along its features, as in solo-learn: sine and cosine in turn, slower with each pair."""
    number = torch.arange(length)[:, None]
    rates = 10000.0 ** (-(number - number % 2) / (length + length % 2))
    angles = torch.arange(width) * rates
    return torch.where(number % 2 == 0, angles.sin(), angles.cos())
