"""W-MSE: whiten the embeddings of a group of images, then pull the views of an image together (Ermolov et al. 2021)."""

from collections.abc import Sequence
from itertools import combinations

import torch
import torch.nn.functional as F  # noqa: N812, the name all torch code uses
from jaxtyping import Float
from torch import Tensor

from iecl.errors import TrainingError
from iecl.estimators.precision import full_precision


@full_precision
def whiten(z: Float[Tensor, "*group rows dim"], shrink: float = 0.0) -> Float[Tensor, "*group rows dim"]:
    """Rows with mean zero and identity covariance in each group: L^-1 (z - mean), L the Cholesky factor.

    The covariance (over rows - 1) is (1 - `shrink`) C + `shrink` I. Whitening is defined up to a rotation; this one is
    blind to lower-triangular maps with a positive diagonal, not to every linear map. Needs clearly more rows than
    dimensions: with as many or fewer the covariance has no inverse, and rounding may hide that.

    Cost per group: rows dim^2 + dim^3.

    >>> z = whiten(torch.randn(32, 4, generator=torch.Generator().manual_seed(0)))
    >>> round(z.square().sum(1).mean().item(), 3)     # dim (rows - 1) / rows
    3.875
    """
    centered = z - z.mean(-2, keepdim=True)
    covariance = centered.mT @ centered / (z.shape[-2] - 1)
    identity = torch.eye(z.shape[-1], dtype=z.dtype, device=z.device)
    factor, failed = torch.linalg.cholesky_ex((1 - shrink) * covariance + shrink * identity)
    if z.device.type != "cpu":  # to raise here would mean to wait for it: the loss becomes NaN, and the run says so
        factor = factor.masked_fill((failed > 0)[..., None, None], torch.nan)
    elif failed.any() and z.isfinite().all():  # a NaN goes on to the loss all the same
        raise TrainingError(
            "the embeddings of a group have no inverse covariance: they collapsed, or the group is too small",
            where="whitening",
            do="lower optimizer.lr, enlarge method.whitening_size, or set method.shrink=1e-4",
        )
    white: Tensor = torch.linalg.solve_triangular(factor, centered.mT, upper=False)
    return white.mT


@full_precision
def whitened_mse(
    first: Float[Tensor, "rows dim"], *others: Float[Tensor, "rows dim"], group: int, shrink: float = 0.0
) -> Float[Tensor, ""]:
    """Mean over images and pairs of views of |a - b|^2 = 2 - 2 cos(a, b) for whitened rows scaled to length 1.

    Each view is whitened for itself, `group` rows at a time from the first on: shuffle the rows (all views alike)
    before. No view is held still.

    Collapse has no value: whitened rows cannot all be equal, and a constant batch is an error. Equal views: 0,
    independent views: about 2, opposite views: 4. Cost: views (rows dim^2 + dim^3 rows / group).

    >>> z = torch.randn(16, 3, generator=torch.Generator().manual_seed(0))
    >>> round(whitened_mse(z, -z, group=8).item(), 5)
    4.0
    """
    units = [F.normalize(_whiten_groups(z, group, shrink), dim=-1) for z in (first, *others)]
    return _mean_over_pairs(units)


def _whiten_groups(z: Tensor, group: int, shrink: float) -> Tensor:
    return whiten(z.reshape(-1, group, z.shape[1]), shrink).flatten(0, 1)


def _mean_over_pairs(units: Sequence[Tensor]) -> Tensor:
    return torch.stack([2 - 2 * (a * b).sum(1).mean() for a, b in combinations(units, 2)]).mean()
