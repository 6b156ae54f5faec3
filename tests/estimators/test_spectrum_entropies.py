"""Entropies of the spectrum against closed forms and the singular values."""

import math

import numpy as np
import pytest
import torch

from iecl.errors import UserError
from iecl.estimators.spectrum import effective_rank, renyi_entropy, spectrum, von_neumann_entropy

EYE = torch.eye(4, dtype=torch.float64)
# Rows whose Gram matrix is [[1, .5], [.5, 1]]: shares 3/4 and 1/4.
PAIR = torch.tensor([[1.0, 0.0], [0.5, math.sqrt(0.75)]], dtype=torch.float64)
# Shares 2/3 and 1/3.
FAN = torch.tensor([[1.0, 0.0], [0.0, 1.0], [math.sqrt(0.5), math.sqrt(0.5)]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("rows", "von_neumann", "renyi"),
    [
        (EYE, math.log(4), math.log(4)),
        (EYE[[0, 0, 0]], 0.0, 0.0),
        (PAIR, 0.56233514, 0.47000363),
        (FAN, 0.63651417, 0.58778666),
        (torch.zeros_like(EYE), 0.0, 0.0),
    ],
)
def test_entropies_have_their_closed_forms(rows: torch.Tensor, von_neumann: float, renyi: float) -> None:
    assert von_neumann_entropy(rows).item() == pytest.approx(von_neumann, abs=5e-9)
    assert renyi_entropy(rows).item() == pytest.approx(renyi, abs=5e-9)


def test_effective_rank_of_a_skewed_pair() -> None:
    assert effective_rank(PAIR).item() == pytest.approx(1.75476535, abs=5e-9)


@pytest.mark.parametrize("order", [0.5, 1.5, 2.0, 3.0])
@pytest.mark.parametrize(("batch", "dim"), [(3, 7), (7, 3)])
def test_renyi_agrees_with_the_singular_values(batch: int, dim: int, order: float) -> None:
    z = np.random.default_rng(0).normal(size=(batch, dim))
    shares = np.linalg.svd(z, compute_uv=False) ** 2
    shares /= shares.sum()

    entropy = renyi_entropy(torch.from_numpy(z), order)

    # Order 1/2 feels the smallest share that is allowed, 1e-12, as its root, 1e-6.
    assert entropy.item() == pytest.approx(np.log((shares**order).sum()) / (1 - order), abs=2e-6)


@pytest.mark.parametrize("nearby", [1 - 1e-5, 1.0, 1 + 1e-5])
def test_renyi_goes_over_into_von_neumann_at_order_one(nearby: float) -> None:
    z = torch.from_numpy(np.random.default_rng(0).normal(size=(9, 4)))
    assert renyi_entropy(z, nearby).item() == pytest.approx(von_neumann_entropy(z).item(), abs=1e-4)


@pytest.mark.parametrize("order", [0.0, -1.0])
def test_order_must_be_positive(order: float) -> None:
    with pytest.raises(UserError, match=r"order of a Renyi entropy must be above 0, .* \(order\); try 2"):
        renyi_entropy(EYE, order)


def test_rows_below_the_least_norm_count_as_partly_missing() -> None:
    # A squared norm of 1/4 in one direction leaves 3/4 for the direction that is missing.
    shares = spectrum(torch.tensor([[0.5, 0.0], [0.0, 0.0]], dtype=torch.float64), least_norm=1.0)
    assert sorted(shares.tolist()) == pytest.approx([0, 0.25, 0.75], abs=1e-9)


@pytest.mark.parametrize("scale", [1e-9, 1e9])
def test_scale_does_not_matter_in_single_precision(scale: float) -> None:
    assert effective_rank(scale * PAIR.float()).item() == pytest.approx(1.75476535, rel=1e-5)


def test_bias_for_isotropic_rows_is_the_declared_one() -> None:
    z = torch.from_numpy(np.random.default_rng(0).normal(size=(512, 64)))
    # Shares of a sample spread around 1/64 with a relative variance of 64/512.
    assert math.log(64) - von_neumann_entropy(z).item() == pytest.approx(63 / 1024, rel=0.1)
    assert math.log(64) - renyi_entropy(z).item() == pytest.approx(math.log(1 + 64 / 512), rel=0.1)


def test_broken_rows_read_as_nan_instead_of_raising() -> None:
    assert effective_rank(torch.full((4, 3), math.nan)).isnan()
