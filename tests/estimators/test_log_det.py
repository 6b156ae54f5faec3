"""Determinants of tied maps and of matrices known by their products: closed forms, dense oracles, stated errors."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from iecl.errors import UserError
from iecl.estimators.log_det import dual_log_det, lanczos, random_signs, stochastic_log_det


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def positive(seed: int, batch: int, dim: int) -> Tensor:
    half = draw(seed, batch, dim, dim) / dim**0.5
    return torch.eye(dim, dtype=torch.float64) + half @ half.mT


@settings(derandomize=True, deadline=None, max_examples=25)
@given(seed=st.integers(0, 10**6), units=st.integers(1, 9), width=st.integers(1, 9))
def test_the_dual_determinant_is_that_of_the_whole_matrix(seed: int, units: int, width: int) -> None:
    weight, slopes = draw(seed, units, width), draw(seed + 1, 3, units).square()
    whole = torch.eye(width, dtype=torch.float64) + torch.einsum("nu,ua,ub->nab", slopes, weight, weight)
    assert torch.allclose(dual_log_det(weight, slopes), torch.linalg.slogdet(whole).logabsdet, atol=1e-10)


@pytest.mark.parametrize("units", [3, 6])
def test_the_dual_determinant_has_the_right_gradient_also_where_a_slope_is_zero(units: int) -> None:
    weight, slopes = draw(0, units, 4).requires_grad_(), draw(1, 2, units).square()
    slopes[0, 1] = 0
    assert torch.autograd.gradcheck(dual_log_det, (weight, slopes.requires_grad_()))


def test_with_as_many_steps_as_dimensions_a_probe_reads_the_logarithm_exactly() -> None:
    matrix, start = positive(0, 2, 7), draw(1, 2, 7)
    values, vectors = torch.linalg.eigh(matrix)
    expected = torch.einsum("nd,ndk,nk,nek,ne->n", start, vectors, values.log(), vectors, start)
    seen = lanczos(lambda v: torch.einsum("nde,ne->nd", matrix, v), start, steps=7)
    assert torch.allclose(seen.quadrature(), expected, rtol=1e-9)


def test_the_quadrature_comes_down_to_the_truth_from_above() -> None:
    matrix, start = positive(0, 1, 30), draw(1, 1, 30)
    readings = [lanczos(lambda v: v @ matrix[0], start, steps).quadrature().item() for steps in (2, 3, 5, 30)]
    assert readings == sorted(readings, reverse=True)
    assert readings[0] > readings[-1] + 1e-6


def test_lanczos_solves_the_linear_system() -> None:
    matrix, start = positive(3, 2, 9), draw(4, 2, 9)
    seen = lanczos(lambda v: torch.einsum("nde,ne->nd", matrix, v), start, steps=9)
    assert torch.allclose(seen.solution(), torch.linalg.solve(matrix, start[..., None])[..., 0], atol=1e-9)


def test_a_start_that_sees_few_directions_ends_early_and_stays_right() -> None:
    # An eigenvector sees one eigenvalue only, here 4; the other matrix of the batch goes on.
    matrix = torch.stack([torch.diag(torch.tensor([4.0, 9, 1])), positive(0, 1, 3)[0].float()]).double()
    start = torch.tensor([[2.0, 0, 0], [1, 1, 1]], dtype=torch.float64)
    seen = lanczos(lambda v: torch.einsum("nde,ne->nd", matrix, v), start, steps=3)
    assert seen.quadrature()[0].item() == pytest.approx(4 * math.log(4))
    assert torch.allclose(seen.solution(), torch.linalg.solve(matrix, start[..., None])[..., 0], atol=1e-9)


def test_the_estimate_lies_within_its_stated_error() -> None:
    # 40 matrices, one estimate each: the deviations in units of the stated error have a root mean square of about 1.
    matrix = positive(0, 40, 60)
    found = stochastic_log_det(lambda v: torch.einsum("nde,ne->nd", matrix, v), matrix[:, 0], probes=16, steps=20)
    off = (found.value - torch.linalg.slogdet(matrix).logabsdet) / found.standard_error
    assert 0.7 < off.square().mean().sqrt() < 1.4
    assert found.truncation.max() < 1e-6


def test_probes_are_signs_that_a_seed_decides_and_that_agree_by_chance_only() -> None:
    like = torch.zeros(4, 1000, dtype=torch.float64)
    first, second = random_signs(0, 0, like), random_signs(0, 1, like)
    assert torch.equal(first.abs(), torch.ones_like(like))
    assert torch.equal(first, random_signs(0, 0, like))
    assert (first * second).mean().abs() < 0.06  # four deviations of a mean of 4000 signs
    assert (first[0] * first[1]).mean().abs() < 0.13


def test_too_little_effort_is_refused() -> None:
    with pytest.raises(UserError, match=r"at least 1 probe and 2 steps, not 0 and 5 \(probes, steps\); try 4 and 20"):
        stochastic_log_det(lambda v: v, torch.zeros(1, 3), probes=0, steps=5)
