"""Scores that choose an epoch without labels: closed forms, invariance, collapse."""

import numpy as np
import pytest
import torch
from torch import Tensor

from iecl.meters.label_free import SCORES, power_law, rank_me


def draw(seed: int, rows: int, dim: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(rows, dim)))


def falling(exponent: float, rows: int = 400, dim: int = 64) -> Tensor:
    """Rows whose covariance has exactly the eigenvalues j^-exponent, turned at random, around a mean."""
    left = torch.linalg.qr(draw(0, rows, dim) - draw(0, rows, dim).mean(0)).Q
    right = torch.linalg.qr(draw(1, dim, dim)).Q
    return left * torch.arange(1, dim + 1).double() ** (-exponent / 2) @ right + 3


def test_rank_me_of_orthogonal_rows_is_their_number_and_of_equal_rows_one() -> None:
    assert rank_me(torch.eye(7)).item() == pytest.approx(7)
    assert rank_me(torch.ones(7, 5)).item() == pytest.approx(1, abs=1e-3)


def test_rank_me_agrees_with_the_formula_of_its_paper() -> None:
    z = draw(2, 50, 20)
    values = np.linalg.svd(z.numpy(), compute_uv=False)
    shares = values / np.abs(values).sum() + 1e-7
    assert rank_me(z).item() == pytest.approx(np.exp(-(shares * np.log(shares)).sum()), rel=1e-4)


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0])
def test_a_power_law_is_found_again(exponent: float) -> None:
    assert power_law(falling(exponent)).item() == pytest.approx(exponent, abs=1e-3)


def test_equal_rows_follow_no_law() -> None:
    assert power_law(torch.ones(20, 8)).item() == torch.inf


@pytest.mark.parametrize("name", SCORES)
def test_a_score_does_not_depend_on_the_scale_or_the_order_of_the_rows(name: str) -> None:
    z = falling(1.3)
    turned = 7 * z[torch.randperm(len(z), generator=torch.Generator().manual_seed(0))]
    assert SCORES[name](turned).item() == pytest.approx(SCORES[name](z).item(), rel=1e-4)


@pytest.mark.parametrize("name", SCORES)
def test_spread_features_score_higher_than_collapsed_ones(name: str) -> None:
    collapsed = torch.ones(400, 64).double() + 0.01 * falling(3.0)
    assert SCORES[name](falling(1.0) - 3) > SCORES[name](collapsed)
