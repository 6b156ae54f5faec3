"""Which epoch is best, where there are no labels? Scores of features; larger is taken for better. No gradient.

What each is worth was measured, and the mean loss of an epoch is worth more than any: see `benchmarks/selection.py` and
the page on entropy.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from iecl.estimators.precision import full_precision
from iecl.estimators.rows import check_rows
from iecl.estimators.spectrum import SMALLEST
from iecl.meters.embedding import effective_rank, entropy, uniformity

FIRST, LAST = 3, 100
"""Eigenvalues, counted from 1, that the power law is fitted to: the first few are no part of any law."""


@torch.no_grad()
@full_precision
def rank_me(features: Float[Tensor, "rows dim"]) -> Float[Tensor, ""]:
    """RankMe (Garrido et al. 2023): exp of the entropy of the singular values, as they are, not centered.

    Scale: invariant. Range: 1 to min(rows, dim). It weighs small directions more than `effective_rank`, which is made
    of squares. Equal rows have rank 1.

    >>> round(rank_me(torch.diag(torch.tensor([3.0, 1.0]))).item(), 4)     # shares 3/4 and 1/4
    1.7548
    """
    check_rows(features, "RankMe")
    values: Tensor = torch.linalg.svdvals(features)
    shares = (values / values.sum().clamp_min(SMALLEST)).clamp_min(SMALLEST)
    return (-(shares * shares.log()).sum()).exp()


@torch.no_grad()
@full_precision
def power_law(features: Float[Tensor, "rows dim"]) -> Float[Tensor, ""]:
    """The exponent a of eigenvalues that fall as j^-a, of the covariance: the a of a-ReQ (Agrawal et al. 2022).

    A least-squares line through the logarithms of eigenvalues 3 to 100, each weighed by 1/j, so that every octave
    counts alike. Scale: invariant. 0: all directions alike; large: few directions. Equal rows give infinity.

    >>> rows = torch.diag(torch.arange(1.0, 33) ** -0.75)
    >>> round(power_law(torch.cat([rows, -rows])).item(), 4)     # squares fall as j^-1.5
    1.5
    """
    check_rows(features, "the power law")
    centered = features - features.mean(0)
    values: Tensor = torch.linalg.svdvals(centered).square()[FIRST - 1 : LAST]
    values = values[values > values.new_tensor(SMALLEST) * centered.square().sum().clamp_min(SMALLEST)]
    if len(values) < 2:
        return features.new_tensor(torch.inf)
    place = torch.arange(FIRST, FIRST + len(values), device=values.device, dtype=values.dtype)
    weights = place.reciprocal() / place.reciprocal().sum()
    x, y = place.log(), values.log()
    x, y = x - (weights * x).sum(), y - (weights * y).sum()
    return -(weights * x * y).sum() / (weights * x * x).sum()


SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "rank_me": rank_me,
    "power_law": lambda features: -(power_law(features) - 1).abs(),  # a-ReQ: best at 1
    "effective_rank": effective_rank,
    "coding_rate": entropy,
    "uniformity": lambda features: -uniformity(features),
}
