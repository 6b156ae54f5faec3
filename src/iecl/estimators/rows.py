"""What the estimators ask of their input."""

from torch import Tensor

from iecl.errors import UserError


def check_rows(z: Tensor, estimator: str, least: int = 2) -> None:
    """Raise a `UserError` unless `z` is a matrix of at least `least` rows.

    >>> import torch
    >>> check_rows(torch.ones(1, 8), "the coding rate")
    Traceback (most recent call last):
    ...
    iecl.errors.UserError: the coding rate needs at least 2 rows (embeddings of shape (1, 8)); use a larger batch
    """
    where = f"embeddings of shape {tuple(z.shape)}"
    if z.ndim != 2:
        raise UserError(f"{estimator} needs a matrix, one row per image", where=where, do="flatten all but the first")
    if len(z) < least:
        raise UserError(f"{estimator} needs at least {least} rows", where=where, do="use a larger batch")


def check_pair(p: Tensor, q: Tensor, estimator: str, least: int = 2) -> None:
    """Raise a `UserError` unless `p` and `q` are matrices of the same width with at least `least` rows each."""
    check_rows(p, estimator, least)
    check_rows(q, estimator, least)
    if p.shape[1] != q.shape[1]:
        raise UserError(
            f"{estimator} needs two sets of the same width",
            where=f"embeddings of shapes {tuple(p.shape)} and {tuple(q.shape)}",
            do="give both the same projector",
        )
