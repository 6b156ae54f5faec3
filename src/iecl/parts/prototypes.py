"""Directions that embeddings are compared with: SwAV's prototypes, DINO's last layer, S3OC's cluster centers."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import normalize

from iecl.estimators.precision import full_precision


@full_precision
def cosines(z: Float[Tensor, "n width"], unit: Float[Tensor, "count width"]) -> Float[Tensor, "n count"]:
    """Cosines with rows that have length 1; three digits, as autocast has them, are too few to divide by 0.05."""
    return normalize(z, dim=1) @ unit.T


class Prototypes(nn.Module):
    """Learnt unit rows whose gradient ignores the constraint; `renormalize` restores it after each optimizer step.

    SwAV's way (Caron et al. 2020). There is no bias: it would be free of the constraint.
    """

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(normalize(torch.randn(count, width), dim=1))

    def forward(self, z: Float[Tensor, "n width"]) -> Float[Tensor, "n count"]:
        """The cosine of each embedding with each prototype, between -1 and 1."""
        return cosines(z, self.weight)

    @torch.no_grad()
    def renormalize(self) -> None:
        """Give every row length 1 again."""
        self.weight.copy_(normalize(self.weight, dim=1))


class Directions(nn.Module):
    """Learnt rows of which only the direction counts; the gradient passes through the normalization.

    The same as a linear layer without bias under weight norm with the magnitude held at 1 (DINO, Caron et al. 2021),
    with one plain weight and no magnitude that an optimizer could decay.
    """

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(count, width) / width**0.5)

    def forward(self, z: Float[Tensor, "n width"]) -> Float[Tensor, "n count"]:
        """The cosine of each embedding with each direction, between -1 and 1."""
        return cosines(z, normalize(self.weight, dim=1))
