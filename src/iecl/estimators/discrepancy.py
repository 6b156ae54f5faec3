"""Maximum mean discrepancy: a distance between two sets that needs no density (Gretton et al. 2012)."""

import torch
from jaxtyping import Float
from torch import Tensor

from iecl.estimators.precision import full_precision
from iecl.estimators.rows import check_pair


@full_precision
def mmd_squared(
    p: Float[Tensor, "rows_p dim"],
    q: Float[Tensor, "rows_q dim"],
    bandwidth_squared: float | None = None,
    unbiased: bool = False,
) -> Float[Tensor, ""]:
    """Squared MMD of p and q with the kernel k(x, y) = exp(-|x - y|^2 / (2 s^2)), s^2 = `bandwidth_squared`.

    mean k(x, x') + mean k(y, y') - 2 mean k(x, y), symmetric in p and q. Without a bandwidth, s^2 is the median squared
    distance of all pairs of rows of both sets, taken as a constant.

    Scale: invariant with the median bandwidth; with a fixed one it vanishes for both very small and very large rows.
    Bias: the default keeps each row's kernel with itself, is never negative and too large by about
    1 / rows_p + 1 / rows_q at most; `unbiased` leaves it out and may be negative.
    Cost: (rows_p + rows_q)^2 dim. The gradient is bounded.
    Collapse: 0 where all rows of both sets coincide, gradient 0.

    >>> zero, one = torch.zeros(1, 1), torch.ones(1, 1)
    >>> round(mmd_squared(zero, one, bandwidth_squared=0.5).item(), 6)     # 2 - 2 / e
    1.264241

    Raises:
        UserError: for an empty set; with `unbiased` or the median bandwidth for fewer than 2 rows.
    """
    check_pair(p, q, "the MMD", least=2 if unbiased or bandwidth_squared is None else 1)
    pooled = torch.cat([p, q])
    squared = torch.cdist(pooled, pooled, compute_mode="donot_use_mm_for_euclid_dist").square()
    spread = _median_of_pairs(squared) if bandwidth_squared is None else bandwidth_squared
    kernel = torch.exp(squared / (-2 * spread))
    rows = len(p)
    within = _mean_within(kernel[:rows, :rows], unbiased) + _mean_within(kernel[rows:, rows:], unbiased)
    return within - 2 * kernel[:rows, rows:].mean()


def _mean_within(kernel: Tensor, unbiased: bool) -> Tensor:
    if not unbiased:
        return kernel.mean()
    rows = len(kernel)
    return (kernel.sum() - kernel.trace()) / (rows * (rows - 1))


def _median_of_pairs(squared: Tensor) -> Tensor:
    """Median squared distance of different rows; a constant, or the set could lower its loss through the bandwidth."""
    first, second = torch.triu_indices(len(squared), len(squared), offset=1, device=squared.device)
    return squared.detach()[first, second].median().clamp_min(1e-12)
