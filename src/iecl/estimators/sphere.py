"""Entropy of directions: rows are normalized inside, so none of these depends on scale."""

import math

import torch
import torch.nn.functional as F  # noqa: N812, the name all torch code uses
from jaxtyping import Float
from torch import Tensor

from iecl.estimators.precision import full_precision
from iecl.estimators.rows import check_rows


@full_precision
def uniformity(z: Float[Tensor, "batch dim"], sharpness: float = 2.0) -> Float[Tensor, ""]:
    """Log of the mean Gaussian potential of two different rows on the unit sphere (Wang & Isola 2020).

    log mean_{i < j} exp(-t |z_i - z_j|^2), t = `sharpness`: lower is more uniform.

    Scale: invariant. Range: 0 (all equal) to -4 t (two opposite points); orthonormal rows give -2 t.
    Bias: none for the mean itself; its logarithm is too low by half the squared relative error.
    Cost: batch^2 dim.
    Collapse: 0 with a gradient of exactly 0: a stationary point, it does not push equal rows apart.

    >>> round(uniformity(torch.eye(4)).item(), 6)
    -4.0
    """
    check_rows(z, "uniformity")
    log_mean = _log_mean_kernel(z, 2 * sharpness).logsumexp(0) - math.log(len(z))
    return log_mean - 2 * sharpness  # |a - b|^2 = 2 - 2 a.b on the sphere


@full_precision
def uniformity_entropy(z: Float[Tensor, "batch dim"], sharpness: float = 2.0) -> Float[Tensor, ""]:
    """Minus the uniformity, so that a larger value means more entropy: 0 for equal rows, at most 4 `sharpness`.

    Up to a constant the Renyi entropy of order 2 of a Gaussian kernel density. Scale, bias, cost: as `uniformity`.

    >>> round(uniformity_entropy(torch.tensor([[1., 0], [-3, 0]])).item(), 6)     # opposite points
    8.0
    """
    return -uniformity(z, sharpness)


@full_precision
def vmf_entropy(z: Float[Tensor, "batch dim"], concentration: float = 5.0) -> Float[Tensor, ""]:
    """Entropy on the unit sphere in nats by a von Mises-Fisher kernel density, each row left out of its own estimate.

    -1/batch sum_i log[C / (batch - 1) sum_{j != i} exp(k z_i.z_j)], k = `concentration`, C = `log_vmf_constant`.
    With k = 1 / temperature the inner sum is the denominator of a contrastive loss.

    Scale: invariant. Range: at most about the log area of the sphere; needs width 2 or more.
    Bias: the kernel smooths, so it is too large for a peaked law; without leaving rows out it would be far too low.
    Cost: batch^2 dim.
    Collapse: -log C - k, with a gradient of 0.

    >>> round(vmf_entropy(torch.eye(3)).item(), 6)     # log(4 pi sinh(5) / 5)
    5.228394
    """
    check_rows(z, "the entropy on the sphere")
    return -log_vmf_constant(z.shape[1], concentration) - _log_mean_kernel(z, concentration).mean()


def log_vmf_constant(dim: int, concentration: float) -> float:
    """Log of the density's constant: (d/2 - 1) log k - d/2 log(2 pi) - log I_{d/2-1}(k).

    >>> round(log_vmf_constant(3, 5.0), 6)     # k / (4 pi sinh k)
    -5.228394
    """
    order = dim / 2 - 1
    return order * math.log(concentration) - dim / 2 * math.log(2 * math.pi) - _log_bessel(order, concentration)


def _log_bessel(order: float, x: float) -> float:
    """Log of the modified Bessel function I of a real order, by its power series: all terms are positive."""
    # The largest term lies before m = x / 2 and the terms around it form a bell of width sqrt(x).
    m = torch.arange(int(x / 2 + 10 * math.sqrt(x) + 50), dtype=torch.float64)
    terms = (2 * m + order) * math.log(x / 2) - torch.lgamma(m + 1) - torch.lgamma(m + order + 1)
    return float(terms.logsumexp(0))


def _log_mean_kernel(z: Tensor, concentration: float) -> Tensor:
    """For each row: log of the mean of exp(concentration cos) over all other rows."""
    unit = F.normalize(z, dim=1)
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    others = (concentration * unit @ unit.T).masked_fill(itself, -math.inf)
    return others.logsumexp(1) - math.log(len(z) - 1)
