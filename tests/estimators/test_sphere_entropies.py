"""Entropies on the sphere against closed forms, loops, the Bessel function and the uniform law."""

import math

import mpmath
import numpy as np
import pytest
import torch

from iecl.estimators.sphere import log_vmf_constant, uniformity, vmf_entropy

TRIANGLE = torch.tensor([[1.0, 0.0], [-0.5, math.sqrt(0.75)], [-0.5, -math.sqrt(0.75)]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("rows", "value"),
    [
        (torch.ones(5, 3), 0.0),
        (torch.eye(4), -4.0),
        (torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), -8.0),
        (TRIANGLE, -6.0),
    ],
)
def test_uniformity_has_its_closed_form(rows: torch.Tensor, value: float) -> None:
    assert uniformity(rows.double()).item() == pytest.approx(value, abs=1e-9)


def test_uniformity_of_normal_rows_is_near_that_of_orthogonal_ones() -> None:
    rows = torch.randn(1024, 128, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert uniformity(rows).item() == pytest.approx(-3.93577, abs=1e-5)


@pytest.mark.parametrize("sharpness", [0.5, 2.0, 3.0])
def test_uniformity_agrees_with_a_loop_over_pairs(sharpness: float) -> None:
    z = np.random.default_rng(0).normal(size=(6, 3))
    unit = z / np.linalg.norm(z, axis=1, keepdims=True)
    pairs = [math.exp(-sharpness * ((unit[i] - unit[j]) ** 2).sum()) for i in range(6) for j in range(i)]
    assert uniformity(torch.from_numpy(z), sharpness).item() == pytest.approx(math.log(np.mean(pairs)))


@pytest.mark.parametrize(("rows", "value"), [(torch.eye(3), 5.22839375), (torch.ones(3, 3), 0.22839375)])
def test_kernel_entropy_has_its_closed_form(rows: torch.Tensor, value: float) -> None:
    assert vmf_entropy(rows.double(), concentration=5.0).item() == pytest.approx(value, abs=5e-9)


def test_kernel_entropy_agrees_with_a_loop_that_leaves_each_row_out() -> None:
    z = np.random.default_rng(0).normal(size=(5, 3))
    unit = z / np.linalg.norm(z, axis=1, keepdims=True)
    constant = 7 / (4 * math.pi * math.sinh(7))
    density = [constant * np.mean([math.exp(7 * unit[i] @ unit[j]) for j in range(5) if j != i]) for i in range(5)]
    assert vmf_entropy(torch.from_numpy(z), concentration=7.0).item() == pytest.approx(-np.mean(np.log(density)))


def test_kernel_entropy_of_the_uniform_law_is_the_log_area() -> None:
    z = torch.from_numpy(np.random.default_rng(0).normal(size=(1024, 3)))
    assert vmf_entropy(z).item() == pytest.approx(math.log(4 * math.pi), abs=0.01)


@pytest.mark.parametrize("concentration", [0.1, 5.0, 100.0, 1000.0])
@pytest.mark.parametrize("dim", [2, 3, 128, 2048])
def test_constant_agrees_with_the_bessel_function(dim: int, concentration: float) -> None:
    order = dim / 2 - 1
    log_bessel = float(mpmath.log(mpmath.besseli(order, concentration)))
    expected = order * math.log(concentration) - dim / 2 * math.log(2 * math.pi) - log_bessel
    assert log_vmf_constant(dim, concentration) == pytest.approx(expected, rel=1e-9)
