"""Entropy of embeddings as if they were Gaussian: the log-determinant of their covariance."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from iecl.errors import UserError
from iecl.estimators.precision import full_precision
from iecl.estimators.rows import check_rows


@full_precision
def covariance(
    z: Float[Tensor, "batch dim"], shrinkage: float = 0.1, floor: float = 1e-6, unbiased: bool = True
) -> Float[Tensor, "dim dim"]:
    """Covariance of the rows, pulled towards a multiple of the identity so that it can be inverted.

    (1 - a) S + (a tr S / dim + floor) I, a = `shrinkage`. The shrinkage keeps the mean variance and carries rank loss;
    the floor matters only when the rows coincide.

    >>> covariance(torch.tensor([[0., 0], [2, 2]]), shrinkage=0.5, floor=0)
    tensor([[2., 1.],
            [1., 2.]])

    Raises:
        UserError: for fewer than 2 rows, and without shrinkage for fewer rows than columns + 1.
    """
    check_rows(z, "a covariance")
    centered = z - z.mean(0)
    return shrunk(centered.T @ centered / (len(z) - unbiased), len(z), shrinkage, floor)


def shrunk(plain: Float[Tensor, "dim dim"], rows: int, shrinkage: float, floor: float) -> Float[Tensor, "dim dim"]:
    """The covariance `plain` of so many rows, pulled towards a multiple of the identity as `covariance` says."""
    dim = len(plain)
    if shrinkage == 0 and rows <= dim:
        raise UserError(
            f"{rows} rows leave the covariance of {dim} columns singular",
            where="shrinkage = 0",
            do="try shrinkage 0.1",
        )
    identity = torch.eye(dim, dtype=plain.dtype, device=plain.device)
    return (1 - shrinkage) * plain + (shrinkage * plain.trace() / dim + floor) * identity


@full_precision
def gaussian_entropy(covariance: Float[Tensor, "dim dim"]) -> Float[Tensor, ""]:
    """Entropy of a Gaussian in nats: 1/2 log det S + dim/2 log(2 pi e).

    >>> round(gaussian_entropy(torch.diag(torch.tensor([1., 4.]))).item(), 6)
    3.531024
    """
    constant = len(covariance) / 2 * math.log(2 * math.pi * math.e)
    log_det: Tensor = torch.linalg.slogdet(covariance).logabsdet
    return log_det / 2 + constant


@full_precision
def log_det_entropy(
    z: Float[Tensor, "batch dim"], shrinkage: float = 0.1, floor: float = 1e-6, unbiased: bool = True
) -> Float[Tensor, ""]:
    """Entropy of the Gaussian with the rows' mean and shrunk covariance, in nats.

    Scale: grows by dim log c for c z (exactly with floor = 0), without bound: give it normalized rows.
    Bias: without shrinkage half of `log_det_bias(batch, dim)`, which is large near batch = dim; compare only values of
    the same batch, width and shrinkage.
    Cost: batch dim^2 + dim^3.
    Collapse: finite through the floor. Without shrinkage the gradient grows like 1 / (smallest std).

    >>> z = torch.tensor([[1., 1], [1, -1], [-1, 1], [-1, -1]])     # the identity is its biased covariance
    >>> round(log_det_entropy(z, shrinkage=0, floor=0, unbiased=False).item(), 6)     # log(2 pi e)
    2.837877
    """
    return gaussian_entropy(covariance(z, shrinkage, floor, unbiased))


def log_det_bias(rows: int, columns: int) -> float:
    """How far log det of an unbiased covariance of Gaussian rows lies from the truth, on average.

    columns log(2 / n) + sum_{i < columns} digamma((n - i) / 2) with n = rows - 1; the entropy is off by half of it.

    >>> round(log_det_bias(256, 128), 6)
    -39.819495
    """
    degrees = rows - 1
    if columns > degrees:
        raise UserError(f"{rows} rows leave the covariance of {columns} columns singular", where="log_det_bias")
    halves = (degrees - torch.arange(columns, dtype=torch.float64)) / 2
    return columns * math.log(2 / degrees) + float(torch.digamma(halves).sum())
