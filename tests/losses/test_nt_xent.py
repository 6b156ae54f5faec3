"""NT-Xent: closed forms, a loop, symmetries, precision."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from iecl.losses.nt_xent import nt_xent

ONE = torch.tensor([[1, 0], [0, 1], [1, 1]], dtype=torch.float64)
TWO = torch.tensor([[1, 1], [-1, 1], [0, 1]], dtype=torch.float64)


def draw(seed: int, rows: int = 5, dim: int = 4) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(rows, dim)))


@pytest.mark.parametrize("temperature", [0.05, 0.5])
@pytest.mark.parametrize("batch", [4, 256])
def test_collapse_costs_the_log_of_all_other_views(batch: int, temperature: float) -> None:
    ones = torch.ones(batch, 8, dtype=torch.float64)
    assert nt_xent(ones, ones, temperature).item() == pytest.approx(math.log(2 * batch - 1), abs=1e-9)


@pytest.mark.parametrize(
    ("batch", "temperature", "value"),
    [
        (4, 0.5, 0.594437664),
        (4, 0.2, 0.039631861),
        (4, 0.1, 0.000272362),
        (256, 0.5, 4.24879512),
        (256, 0.2, 1.48983264),
    ],
)
def test_orthonormal_images_cost_their_closed_form(batch: int, temperature: float, value: float) -> None:
    z = torch.eye(batch, dtype=torch.float64)
    loss = nt_xent(z, z, temperature).item()
    assert loss == pytest.approx(value, abs=5e-9)
    assert loss == pytest.approx(math.log(1 + (2 * batch - 2) * math.exp(-1 / temperature)), abs=1e-12)


def test_opposite_images_cost_their_closed_form() -> None:
    z = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    assert nt_xent(z, z, temperature=0.5).item() == pytest.approx(math.log(1 + 2 * math.exp(-4)), abs=1e-9)


@pytest.mark.parametrize(("temperature", "value"), [(0.5, 1.389628526), (0.1, 2.283134544)])
def test_small_example_has_its_known_value(temperature: float, value: float) -> None:
    assert nt_xent(ONE, TWO, temperature).item() == pytest.approx(value, abs=1e-9)


def test_loss_agrees_with_a_loop() -> None:
    views = torch.cat([draw(0), draw(1)]).numpy()
    views = views / np.linalg.norm(views, axis=1, keepdims=True)
    losses = []
    for i in range(10):
        others = sum(math.exp(views[i] @ views[j] / 0.3) for j in range(10) if j != i)
        losses.append(math.log(others) - views[i] @ views[(i + 5) % 10] / 0.3)
    assert nt_xent(draw(0), draw(1), 0.3).item() == pytest.approx(np.mean(losses))


def test_views_order_and_length_do_not_matter() -> None:
    anchor, query = draw(0), draw(1)
    order, lengths = torch.tensor([3, 1, 0, 2, 4]), torch.tensor([1.0, 2, 3, 4, 5])[:, None]
    changed = nt_xent(lengths * query[order], anchor[order], 0.2)
    assert changed.item() == pytest.approx(nt_xent(anchor, query, 0.2).item(), abs=1e-12)


def test_two_half_batches_are_not_the_whole_batch() -> None:
    anchor, query = draw(0, rows=8), draw(1, rows=8)
    halves = (nt_xent(anchor[:4], query[:4], 0.5) + nt_xent(anchor[4:], query[4:], 0.5)) / 2
    assert nt_xent(anchor, query, 0.5).item() - halves.item() > 0.5  # log 15 - log 7 is 0.76


def test_one_image_gives_no_signal() -> None:
    anchor = draw(0, rows=1).requires_grad_()
    loss = nt_xent(anchor, draw(1, rows=1), 0.2)
    (gradient,) = torch.autograd.grad(loss, anchor)
    assert loss.item() == 0
    assert gradient.abs().max().item() == 0


@pytest.mark.parametrize("temperature", [0.01, 0.2])
def test_autocast_and_short_inputs_do_not_shorten_the_logits(temperature: float) -> None:
    anchor, query = draw(0).float(), draw(1).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside, short = nt_xent(anchor, query, temperature), nt_xent(anchor.half(), query.half(), temperature)
    assert inside.item() == nt_xent(anchor, query, temperature).item()
    assert short.item() == nt_xent(anchor.half().float(), query.half().float(), temperature).item()


def test_single_precision_is_close() -> None:
    whole, short = (nt_xent(draw(0).to(kind), draw(1).to(kind), 0.1).item() for kind in (torch.float64, torch.float32))
    assert short == pytest.approx(whole, abs=1e-5)


def test_gradient_is_right_on_both_views() -> None:
    views = draw(0).requires_grad_(), draw(1).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, q: nt_xent(a, q, 0.3), views)


def test_gradient_is_finite_at_collapse() -> None:
    z = torch.ones(4, 8, requires_grad=True)
    (gradient,) = torch.autograd.grad(nt_xent(z, torch.ones(4, 8), 0.1), z)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("temperature", [0.1, 0.5])
def test_lightly_has_the_same_value(temperature: float) -> None:
    lightly = pytest.importorskip("lightly.loss", reason="compares with lightly")
    anchor, query = draw(0, 32, 16), draw(1, 32, 16)
    expected = lightly.NTXentLoss(temperature=temperature)(anchor, query).item()
    assert nt_xent(anchor, query, temperature).item() == pytest.approx(expected, rel=1e-5)


def test_decoupled_the_right_answer_is_no_part_of_the_denominator() -> None:
    eye = torch.eye(4, dtype=torch.float64)
    assert nt_xent(eye, eye, temperature=0.5, decoupled=True).item() == pytest.approx(math.log(6) - 2, abs=1e-12)
