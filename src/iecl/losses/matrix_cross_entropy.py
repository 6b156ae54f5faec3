"""Matrix-SSL: cross-entropy between covariance matrices (Zhang et al. 2024), as the authors' code has it.

`MCE(P, Q) = -tr(P log Q)`; the paper's further term tr(Q) is left out there, and here. The logarithm is its series
around the identity, `log Q = X - X^2/2 + X^3/3 - ...` with `X = Q - I`. It needs no symmetric matrix, which a
cross-covariance is not, and converges where no eigenvalue of X is larger than 1: rows of length 1 and `ridge` at most 1
are enough for that.
"""

import torch
import torch.nn.functional as F  # noqa: N812, the name all torch code uses
from jaxtyping import Float
from torch import Tensor

from iecl.estimators.precision import full_precision


@full_precision
def matrix_cross_entropy(p: Float[Tensor, "dim dim"], q: Float[Tensor, "dim dim"], order: int = 4) -> Float[Tensor, ""]:
    """-tr(P log Q) with the series up to X^`order`. Cost: order dim^3.

    >>> round(matrix_cross_entropy(torch.eye(4), 1.25 * torch.eye(4)).item(), 6)     # exact: -4 log 1.25 = -0.892574
    -0.891927
    """
    x = q - torch.eye(len(q), dtype=q.dtype, device=q.device)
    power, total = p, p.new_zeros(())
    for k in range(1, order + 1):
        total = total + (-1) ** (k + 1) / k * (power * x.T).sum()  # tr(P X^k) without the last product
        power = power @ x if k < order else power
    return -total


@full_precision
def matrix_uniformity(
    target: Float[Tensor, "batch dim"],
    online: Float[Tensor, "batch dim"],
    *,
    weight: float = 1.0,
    ridge: float = 1.0,
    order: int = 4,
) -> Float[Tensor, ""]:
    """MCE(`weight` I, C + `ridge` I), C the cross-covariance of the two sets of rows: spreads over all directions.

    Rows are scaled to length 1 and then centered. Not symmetric in its arguments, and C is not a symmetric matrix.

    Collapse: -dim weight log(ridge), 0 for ridge 1, which is above any spread embedding's value. One row is collapse.
    """
    covariance = _covariance(target, online)
    identity = torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
    return matrix_cross_entropy(weight * identity, covariance + ridge * identity, order)


@full_precision
def matrix_alignment(
    target: Float[Tensor, "batch dim"], online: Float[Tensor, "batch dim"], *, ridge: float = 1.0, order: int = 4
) -> Float[Tensor, ""]:
    """MCE(C_target + `ridge` I, C_online + `ridge` I): gives the two sets of rows the same covariance.

    Rows are scaled to length 1 and then centered. Collapse: -dim ridge log(ridge).
    """
    ours, theirs = _covariance(online, online), _covariance(target, target)
    identity = torch.eye(len(ours), dtype=ours.dtype, device=ours.device)
    return matrix_cross_entropy(theirs + ridge * identity, ours + ridge * identity, order)


def _covariance(a: Tensor, b: Tensor) -> Tensor:
    """Of unit rows, a' J b / batch; J, which centers, is needed on one side only."""
    a, b = F.normalize(a, dim=1), F.normalize(b, dim=1)
    return (a - a.mean(0)).T @ b / len(a)
