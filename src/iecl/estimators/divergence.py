"""KL divergences between two sets of embeddings: always KL(p || q), the mean of log p - log q over p.

Swapping the arguments changes the value and the gradients. None of these detaches anything: the caller decides which
side learns.
"""

import math

import torch
import torch.nn.functional as F  # noqa: N812, the name all torch code uses
from jaxtyping import Float
from torch import Tensor

from iecl.errors import UserError
from iecl.estimators.gaussian import covariance, gaussian_entropy
from iecl.estimators.precision import full_precision
from iecl.estimators.rows import check_pair


@full_precision
def gaussian_diagonal_kl(
    p: Float[Tensor, "rows_p dim"], q: Float[Tensor, "rows_q dim"], floor: float = 1e-6, unbiased: bool = True
) -> Float[Tensor, ""]:
    """KL(p || q) of two Gaussians with the sets' means and variances, correlations ignored.

    1/2 sum [v_p / v_q + (m_p - m_q)^2 / v_q - 1 + log(v_q / v_p)], `floor` added to every variance.

    Scale: unchanged when both sets are scaled alike (exactly with floor = 0).
    Bias: too large, by about 2 dim / rows for equal laws. Identically 0 when each set went through a batch norm of its
    own without affine part.
    Cost: (rows_p + rows_q) dim.
    Collapse: finite through the floor; the gradient at the collapse of p is finite and 0 in the variances.

    >>> p, q = torch.tensor([[0.], [2]]), torch.tensor([[1.], [5]])     # means 1, 3; variances 2, 8
    >>> round(gaussian_diagonal_kl(p, q, floor=0).item(), 6)     # (1/4 + 1/2 - 1 + log 4) / 2
    0.568147
    """
    check_pair(p, q, "the diagonal KL")
    correction = int(unbiased)
    variance_p, variance_q = (rows.var(0, correction=correction) + floor for rows in (p, q))
    ratio = variance_p / variance_q
    shift = (p.mean(0) - q.mean(0)).square() / variance_q
    return (ratio + shift - 1 - ratio.log()).sum() / 2


@full_precision
def gaussian_full_kl(
    p: Float[Tensor, "rows_p dim"],
    q: Float[Tensor, "rows_q dim"],
    shrinkage: float = 0.1,
    floor: float = 1e-6,
    unbiased: bool = True,
) -> Float[Tensor, ""]:
    """KL(p || q) of two Gaussians with the sets' means and shrunk covariances.

    Scale: unchanged when both sets are scaled alike (exactly with floor = 0).
    Bias: too large; without shrinkage by about dim (dim + 3) / (2 rows) for equal laws, and far more near rows = dim.
    Cost: (rows_p + rows_q) dim^2 + dim^3.
    Collapse: finite through the floor.

    >>> p = torch.tensor([[1., 1], [1, -1], [-1, 1], [-1, -1]])
    >>> round(gaussian_full_kl(p, p + 1, shrinkage=0, floor=0, unbiased=False).item(), 6)     # |(1, 1)|^2 / 2
    1.0
    """
    check_pair(p, q, "the full KL")
    covariance_p, covariance_q = (covariance(rows, shrinkage, floor, unbiased) for rows in (p, q))
    return gaussian_kl(p.mean(0), covariance_p, q.mean(0), covariance_q)


@full_precision
def gaussian_kl(
    mean_p: Float[Tensor, " dim"],
    covariance_p: Float[Tensor, "dim dim"],
    mean_q: Float[Tensor, " dim"],
    covariance_q: Float[Tensor, "dim dim"],
) -> Float[Tensor, ""]:
    """KL(p || q) of two Gaussians given by their moments.

    1/2 [tr(S_q^-1 S_p) + (m_q - m_p)^T S_q^-1 (m_q - m_p) - dim + log det S_q - log det S_p]

    >>> zero, one = torch.zeros(1), torch.eye(1)
    >>> [round(gaussian_kl(zero, a, zero, b).item(), 6) for a, b in ((one, 4 * one), (4 * one, one))]
    [0.318147, 0.806853]
    """
    shift = (mean_q - mean_p).unsqueeze(1)
    # Trace and quadratic form are one solve: S_p and the outer product of the shift go through the same inverse.
    # solve_ex, since solve raises for NaN: a run that went wrong is named by whoever checks the loss.
    inner: Tensor = torch.linalg.solve_ex(covariance_q, covariance_p + shift @ shift.T).result.trace()
    log_ratio: Tensor = torch.linalg.slogdet(covariance_q).logabsdet - torch.linalg.slogdet(covariance_p).logabsdet
    return (inner - len(mean_p) + log_ratio) / 2


@full_precision
def isotropic_kl(
    p: Float[Tensor, "rows dim"],
    mean: Float[Tensor, " dim"] | float = 0.0,
    variance: Float[Tensor, ""] | float = 1.0,
    shrinkage: float = 0.1,
    floor: float = 1e-6,
) -> Float[Tensor, ""]:
    """KL(p || q) of a Gaussian with the rows' moments to the fixed q = N(mean, variance I).

    -H(p) + [tr S_p + |m_p - mean|^2] / (2 variance) + dim/2 log(2 pi variance)

    Scale: smallest where the rows have the scale of q; unit rows of width dim want a variance of about 1 / dim.
    Bias: that of the entropy, see `log_det_bias`, with the opposite sign.
    Cost: rows dim^2 + dim^3.
    Collapse: large and finite through the floor, so that minimizing it spreads the rows.

    >>> p = torch.tensor([[1., 1], [1, -1], [-1, 1], [-1, -1]])     # unbiased variance 4/3
    >>> round(isotropic_kl(p, shrinkage=0, floor=0).item(), 6)     # 4/3 - 1 - log(4/3)
    0.045651
    """
    spread = covariance(p, shrinkage, floor)
    distance = (p.mean(0) - mean).square().sum()
    return -gaussian_entropy(spread) + (spread.trace() + distance) / (2 * variance) + _log_area(p, variance)


@full_precision
def printed_isotropic_kl(
    p: Float[Tensor, "rows dim"],
    mean: Float[Tensor, " dim"] | float = 0.0,
    variance: Float[Tensor, ""] | float = 1.0,
    shrinkage: float = 0.1,
    floor: float = 1e-6,
) -> Float[Tensor, ""]:
    """`isotropic_kl` as the paper prints it, kept for study: not a divergence, and minimizing it collapses p.

    +H(p) + |m_p - mean|^2 / (2 variance) + dim/2 log(2 pi variance): the entropy has the wrong sign and the trace is
    missing. It is not 0 for equal laws, and it falls without bound as the rows contract.

    Scale, bias and cost: those of the entropy. Collapse: very low, finite through the floor.

    >>> p = torch.tensor([[1., 1], [1, -1], [-1, 1], [-1, -1]])
    >>> wide, narrow = (printed_isotropic_kl(rows).item() for rows in (p, 0.1 * p))
    >>> round(narrow - wide, 3)     # 2 log 0.1: it rewards contraction
    -4.605
    """
    distance = (p.mean(0) - mean).square().sum()
    return gaussian_entropy(covariance(p, shrinkage, floor)) + distance / (2 * variance) + _log_area(p, variance)


@full_precision
def printed_kl(
    p: Float[Tensor, "rows_p dim"], q: Float[Tensor, "rows_q dim"], shrinkage: float = 0.1, floor: float = 1e-6
) -> Float[Tensor, ""]:
    """`printed_isotropic_kl` of p to the isotropic Gaussian with the mean and the mean variance of q; for study only.

    Scale: unlike a divergence it moves, by 2 dim log c when both sets are scaled by c. Bias: of the entropy.
    Cost: rows_p dim^2 + dim^3 + rows_q dim. Collapse: finite through the floor.

    >>> p = torch.tensor([[1., 1], [1, -1], [-1, 1], [-1, -1]])
    >>> round(printed_kl(p, p).item(), 3)     # 2 H(p) - 1, where equal laws should give 0
    5.251
    """
    check_pair(p, q, "the printed KL")
    return printed_isotropic_kl(p, q.mean(0), q.var(0).mean() + floor, shrinkage, floor)


@full_precision
def softmax_kl(
    p: Float[Tensor, "rows classes"], q: Float[Tensor, "rows classes"], temperature: float = 1.0
) -> Float[Tensor, ""]:
    """KL(P || Q) of P = softmax(p / T) and Q = softmax(q / T), mean over rows, times T^2 (distillation).

    Row i of p is compared with row i of q: it speaks of pairs, not of the two sets' laws, and one row is enough.

    Scale: both arguments are logits, so scale acts as 1 / T. Bias: none. Cost: rows classes.
    Collapse: equal rows are an ordinary point.

    >>> round(softmax_kl(torch.tensor([[30., 0, 0]]), torch.zeros(1, 3)).item(), 6)     # log 3
    1.098612

    Raises:
        UserError: unless the two have the same shape.
    """
    check_pair(p, q, "the softmax KL", least=1)
    if len(p) != len(q):
        raise UserError("the softmax KL compares row with row", where=f"{len(p)} and {len(q)} rows", do="pair the rows")
    log_p, log_q = F.log_softmax(p / temperature, dim=1), F.log_softmax(q / temperature, dim=1)
    return temperature**2 * (log_p.exp() * (log_p - log_q)).sum(1).mean()


def _log_area(p: Tensor, variance: Tensor | float) -> Tensor:
    """dim/2 log(2 pi variance): what a Gaussian's density costs at its center."""
    return p.shape[1] / 2 * torch.as_tensor(2 * math.pi * variance, dtype=p.dtype, device=p.device).log()
