"""VICReg's variance and covariance: closed forms, loops, invariances, lightly."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from iecl.losses.variance_covariance import covariance_penalty, variance_hinge


def hadamard() -> Tensor:
    """Four columns of the 8×8 Sylvester matrix: mean 0, biased variance 1, uncorrelated."""
    two = torch.tensor([[1.0, 1], [1, -1]], dtype=torch.float64)
    return torch.kron(torch.kron(two, two), two)[:, 1:5]


UNIT = hadamard() * (7 / 8) ** 0.5
"""Unbiased deviation 1."""


def draw(seed: int, rows: int = 6, dim: int = 4) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(rows, dim)))


def total(anchor: Tensor, query: Tensor) -> float:
    """The three terms with the weights of the paper, 25, 25 and 1, and the variance halved as in the authors' code."""
    variance = (variance_hinge(anchor) + variance_hinge(query)) / 2
    return (
        25 * mse_loss(anchor, query) + 25 * variance + covariance_penalty(anchor) + covariance_penalty(query)
    ).item()


@pytest.mark.parametrize(
    ("anchor", "query", "value"),
    [
        (torch.ones(8, 4, dtype=torch.float64), torch.ones(8, 4, dtype=torch.float64), 24.75),  # 25 * 0.99
        (hadamard(), hadamard(), 0.0),
        (UNIT, UNIT, 0.0),
        (UNIT / 2, UNIT / 2, 12.49750025),  # 25 (1 - sqrt(0.2501))
        (UNIT, -UNIT, 87.5),  # 25 * 4 * 7 / 8
        (UNIT[:, :1].repeat(1, 4), UNIT[:, :1].repeat(1, 4), 6.0),  # 2 (dim - 1)
    ],
)
def test_terms_add_up_to_their_closed_form(anchor: Tensor, query: Tensor, value: float) -> None:
    assert total(anchor, query) == pytest.approx(value, abs=1e-8)


def test_terms_agree_with_loops() -> None:
    z = draw(0).numpy()
    hinge = np.mean([max(0.0, 1 - np.sqrt(z[:, i].var(ddof=1) + 1e-4)) for i in range(4)])
    covariance = np.cov(z.T)
    penalty = sum(covariance[i, j] ** 2 for i in range(4) for j in range(4) if i != j) / 4
    assert variance_hinge(draw(0)).item() == pytest.approx(hinge)
    assert covariance_penalty(draw(0)).item() == pytest.approx(penalty)


@pytest.mark.parametrize("term", [variance_hinge, covariance_penalty])
def test_shift_and_order_do_not_matter_but_scale_does(term: object) -> None:
    z = draw(0) / 2
    assert callable(term)
    assert term(z.flip(0) + 3).item() == pytest.approx(term(z).item(), abs=1e-12)
    assert term(1.1 * z).item() != pytest.approx(term(z).item(), rel=0.01)


def test_loss_agrees_with_lightly() -> None:
    pytest.importorskip("lightly", reason="compares with lightly")
    from lightly.loss import VICRegLoss

    anchor, query = draw(0, 32, 16) / 2, draw(1, 32, 16) / 2
    assert total(anchor, query) == pytest.approx(VICRegLoss()(anchor, query).item(), rel=1e-9)


@pytest.mark.filterwarnings("ignore:var")
def test_one_row_has_no_variance() -> None:
    assert variance_hinge(torch.ones(1, 3)).isnan()


@pytest.mark.parametrize("term", [variance_hinge, covariance_penalty])
def test_gradient_is_right_and_finite_at_collapse(term: object) -> None:
    assert torch.autograd.gradcheck(term, draw(0).requires_grad_())
    ones = torch.ones(4, 3, requires_grad=True)
    assert callable(term)
    term(ones).backward()
    assert ones.grad is not None
    assert ones.grad.isfinite().all()


def test_autocast_does_not_shorten_the_covariance() -> None:
    z = draw(0, 64, 8).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = covariance_penalty(z).item()
    assert inside == covariance_penalty(z).item()
    assert inside == pytest.approx(covariance_penalty(z.double()).item(), rel=1e-5)
