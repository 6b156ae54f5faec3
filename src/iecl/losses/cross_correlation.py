"""Barlow Twins: the features of two views should correlate each with itself and with no other (Zbontar et al. 2021)."""

from jaxtyping import Float
from torch import Tensor

from iecl.estimators.precision import full_precision


@full_precision
def cross_correlation(
    anchor: Float[Tensor, "batch dim"], query: Float[Tensor, "batch dim"], eps: float = 1e-5
) -> Float[Tensor, "dim dim"]:
    """Correlation over the batch of each feature of one view with each feature of the other.

    Features are standardized inside, with the batch's own mean and biased variance (+ `eps`, as in batch norm). With
    several processes give it the gathered rows: the statistics of a part of the batch are other statistics.
    """
    return _standardized(anchor, eps).T @ _standardized(query, eps) / len(anchor)


@full_precision
def barlow_twins(
    anchor: Float[Tensor, "batch dim"], query: Float[Tensor, "batch dim"], eps: float = 1e-5
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """`sum_i (C_ii - 1)^2` and `sum_{i != j} C_ij^2` of the cross-correlation C, neither of them weighted.

    Both are sums, so that they grow with the width and with its square. Symmetric in its arguments, and blind to the
    scale and shift of every feature.

    Collapse to one point: dim and 0. All features equal: 0 and dim (dim - 1). Opposite views: 4 dim and 0.
    Cost: batch dim^2.

    >>> import torch
    >>> apart = torch.tensor([[1.0, 1], [1, -1], [-1, 1], [-1, -1]])     # uncorrelated
    >>> [round(term.item(), 6) for term in barlow_twins(apart, -apart, eps=0.0)]     # 4 dim
    [8.0, 0.0]
    >>> [term.item() for term in barlow_twins(torch.ones(4, 3), torch.ones(4, 3))]     # dim
    [3.0, 0.0]
    """
    correlation = cross_correlation(anchor, query, eps)
    own = correlation.diagonal()
    return (own - 1).square().sum(), (correlation - own.diag()).square().sum()


def _standardized(z: Tensor, eps: float) -> Tensor:
    centered = z - z.mean(0)
    return centered / (centered.square().mean(0) + eps).sqrt()
