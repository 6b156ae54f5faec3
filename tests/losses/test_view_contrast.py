"""Viewmaker's contrastive loss: closed forms, a loop, and that it is not NT-Xent."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from iecl.losses.nt_xent import nt_xent
from iecl.losses.view_contrast import view_contrast

ONE = torch.tensor([[1, 0], [0, 1], [1, 1]], dtype=torch.float64)
TWO = torch.tensor([[1, 1], [-1, 1], [0, 1]], dtype=torch.float64)


def draw(seed: int, rows: int = 5, dim: int = 4) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(rows, dim)))


@pytest.mark.parametrize("temperature", [0.07, 0.5])
def test_collapse_costs_nothing(temperature: float) -> None:
    ones = torch.ones(4, 8, dtype=torch.float64)
    assert view_contrast(ones, ones, temperature).item() == pytest.approx(0, abs=1e-9)


def test_orthonormal_images_cost_their_closed_form() -> None:
    z = torch.eye(4, 8, dtype=torch.float64)
    loss = view_contrast(z, z, 0.07).item()
    assert loss == pytest.approx(-1.386292486, abs=1e-9)
    assert loss == pytest.approx(math.log((2 + 6 * math.exp(-1 / 0.07)) / 8), abs=1e-12)


def test_small_example_has_its_known_value() -> None:
    assert view_contrast(ONE, TWO, 0.5).item() == pytest.approx(-0.020873210, abs=1e-9)


def test_loss_agrees_with_a_loop() -> None:
    rows = torch.cat([draw(0), draw(1)]).numpy()
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    losses = []
    for i in range(5):
        spread = np.mean([math.exp(rows[i] @ other / 0.3) for other in rows])
        losses.append(math.log(spread) - rows[i] @ rows[i + 5] / 0.3)
    assert view_contrast(draw(0), draw(1), 0.3).item() == pytest.approx(np.mean(losses))


def test_order_and_length_do_not_matter_but_the_first_view_is_the_anchor() -> None:
    anchor, query = draw(0), draw(1)
    value = view_contrast(anchor, query, 0.2).item()
    order = torch.tensor([3, 1, 0, 2, 4])
    assert view_contrast(2 * anchor[order], 3 * query[order], 0.2).item() == pytest.approx(value, abs=1e-12)
    assert view_contrast(query, anchor, 0.2).item() != pytest.approx(value, abs=1e-3)


def test_it_is_not_nt_xent_up_to_a_constant() -> None:
    gaps = [view_contrast(draw(s), draw(s + 1), 0.2).item() - nt_xent(draw(s), draw(s + 1), 0.2).item() for s in (0, 2)]
    assert gaps[0] != pytest.approx(gaps[1], abs=1e-2)


def test_gradient_is_right_on_both_views() -> None:
    views = draw(0).requires_grad_(), draw(1).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, q: view_contrast(a, q, 0.3), views)


def test_autocast_does_not_shorten_the_logits() -> None:
    anchor, query = draw(0).float(), draw(1).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = view_contrast(anchor, query, 0.07).item()
    assert inside == view_contrast(anchor, query, 0.07).item()
    assert inside == pytest.approx(view_contrast(anchor.double(), query.double(), 0.07).item(), abs=1e-5)
