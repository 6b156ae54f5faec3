"""W-MSE: closed forms, a loop, what whitening is blind to, its errors, lightly."""

import numpy as np
import pytest
import torch
from torch import Tensor

from iecl.errors import TrainingError
from iecl.losses.whitening import whiten, whitened_mse


def draw(seed: int, rows: int = 16, dim: int = 4) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(rows, dim)))


def test_whitened_rows_have_mean_zero_and_identity_covariance() -> None:
    z = whiten(draw(0) @ draw(1, 4) + 5)
    assert z.mean(0).abs().max().item() < 1e-12
    assert torch.allclose(z.T @ z / 15, torch.eye(4, dtype=torch.float64))


def test_whitened_rows_have_their_mean_squared_length() -> None:
    assert whiten(draw(0, rows=32)).square().sum(1).mean().item() == pytest.approx(3.875)  # dim (rows - 1) / rows


def test_equal_views_cost_nothing_and_opposite_views_four() -> None:
    z = draw(0)
    assert whitened_mse(z, z, group=8).item() == pytest.approx(0, abs=1e-12)
    assert whitened_mse(z, -z, group=8).item() == pytest.approx(4)


def test_independent_views_cost_about_two() -> None:
    assert whitened_mse(draw(0, 4096, 8), draw(1, 4096, 8), group=4096).item() == pytest.approx(2, abs=0.05)


def test_whitening_is_blind_to_triangular_maps_and_not_to_all_linear_maps() -> None:
    z = draw(0)
    triangular = draw(1, 4).tril()
    triangular.diagonal().abs_().add_(0.5)
    assert whitened_mse(z, z @ triangular.T + 3, group=16).item() == pytest.approx(0, abs=1e-12)
    assert whitened_mse(z, z @ draw(2, 4).T, group=16).item() > 0.1


def test_loss_agrees_with_a_loop() -> None:
    views = [draw(seed, rows=12, dim=3).numpy() for seed in range(3)]
    white = []
    for z in views:
        rows = []
        for first in (0, 6):
            part = z[first : first + 6]
            factor = np.linalg.cholesky(0.9 * np.cov(part.T) + 0.1 * np.eye(3))
            rows.append(np.stack([np.linalg.solve(factor, row - part.mean(0)) for row in part]))
        white.append(np.concatenate(rows))
    costs = []
    for i, j in ((0, 1), (0, 2), (1, 2)):
        for a, b in zip(white[i], white[j], strict=True):
            a, b = a / np.linalg.norm(a), b / np.linalg.norm(b)
            costs.append(((a - b) ** 2).sum())
    found = whitened_mse(*(torch.from_numpy(z) for z in views), group=6, shrink=0.1).item()
    assert found == pytest.approx(np.mean(costs))


def test_each_group_is_whitened_alone() -> None:
    anchor, query = draw(0), draw(1)
    moved = anchor.clone()
    moved[8:] = 10 * moved[8:] + 7
    assert whitened_mse(moved, query, group=8).item() == pytest.approx(whitened_mse(anchor, query, group=8).item())
    assert whitened_mse(moved, query, group=16).item() != pytest.approx(whitened_mse(anchor, query, group=16).item())


def test_every_view_receives_gradient() -> None:
    views = [draw(seed).requires_grad_() for seed in range(3)]
    gradients = torch.autograd.grad(whitened_mse(*views, group=8), views)
    sizes = [gradient.norm().item() for gradient in gradients]
    assert min(sizes) > 0.3 * max(sizes)


def test_collapse_is_an_error_that_says_what_to_do() -> None:
    ones = torch.ones(8, 2, dtype=torch.float64)
    with pytest.raises(TrainingError, match=r"no inverse covariance.*method.shrink=1e-4"):
        whitened_mse(ones, draw(0, 8, 2), group=8)
    assert whitened_mse(ones, draw(0, 8, 2), group=8, shrink=0.1).isfinite()


def test_nan_stays_nan_instead_of_an_error() -> None:
    z = draw(0)
    z[3, 1] = torch.nan
    assert whitened_mse(z, draw(1), group=8).isnan()


def test_whitening_agrees_with_lightly() -> None:
    pytest.importorskip("lightly", reason="compares with lightly")
    from lightly.loss.wmse_loss import Whitening2d, norm_mse_loss

    anchor, query = draw(0).float(), draw(1).float()
    theirs = [Whitening2d(4, track_running_stats=False)(z) for z in (anchor, query)]
    assert torch.allclose(whiten(anchor), theirs[0], rtol=1e-5, atol=1e-5)
    assert whitened_mse(anchor, query, group=16).item() == pytest.approx(norm_mse_loss(*theirs).item(), rel=1e-5)


def test_gradient_is_right() -> None:
    views = draw(0, 8, 2).requires_grad_(), draw(1, 8, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: whitened_mse(a, b, group=4), views)


def test_autocast_does_not_shorten_the_whitening() -> None:
    anchor, query = draw(0).float(), draw(1).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = whitened_mse(anchor, query, group=8).item()
    assert inside == whitened_mse(anchor, query, group=8).item()
    assert inside == pytest.approx(whitened_mse(anchor.double(), query.double(), group=8).item(), rel=1e-4)
