"""Entropies of the spectrum of embeddings: over how many directions do the rows spread?"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from iecl.errors import UserError
from iecl.estimators.precision import full_precision
from iecl.estimators.rows import check_rows

SMALLEST = 1e-12
"""Shares of the spectrum are read as at least this: the logarithm of 0 has no gradient."""


@full_precision
def spectrum(z: Float[Tensor, "batch dim"], least_norm: float = 1e-12) -> Float[Tensor, " shares"]:
    """Share of each direction in the squared norm of all rows, and last the share that is missing to 1.

    Eigenvalues of z z^T / tr(z z^T), smallest first, not centered. Below a Frobenius norm of `least_norm` rows count as
    partly missing, and what is missing as one more direction: rows that are all 0 are one point, of entropy 0.

    >>> [round(share, 6) for share in spectrum(torch.diag(torch.tensor([1., 3.]))).tolist()]
    [0.1, 0.9, 0.0]
    """
    check_rows(z, "a spectrum")
    scaled, missing = _to_unit_norm(z, least_norm)
    gram = _smaller_gram(scaled)
    if not gram.isfinite().all():
        return torch.full_like(gram[0], math.nan)  # the decomposition would raise; a reading of NaN says what happened
    shares = torch.linalg.eigvalsh(gram)
    return torch.cat([shares, missing[None]]).clamp_min(SMALLEST)


@full_precision
def von_neumann_entropy(z: Float[Tensor, "batch dim"], least_norm: float = 1e-12) -> Float[Tensor, ""]:
    """Entropy of the spectrum in nats: -sum l log l over the eigenvalues l of z z^T / tr(z z^T).

    Scale: invariant. Range: 0 (one direction) to log min(batch, dim). Not centered: a common mean is a direction too.
    Bias: too low by about (dim - 1) / (2 batch) for isotropic rows, since a sample's spectrum is never flat.
    Cost: batch dim min(batch, dim), and the smaller side cubed for the eigenvalues.
    Collapse: equal rows give 0, with a finite gradient.

    >>> round(von_neumann_entropy(torch.eye(4)).item(), 6)     # log 4
    1.386294
    """
    shares = spectrum(z, least_norm)
    return -(shares * shares.log()).sum()


@full_precision
def renyi_entropy(z: Float[Tensor, "batch dim"], order: float = 2.0) -> Float[Tensor, ""]:
    """Matrix Renyi entropy of the spectrum in nats: log(sum l^a) / (1 - a), a = `order`.

    Scale: invariant. Range: as `von_neumann_entropy`, which is its limit at order 1 and what order 1 gives.
    Bias: too low, for isotropic rows and order 2 by about log(1 + dim / batch).
    Cost: order 2 needs no eigenvalues, only the Gram matrix of the smaller side; others that side cubed.
    Collapse: equal rows give 0, with a finite gradient.

    >>> z = torch.tensor([[1., 0], [0, 1], [0.5**0.5, 0.5**0.5]])     # shares 1/3 and 2/3
    >>> round(renyi_entropy(z).item(), 6)     # -log(1/9 + 4/9)
    0.587787
    """
    check_rows(z, "the Renyi entropy")
    if order <= 0:
        raise UserError(f"the order of a Renyi entropy must be above 0, it is {order:g}", where="order", do="try 2")
    if order == 1:
        return von_neumann_entropy(z)
    if order == 2:
        scaled, missing = _to_unit_norm(z, least_norm=1e-12)
        return -(_smaller_gram(scaled).square().sum() + missing.square()).log()
    return spectrum(z).pow(order).sum().log() / (1 - order)


@full_precision
def effective_rank(z: Float[Tensor, "batch dim"], least_norm: float = 1e-12) -> Float[Tensor, ""]:
    """How many directions the rows use: exp of the von Neumann entropy, from 1 to min(batch, dim).

    Scale, bias, cost and collapse: as `von_neumann_entropy`; equal rows have rank 1.

    >>> round(effective_rank(torch.eye(4)[[0, 1, 2, 2, 0, 1]]).item(), 6)
    3.0
    """
    return von_neumann_entropy(z, least_norm).exp()


def _to_unit_norm(z: Tensor, least_norm: float) -> tuple[Tensor, Tensor]:
    """The rows over their Frobenius norm, or `least_norm` if it is larger; and the squared norm missing to 1."""
    norm: Tensor = torch.linalg.vector_norm(z)
    divisor = norm.clamp_min(least_norm)
    return z / divisor, 1 - (norm / divisor).square()


def _smaller_gram(z: Tensor) -> Tensor:
    return z.T @ z if z.shape[1] <= len(z) else z @ z.T
