"""The log-determinant entropy: closed forms, shrinkage, and its bias by simulation."""

import math

import numpy as np
import pytest
import torch
from scipy.linalg import hadamard
from scipy.stats import multivariate_normal

from iecl.errors import UserError
from iecl.estimators.gaussian import covariance, gaussian_entropy, log_det_bias, log_det_entropy

# Zero mean, uncorrelated, biased variance 1.
WHITE = torch.from_numpy(hadamard(8)[:, 1:5].astype(np.float64))
SKEWED = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("matrix", "value"),
    [
        (torch.eye(1), 1.41893853),
        (torch.eye(4), 5.67575413),
        (torch.eye(128), 181.62413225),
        (torch.diag(torch.tensor([1.0, 4.0])), 3.53102425),
        (SKEWED, 3.11768496),
        (0.9 * SKEWED + 0.1 * 1.5 * torch.eye(2), 3.14411671),
    ],
)
def test_entropy_of_a_known_covariance(matrix: torch.Tensor, value: float) -> None:
    assert gaussian_entropy(matrix.double()).item() == pytest.approx(value, abs=5e-9)  # the truth has 8 decimals


def test_entropy_agrees_with_scipy() -> None:
    assert gaussian_entropy(SKEWED).item() == pytest.approx(multivariate_normal([0, 0], SKEWED).entropy(), abs=1e-9)


@pytest.mark.parametrize(("unbiased", "variance"), [(False, 1.0), (True, 8 / 7)])
def test_entropy_of_white_rows(unbiased: bool, variance: float) -> None:
    entropy = log_det_entropy(WHITE, shrinkage=0, floor=0, unbiased=unbiased)
    assert entropy.item() == pytest.approx(2 * math.log(2 * math.pi * math.e * variance), abs=1e-9)


def test_collapsed_rows_have_the_entropy_of_the_floor() -> None:
    # 4/2 log(1e-6) + 4/2 log(2 pi e)
    entropy = log_det_entropy(torch.ones(8, 4, dtype=torch.float64), floor=1e-6)
    assert entropy.item() == pytest.approx(-21.95526698, abs=5e-9)


def test_doubling_adds_log_two_per_dimension() -> None:
    gain = log_det_entropy(2 * WHITE, floor=0) - log_det_entropy(WHITE, floor=0)
    assert gain.item() == pytest.approx(4 * math.log(2), abs=1e-9)


def test_shrinkage_keeps_the_mean_variance() -> None:
    rows = torch.from_numpy(np.random.default_rng(0).normal(size=(6, 9)))
    traces = [covariance(rows, shrinkage=share, floor=0).trace().item() for share in (0.1, 1.0)]
    assert traces == pytest.approx([np.trace(np.cov(rows.T))] * 2, abs=1e-9)


def test_shrunk_entropy_is_finite_with_fewer_rows_than_columns() -> None:
    rows = torch.from_numpy(np.random.default_rng(0).normal(size=(4, 9))).requires_grad_()
    shrunk = 0.9 * np.cov(rows.detach().T) + 0.1 * np.trace(np.cov(rows.detach().T)) / 9 * np.eye(9)

    entropy = log_det_entropy(rows, floor=0)
    (gradient,) = torch.autograd.grad(entropy, rows)

    assert entropy.item() == pytest.approx(multivariate_normal(np.zeros(9), shrunk).entropy(), abs=1e-9)
    assert gradient.isfinite().all()


def test_singular_covariance_without_shrinkage_says_what_to_do() -> None:
    with pytest.raises(UserError, match=r"4 rows .* 9 columns singular \(shrinkage = 0\); try shrinkage 0.1"):
        covariance(torch.ones(4, 9), shrinkage=0)


@pytest.mark.parametrize("smallest", [1e-1, 1e-3, 1e-5])
def test_shrinkage_bounds_the_gradient_where_a_direction_dies(smallest: float) -> None:
    rows = torch.from_numpy(np.random.default_rng(0).normal(size=(64, 4)))
    rows[:, 0] *= smallest

    norms = {}
    for share in (0.0, 0.1):
        leaf = rows.clone().requires_grad_()
        norms[share] = torch.autograd.grad(log_det_entropy(leaf, share, floor=0), leaf)[0].norm().item()

    assert norms[0.1] < 1 < norms[0.0]


@pytest.mark.parametrize(
    ("rows", "columns", "bias"),
    [
        (256, 32, -2.164533),
        (256, 64, -8.947272),
        (256, 128, -39.819495),
        (512, 128, -17.711960),
        (1024, 128, -8.431236),
        (4096, 128, -2.037542),
    ],
)
def test_bias_has_its_known_value(rows: int, columns: int, bias: float) -> None:
    assert log_det_bias(rows, columns) == pytest.approx(bias, abs=1e-6)


def test_bias_is_what_simulation_shows() -> None:
    draws = torch.from_numpy(np.random.default_rng(0).normal(size=(400, 24, 8)))
    truth = gaussian_entropy(torch.eye(8, dtype=torch.float64)).item()

    mean = np.mean([log_det_entropy(rows, shrinkage=0, floor=0).item() for rows in draws])

    # One draw deviates by about 0.5, the mean of 400 by 0.025; the bias is -0.93.
    assert mean - truth == pytest.approx(log_det_bias(24, 8) / 2, abs=0.1)


def test_bias_of_a_singular_covariance_is_refused() -> None:
    with pytest.raises(UserError, match="8 rows leave the covariance of 8 columns singular"):
        log_det_bias(8, 8)
