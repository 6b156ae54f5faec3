"""The coding rate against closed forms, a slow oracle and its declared bounds."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from iecl.estimators.coding_rate import coding_rate

EYE = torch.eye(4, dtype=torch.float64)


@pytest.mark.parametrize(
    ("rows", "value"),
    [
        (EYE, 2 * math.log(3)),
        (torch.cat([EYE, EYE]), 2 * math.log(3)),
        (EYE[[0, 0, 0, 0]], math.log(9) / 2),
        (torch.zeros_like(EYE), 0.0),
    ],
)
def test_rate_has_its_closed_form(rows: torch.Tensor, value: float) -> None:
    assert coding_rate(rows, epsilon_squared=0.5).item() == pytest.approx(value, abs=1e-9)


def test_default_error_is_a_half_per_row() -> None:
    # Orthonormal rows, epsilon = 1/2: 4/2 log(1 + 1 / 0.25).
    assert coding_rate(EYE).item() == pytest.approx(2 * math.log(5), abs=1e-9)


@pytest.mark.parametrize("epsilon_squared", [0.1, 0.25, 1.0])
@pytest.mark.parametrize(("batch", "dim"), [(3, 7), (7, 3), (5, 5)])
def test_smaller_side_gives_the_determinant_of_the_larger(batch: int, dim: int, epsilon_squared: float) -> None:
    z = np.random.default_rng(0).normal(size=(batch, dim))
    whole = np.eye(dim) + dim / (batch * epsilon_squared) * z.T @ z

    rate = coding_rate(torch.from_numpy(z), epsilon_squared)

    assert rate.item() == pytest.approx(np.log(np.linalg.det(whole)) / 2, rel=1e-9)


@given(seed=st.integers(0, 10_000), batch=st.integers(2, 12), dim=st.integers(1, 12))
@settings(derandomize=True, deadline=None, max_examples=25)
def test_unit_rows_stay_below_the_declared_bound(seed: int, batch: int, dim: int) -> None:
    z = np.random.default_rng(seed).normal(size=(batch, dim))
    unit = torch.from_numpy(z / np.linalg.norm(z, axis=1, keepdims=True))
    side = min(batch, dim)

    assert coding_rate(unit).item() <= side / 2 * math.log(1 + dim / (side * 0.25)) + 1e-9


def test_large_rows_grow_by_the_log_of_their_scale_in_every_dimension() -> None:
    z = torch.from_numpy(np.random.default_rng(0).normal(size=(32, 4)))
    grown = coding_rate(1e6 * z) - coding_rate(1e5 * z)
    assert grown.item() == pytest.approx(4 * math.log(10), rel=1e-6)
