"""All4One's feature term: closed forms, a loop, and a gradient where the root has none."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from iecl.losses.feature_redundancy import feature_redundancy


def hadamard() -> Tensor:
    """Eight rows of four decorrelated columns with mean 0."""
    made = torch.ones(1, 1, dtype=torch.float64)
    for _ in range(3):
        made = torch.cat([torch.cat([made, made], 1), torch.cat([made, -made], 1)])
    return made[:, 1:5]


def draw(seed: int, rows: int = 6, dim: int = 3) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(rows, dim)))


@pytest.mark.parametrize(
    ("view", "target", "value"),
    [
        (hadamard(), hadamard(), 0.0),
        (torch.ones(8, 4, dtype=torch.float64), torch.ones(8, 4, dtype=torch.float64), 5.0),
        (hadamard(), -hadamard(), 10.0),
    ],
    ids=["perfect", "constant", "opposite"],
)
def test_it_has_its_closed_forms(view: Tensor, target: Tensor, value: float) -> None:
    assert feature_redundancy(view, view, target, target).item() == pytest.approx(value, abs=2e-5)


def test_it_agrees_with_a_loop() -> None:
    anchor, query, anchor_target, query_target = (draw(seed).numpy() for seed in range(4))
    on, off = [], []
    for z, k in ((anchor, query_target), (query, anchor_target)):
        for i in range(3):
            for j in range(3):
                c = k[:, i] @ z[:, j] / np.linalg.norm(k[:, i]) / np.linalg.norm(z[:, j])
                (on if i == j else off).append((c - (i == j)) ** 2)
    expected = 10 * (0.5 * math.sqrt(np.mean(on)) + 0.5 * math.sqrt(np.mean(off)))
    assert feature_redundancy(*(draw(seed) for seed in range(4))).item() == pytest.approx(expected, abs=1e-9)


def test_each_view_is_compared_with_the_other_views_target() -> None:
    anchor, query = hadamard(), hadamard().roll(1, 1)
    crossed = feature_redundancy(anchor, query, query, anchor)
    straight = feature_redundancy(anchor, query, anchor, query)
    assert crossed.item() == pytest.approx(0, abs=2e-5)
    assert straight.item() > 5


def test_the_gradient_at_a_perfect_match_is_finite() -> None:
    z = hadamard().requires_grad_()
    feature_redundancy(z, z, hadamard(), hadamard()).backward()
    assert z.grad.isfinite().all()


def test_targets_are_held_still() -> None:
    views = [draw(seed).requires_grad_() for seed in range(4)]
    feature_redundancy(*views).backward()
    assert [view.grad is None for view in views] == [False, False, True, True]


def test_order_of_images_and_scale_of_columns_do_not_matter() -> None:
    order, scale = torch.tensor([5, 2, 0, 1, 4, 3]), torch.tensor([1.0, 2, 5])
    views = [draw(seed) for seed in range(4)]
    changed = feature_redundancy(*(scale * view[order] for view in views))
    assert changed.item() == pytest.approx(feature_redundancy(*views).item(), abs=1e-9)
