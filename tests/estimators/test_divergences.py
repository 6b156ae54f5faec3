"""Divergences against closed forms, loops and simulation; direction and gradients of the right and the printed KL."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.linalg import hadamard
from torch import Tensor

from iecl.errors import UserError
from iecl.estimators.discrepancy import mmd_squared
from iecl.estimators.divergence import (
    gaussian_diagonal_kl,
    gaussian_full_kl,
    gaussian_kl,
    isotropic_kl,
    printed_isotropic_kl,
    printed_kl,
    softmax_kl,
)


def double(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


MEAN_P, MEAN_Q = double([1, -1]), double([0, 0.5])
SPREAD_P, SPREAD_Q = double([[2, 0.5], [0.5, 1]]), double([[1, 0.2], [0.2, 3]])
ORIGIN, UNIT = torch.zeros(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
# 8 rows of zero mean and unbiased covariance I.
WHITE = torch.from_numpy(hadamard(8)[:, 1:3] * math.sqrt(7 / 8))


def rows_with(mean: Tensor, spread: Tensor) -> Tensor:
    """Rows whose mean and unbiased covariance are exactly these."""
    return mean + WHITE @ torch.linalg.cholesky(spread).T


@pytest.mark.parametrize(
    ("moments", "value"),
    [
        ((ORIGIN, UNIT, ORIGIN + 1, UNIT), 1.0),
        ((ORIGIN[:1], UNIT[:1, :1], ORIGIN[:1], 4 * UNIT[:1, :1]), 0.31814718),
        ((ORIGIN[:1], 4 * UNIT[:1, :1], ORIGIN[:1], UNIT[:1, :1]), 0.80685282),
        ((MEAN_P, SPREAD_P, MEAN_Q, SPREAD_Q), 1.39961106),
        ((MEAN_Q, SPREAD_Q, MEAN_P, SPREAD_P), 2.68007040),
        ((MEAN_P, SPREAD_P.diag().diag(), MEAN_Q, SPREAD_Q.diag().diag()), 1.24439922),
        ((MEAN_P, SPREAD_P, ORIGIN, UNIT), 1.22019211),
    ],
)
def test_gaussian_kl_of_known_moments(moments: tuple[Tensor, Tensor, Tensor, Tensor], value: float) -> None:
    assert gaussian_kl(*moments).item() == pytest.approx(value, abs=5e-9)


def test_gaussian_kl_of_sets_is_that_of_their_moments() -> None:
    p, q = rows_with(MEAN_P, SPREAD_P), rows_with(MEAN_Q, SPREAD_Q)
    assert gaussian_full_kl(p, q, shrinkage=0, floor=0).item() == pytest.approx(1.39961106, abs=5e-9)
    assert gaussian_full_kl(q, p, shrinkage=0, floor=0).item() == pytest.approx(2.68007040, abs=5e-9)
    assert gaussian_diagonal_kl(p, q, floor=0).item() == pytest.approx(1.24439922, abs=5e-9)


@pytest.mark.parametrize(("unbiased", "value"), [(True, 1.06814718), (False, 1.31814718)])
def test_diagonal_kl_of_small_grids(unbiased: bool, value: float) -> None:
    p, q = double([[0, 0], [0, 2], [2, 0], [2, 2]]), double([[1, 1], [1, 5], [3, 1], [3, 5]])
    assert gaussian_diagonal_kl(p, q, floor=0, unbiased=unbiased).item() == pytest.approx(value, abs=5e-9)


def test_diagonal_kl_has_the_direction_p_given_q() -> None:
    narrow, wide = rows_with(ORIGIN, UNIT)[:, :1], rows_with(ORIGIN, 4 * UNIT)[:, :1]
    assert gaussian_diagonal_kl(narrow, wide, floor=0).item() == pytest.approx(0.31814718, abs=5e-9)
    assert gaussian_diagonal_kl(p=wide, q=narrow, floor=0).item() == pytest.approx(0.80685282, abs=5e-9)


@pytest.mark.parametrize(
    ("estimator", "rows", "dim", "bias"),
    [(gaussian_diagonal_kl, 256, 128, 1.02), (gaussian_full_kl, 512, 16, 16 * 19 / 1024)],
)
def test_gaussian_kl_of_equal_laws_shows_the_declared_bias(
    estimator: Callable[..., Tensor], rows: int, dim: int, bias: float
) -> None:
    rng = np.random.default_rng(0)
    options = {"shrinkage": 0} if estimator is gaussian_full_kl else {}
    draws = [estimator(*torch.from_numpy(rng.normal(size=(2, rows, dim))), **options).item() for _ in range(12)]
    assert np.mean(draws) == pytest.approx(bias, rel=0.12)  # a mean of 12 scatters by about 4 %


def test_isotropic_kl_has_the_sign_and_the_trace_that_the_printed_one_lacks() -> None:
    p, center = rows_with(MEAN_P, SPREAD_P), double([0.5, 0])
    right = isotropic_kl(p, center, 2.0, shrinkage=0, floor=0)
    printed = printed_isotropic_kl(p, center, 2.0, shrinkage=0, floor=0)
    assert right.item() == pytest.approx(gaussian_kl(MEAN_P, SPREAD_P, center, 2 * UNIT).item(), abs=1e-9)
    assert right.item() == pytest.approx(0.475839, abs=5e-7)
    assert printed.item() == pytest.approx(5.961209, abs=5e-7)


def test_printed_kl_of_equal_laws_is_not_zero() -> None:
    p = rows_with(MEAN_P, 2 * UNIT)
    assert isotropic_kl(p, MEAN_P, 2.0, shrinkage=0, floor=0).item() == pytest.approx(0, abs=1e-9)
    assert printed_kl(p, p, shrinkage=0, floor=0).item() == pytest.approx(6.062048, abs=5e-7)


@pytest.mark.parametrize(("variance", "right", "printed"), [(0.5, -1.0, 2.0), (1.0, 0.0, 1.0), (2.0, 0.5, 0.5)])
def test_printed_kl_always_pushes_the_variance_down(variance: float, right: float, printed: float) -> None:
    slopes = []
    for estimator in (isotropic_kl, printed_isotropic_kl):
        spread = double(variance).requires_grad_()
        value = estimator(spread.sqrt() * WHITE, shrinkage=0, floor=0)
        slopes.append(torch.autograd.grad(value, spread)[0].item())
    assert slopes == pytest.approx([right, printed], abs=1e-9)


@pytest.mark.parametrize(("estimator", "deviation"), [(isotropic_kl, 1.0), (printed_isotropic_kl, 0.0)])
def test_descending_the_printed_kl_collapses_and_the_right_one_does_not(
    estimator: Callable[..., Tensor], deviation: float
) -> None:
    log_scale = double(math.log(2)).requires_grad_()
    for _ in range(50):
        (slope,) = torch.autograd.grad(estimator(log_scale.exp() * WHITE), log_scale)
        log_scale = (log_scale - 0.1 * slope).detach().requires_grad_()
    assert log_scale.exp().item() == pytest.approx(deviation, abs=0.01)


@pytest.mark.parametrize(
    ("p", "q", "temperature", "value"),
    [
        ([[1, 2, 3], [0, 0, 0]], [[1, 1, 1], [3, 0, 1]], 1.0, 0.50205855),
        ([[1, 1, 1], [3, 0, 1]], [[1, 2, 3], [0, 0, 0]], 1.0, 0.44166967),
        ([[1, 2, 3], [0, 0, 0]], [[1, 1, 1], [3, 0, 1]], 4.0, 0.56323667),
        ([[30, 0, 0]], [[0, 0, 0]], 1.0, math.log(3)),
    ],
)
def test_softmax_kl_has_its_known_value(
    p: list[list[float]], q: list[list[float]], temperature: float, value: float
) -> None:
    assert softmax_kl(double(p), double(q), temperature).item() == pytest.approx(value, abs=5e-9)


def test_softmax_kl_refuses_rows_without_a_partner() -> None:
    with pytest.raises(UserError, match=r"compares row with row \(3 and 2 rows\); pair the rows"):
        softmax_kl(torch.zeros(3, 4), torch.zeros(2, 4))


STAIRS = torch.arange(4, dtype=torch.float64)[:, None]


@pytest.mark.parametrize(("unbiased", "value"), [(False, 0.03350052), (True, -0.29138519)])
def test_mmd_of_shifted_stairs(unbiased: bool, value: float) -> None:
    distance = mmd_squared(STAIRS, STAIRS + 0.5, bandwidth_squared=1.0, unbiased=unbiased)
    assert distance.item() == pytest.approx(value, abs=5e-9)


def test_mmd_of_two_points() -> None:
    assert mmd_squared(STAIRS[:1], STAIRS[1:2], bandwidth_squared=0.5).item() == pytest.approx(2 - 2 / math.e, abs=1e-9)


@pytest.mark.parametrize("unbiased", [False, True])
def test_mmd_agrees_with_a_loop_and_the_median_of_all_pairs(unbiased: bool) -> None:
    rng = np.random.default_rng(0)
    p, q = rng.normal(size=(4, 3)), rng.normal(size=(3, 3))  # 21 pairs: one in the middle
    pooled = [*p, *q]
    spread = np.median([((a - b) ** 2).sum() for i, a in enumerate(pooled) for b in pooled[:i]])

    def mean_kernel(left: np.ndarray, right: np.ndarray, is_same: bool) -> float:
        kept = [
            (a, b) for i, a in enumerate(left) for j, b in enumerate(right) if not (is_same and unbiased and i == j)
        ]
        return float(np.mean([math.exp(-((a - b) ** 2).sum() / (2 * spread)) for a, b in kept]))

    expected = mean_kernel(p, p, True) + mean_kernel(q, q, True) - 2 * mean_kernel(p, q, False)
    assert mmd_squared(torch.from_numpy(p), torch.from_numpy(q), unbiased=unbiased).item() == pytest.approx(expected)


def test_median_bandwidth_carries_no_gradient() -> None:
    rng = np.random.default_rng(0)
    # Most pairs lie within p, so that the median distance would move with p.
    p, q = torch.from_numpy(rng.normal(size=(8, 2))).requires_grad_(), torch.from_numpy(rng.normal(size=(2, 2)))
    pooled = torch.cat([p, q]).detach()
    bandwidth = torch.pdist(pooled).square().median().item()

    (through_median,) = torch.autograd.grad(mmd_squared(p, q), p)
    (through_number,) = torch.autograd.grad(mmd_squared(p, q, bandwidth), p)

    assert torch.allclose(through_median, through_number, rtol=1e-9, atol=0)


def test_sets_of_different_width_are_refused() -> None:
    with pytest.raises(UserError, match=r"diagonal KL .* same width \(embeddings of shapes \(4, 3\) and \(4, 1\)\)"):
        gaussian_diagonal_kl(torch.ones(4, 3), torch.ones(4, 1))
