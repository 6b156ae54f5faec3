"""Regularizers that keep a layer from destroying directions of its input.

All read a kernel as the matrix (out, in * height * width). For convolutions that is not the whole operator: its norm
lies between the matrix's and kernel size times that. Before a batch norm in training they steer the weights'
directions; the overall scale is divided out again.
"""

import math
from collections.abc import Callable, Iterable

import torch
from jaxtyping import Float
from torch import Tensor

from iecl.errors import UserError
from iecl.estimators.precision import full_precision

Weights = Iterable[Float[Tensor, "out ..."]]


def orthogonality(weights: Weights) -> Float[Tensor, ""]:
    """Mean over layers of |W W^T - I|_F^2 / (smaller side), with the Gram matrix of the smaller side.

    0 when the rows (of a wide matrix) or the columns (of a tall one) are orthonormal. Quartic in the scale of W.
    Cost per layer: out in min(out, in).

    >>> orthogonality([torch.eye(3), 2 * torch.eye(3, 5)]).item()     # (0 + (4 - 1)^2) / 2
    4.5
    """
    return _mean_over_layers(_distance_to_orthonormal, weights)


def sigma_min_hinge(weights: Weights, floor: float) -> Float[Tensor, ""]:
    """Mean over layers of the mean of max(0, `floor` - s)^2 over the singular values s of W.

    A lower bound on what a layer may destroy: large singular values are left alone, unlike in spectral normalization.
    Cost per layer: out in min(out, in), by a singular value decomposition.

    >>> sigma_min_hinge([torch.diag(torch.tensor([0.5, 3.0]))], floor=1.0).item()     # (0.5^2 + 0) / 2
    0.125
    """
    return _mean_over_layers(lambda weight: _hinge(weight, floor), weights)


def restricted_isometry(weights: Weights) -> Float[Tensor, ""]:
    """Mean over layers of |W W^T - I|_2, with the Gram matrix of the smaller side: the largest |s^2 - 1|.

    s runs over the singular values. SRIP (Bansal et al. 2018): the one farthest from 1 is pulled there, the others are
    left alone. Quadratic in the scale of W.
    Cost per layer: out in min(out, in), and the smaller side cubed, by the eigenvalues of the Gram matrix.

    >>> restricted_isometry([torch.diag(torch.tensor([0.5, 2.0]))]).item()     # 2^2 - 1 beats 1 - 0.5^2
    3.0
    """
    return _mean_over_layers(_farthest_from_isometry, weights)


@full_precision
def _farthest_from_isometry(weight: Tensor) -> Tensor:
    if not weight.isfinite().all():
        return weight.sum() * math.nan
    matrix = weight.flatten(1)
    gram = matrix @ matrix.T if len(matrix) <= matrix.shape[1] else matrix.T @ matrix
    distances: Tensor = (torch.linalg.eigvalsh(gram) - 1).abs()
    return distances.max()


@full_precision
def _distance_to_orthonormal(weight: Tensor) -> Tensor:
    matrix = weight.flatten(1)
    gram = matrix @ matrix.T if len(matrix) <= matrix.shape[1] else matrix.T @ matrix
    identity = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    return (gram - identity).square().sum() / len(gram)


@full_precision
def _hinge(weight: Tensor, floor: float) -> Tensor:
    if not weight.isfinite().all():
        return weight.sum() * math.nan  # the decomposition would raise where every other loss just becomes NaN
    singular_values: Tensor = torch.linalg.svdvals(weight.flatten(1))
    return (floor - singular_values).clamp_min(0).square().mean()


def _mean_over_layers(penalty: Callable[[Tensor], Tensor], weights: Iterable[Tensor]) -> Tensor:
    penalties = [penalty(weight) for weight in weights]
    if not penalties:
        raise UserError("there is no weight to regularize", where="the list of layers", do="switch the regularizer off")
    return torch.stack(penalties).mean()
