"""Predict a target of the other view, without negatives: BYOL's distance (Grill et al. 2020) and SimSiam's cosine."""

import torch.nn.functional as F  # noqa: N812, the name all torch code uses
from jaxtyping import Float
from torch import Tensor

from iecl.estimators.precision import full_precision


@full_precision
def negative_cosine(predictions: Float[Tensor, "batch dim"], targets: Float[Tensor, "batch dim"]) -> Float[Tensor, ""]:
    """Mean over images of -cos(p, t): one direction of SimSiam (Chen and He 2021, equation 1).

    The targets are held still: no gradient reaches what made them.

    Range: -1 to 1. Collapse: -1, the same as the optimum, so that the value cannot tell them apart. Cost: batch dim.

    >>> import torch
    >>> negative_cosine(torch.eye(3), 2 * torch.eye(3)).item()
    -1.0
    """
    return -(F.normalize(predictions, dim=1) * F.normalize(targets.detach(), dim=1)).sum(1).mean()


@full_precision
def unit_distance(predictions: Float[Tensor, "batch dim"], targets: Float[Tensor, "batch dim"]) -> Float[Tensor, ""]:
    """Mean over images of |p/|p| - t/|t||^2 = 2 - 2 cos(p, t): one direction of BYOL (equation 2).

    The targets are held still. BYOL adds the two directions; their mean would halve its step.

    Range: 0 to 4. Collapse: 0, the same as the optimum. Cost: batch dim.

    >>> import torch
    >>> unit_distance(torch.eye(3), -torch.eye(3)).item()     # opposite
    4.0
    """
    return 2 + 2 * negative_cosine(predictions, targets)
