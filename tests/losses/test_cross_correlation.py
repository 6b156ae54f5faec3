"""Barlow Twins' loss: closed forms, loops, invariances, lightly."""

import numpy as np
import pytest
import torch
from torch import Tensor

from iecl.losses.cross_correlation import barlow_twins, cross_correlation

LIGHTLY = "compares with lightly"


def hadamard() -> Tensor:
    """Four columns of the 8×8 Sylvester matrix: mean 0, biased variance 1, uncorrelated."""
    two = torch.tensor([[1.0, 1], [1, -1]], dtype=torch.float64)
    return torch.kron(torch.kron(two, two), two)[:, 1:5]


def draw(seed: int, rows: int = 6, dim: int = 4) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(rows, dim)))


def total(anchor: Tensor, query: Tensor, weight: float = 0.005, eps: float = 1e-5) -> float:
    own, others = barlow_twins(anchor, query, eps)
    return (own + weight * others).item()


@pytest.mark.parametrize(
    ("query", "eps", "value"),
    [
        (hadamard(), 1e-5, 3.99992e-10),
        (hadamard(), 0.0, 0.0),
        (-hadamard(), 1e-5, 15.99984),
        (-hadamard(), 0.0, 16.0),  # 4 dim
        (hadamard().roll(1, dims=1), 0.0, 4.02),  # dim + weight * dim
    ],
)
def test_uncorrelated_features_have_their_closed_form(query: Tensor, eps: float, value: float) -> None:
    assert total(hadamard(), query, eps=eps) == pytest.approx(value, rel=1e-5, abs=1e-12)


def test_collapse_costs_one_for_each_feature() -> None:
    ones = torch.ones(8, 4, dtype=torch.float64)
    assert total(ones, ones) == 4


@pytest.mark.parametrize(("eps", "value"), [(1e-5, 0.0599988), (0.0, 0.06)])
def test_equal_features_cost_their_redundancy(eps: float, value: float) -> None:
    equal = hadamard()[:, :1].repeat(1, 4)
    assert total(equal, equal, eps=eps) == pytest.approx(value, abs=1e-9)  # weight dim (dim - 1)


def test_loss_agrees_with_a_loop() -> None:
    a, b = draw(0).numpy(), draw(1).numpy()
    own = others = 0.0
    for i in range(4):
        for j in range(4):
            left, right = a[:, i] - a[:, i].mean(), b[:, j] - b[:, j].mean()
            scale = np.sqrt((left**2).mean() + 1e-5) * np.sqrt((right**2).mean() + 1e-5)
            entry = (left * right).mean() / scale
            assert cross_correlation(draw(0), draw(1))[i, j].item() == pytest.approx(entry)
            own, others = own + (i == j) * (entry - 1) ** 2, others + (i != j) * entry**2
    assert [term.item() for term in barlow_twins(draw(0), draw(1))] == pytest.approx([own, others])


def test_scale_shift_order_and_exchange_do_not_matter() -> None:
    anchor, query, order = draw(0), draw(1), torch.tensor([3, 1, 0, 2, 5, 4])
    scale, shift = torch.tensor([1.0, 2, 3, 4]), torch.tensor([-5.0, 0, 1, 2])
    changed = total(query[order] * scale + shift, anchor[order], eps=0.0)
    assert changed == pytest.approx(total(anchor, query, eps=0.0), abs=1e-12)


def test_loss_agrees_with_lightly() -> None:
    pytest.importorskip("lightly", reason=LIGHTLY)
    from lightly.loss import BarlowTwinsLoss

    anchor, query = draw(0, 32, 16), draw(1, 32, 16)
    assert total(anchor, query) == pytest.approx(BarlowTwinsLoss(lambda_param=0.005)(anchor, query).item(), rel=1e-9)


def test_gradient_is_right_and_finite_at_collapse() -> None:
    views = draw(0).requires_grad_(), draw(1).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: barlow_twins(a, b), views)
    ones = torch.ones(4, 3, requires_grad=True)
    sum(barlow_twins(ones, torch.ones(4, 3))).backward()
    assert ones.grad is not None
    assert ones.grad.isfinite().all()


def test_autocast_does_not_shorten_the_correlations() -> None:
    anchor, query = draw(0, 64, 8).float(), draw(1, 64, 8).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = total(anchor, query)
    assert inside == total(anchor, query)
    assert inside == pytest.approx(total(anchor.double(), query.double()), rel=1e-5)
