"""Each feature of a view should be the same feature of its target, and no other one (All4One, Estepa et al. 2023)."""

import torch
import torch.nn.functional as F  # noqa: N812, the name all torch code uses
from jaxtyping import Float
from torch import Tensor

from iecl.estimators.precision import full_precision

SAFE = 1e-12
"""Inside the roots: the gradient of a root at 0 is infinite, and a perfect match is at 0."""


@full_precision
def feature_redundancy(
    anchor: Float[Tensor, "batch dim"],
    query: Float[Tensor, "batch dim"],
    anchor_target: Float[Tensor, "batch dim"],
    query_target: Float[Tensor, "batch dim"],
) -> Float[Tensor, ""]:
    """5 (on + off) of the correlations C between each view and the other view's target, which is held still.

    Columns are divided by their norm over the batch, not centered. on = root of the mean of (C_ii - 1)^2, off = root
    of the mean of C_ij^2 with i != j, the means over both pairs of views.

    Collapse to equal columns: 5. Opposite: 10. Equal and decorrelated: 0, up to 1e-5 from the roots. Cost: batch dim^2.

    >>> round(feature_redundancy(*[torch.ones(4, 3)] * 4).item(), 4)
    5.0
    """
    correlations = torch.stack([_correlations(anchor, query_target), _correlations(query, anchor_target)])
    same = torch.eye(anchor.shape[1], dtype=torch.bool, device=anchor.device)
    on = (correlations.diagonal(dim1=1, dim2=2) - 1).square().mean()
    off = correlations.masked_fill(same, 0).square().sum() / (2 * (~same).sum())
    return 5 * ((on + SAFE).sqrt() + (off + SAFE).sqrt())


def _correlations(z: Tensor, target: Tensor) -> Tensor:
    return F.normalize(target.detach(), dim=0).T @ F.normalize(z, dim=0)
