"""Entropy and divergence from distances to nearest neighbors: no model of the law, but only for few dimensions."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from iecl.estimators.precision import full_precision
from iecl.estimators.rows import check_pair, check_rows

SHORTEST = 1e-12
"""Equal rows count as this far apart, so that their logarithm and its gradient stay finite."""


@full_precision
def nearest_entropy(z: Float[Tensor, "batch dim"], neighbors: int = 3) -> Float[Tensor, ""]:
    """Kozachenko-Leonenko entropy in nats.

    psi(batch) - psi(k) + log V_dim + dim / batch sum_i log r_k(i): r_k(i) is the distance from row i to its k-th
    nearest other row, V_dim the volume of the unit ball, k = `neighbors`.

    Scale: grows by dim log c for c z, without bound.
    Bias: too large, and more so with the dimension: of 512 standard normal rows by 0.02 in 1, 3.4 in 32 and 10.7 in 64
    dimensions. Above about 16 dimensions read it only relative to another value at the same batch.
    Cost: batch^2 dim.
    Collapse: equal rows count as 1e-12 apart: very low, finite, gradient 0.

    >>> round(nearest_entropy(torch.arange(8.)[:, None], neighbors=1).item(), 6)     # psi(8) - psi(1) + log 2
    3.286004
    """
    check_rows(z, f"the entropy from {neighbors} neighbors", least=neighbors + 1)
    batch, dim = z.shape
    order = torch.tensor([batch, neighbors], dtype=torch.float64)
    constant = float(torch.digamma(order).diff().neg()) + dim / 2 * math.log(math.pi) - math.lgamma(dim / 2 + 1)
    return constant + dim * _distance_within(z, neighbors).log().mean()


@full_precision
def nearest_divergence(
    p: Float[Tensor, "rows_p dim"], q: Float[Tensor, "rows_q dim"], neighbors: int = 3
) -> Float[Tensor, ""]:
    """KL(p || q) in nats from the distances of each row of p to its nearest rows in q and in p (Wang et al. 2009).

    dim / rows_p sum_i log(nu_k(i) / rho_k(i)) + log(rows_q / (rows_p - 1)): nu_k(i) is the distance from row i of p to
    its k-th nearest row of q, rho_k(i) to its k-th nearest other row of p.

    Scale: unchanged when both sets are scaled alike.
    Bias: too low for laws that are far apart (0.26 for a true 0.5 in 64 dimensions); may be negative.
    Cost: rows_p (rows_p + rows_q) dim. The gradient moves single neighbors only: for reading, not for training.
    Collapse: equal rows count as 1e-12 apart: finite.

    >>> p = torch.arange(4.)[:, None]
    >>> round(nearest_divergence(p, p + 0.5, neighbors=1).item(), 6)     # log(1/2) + log(4/3)
    -0.405465
    """
    check_rows(p, f"the divergence from {neighbors} neighbors", least=neighbors + 1)
    check_pair(p, q, f"the divergence from {neighbors} neighbors", least=neighbors)
    ratio = _kth_smallest(_distances(p, q), neighbors) / _distance_within(p, neighbors)
    return p.shape[1] * ratio.log().mean() + math.log(len(q) / (len(p) - 1))


def _distance_within(z: Tensor, neighbors: int) -> Tensor:
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    return _kth_smallest(_distances(z, z).masked_fill(itself, math.inf), neighbors)


def _distances(left: Tensor, right: Tensor) -> Tensor:
    # Through a matrix product, distances of near neighbors would drown in the rounding of the norms.
    return torch.cdist(left, right, compute_mode="donot_use_mm_for_euclid_dist")


def _kth_smallest(distances: Tensor, neighbors: int) -> Tensor:
    return distances.topk(neighbors, largest=False).values[:, -1].clamp_min(SHORTEST)
