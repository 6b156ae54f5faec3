"""Losses without negatives: closed forms, a loop, what is held still, and lightly's value."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from iecl.losses.prediction import negative_cosine, unit_distance

ONE = torch.tensor([[1, 0], [0, 1], [1, 1]], dtype=torch.float64)
TWO = torch.tensor([[1, 1], [-1, 1], [0, 1]], dtype=torch.float64)
BOTH = [negative_cosine, unit_distance]


def draw(seed: int, rows: int = 5, dim: int = 4) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(rows, dim)))


@pytest.mark.parametrize(("factor", "value"), [(1.0, 0.0), (3.0, 0.0), (-1.0, 4.0)])
def test_equal_and_opposite_directions_are_0_and_4_apart(factor: float, value: float) -> None:
    assert unit_distance(draw(0), factor * draw(0)).item() == pytest.approx(value, abs=1e-12)


def test_orthogonal_directions_are_2_apart() -> None:
    unit = torch.eye(4, dtype=torch.float64)
    assert unit_distance(unit, unit.roll(1, 0)).item() == pytest.approx(2, abs=1e-12)


def test_the_small_example_has_its_known_values() -> None:
    there, back = unit_distance(ONE, TWO).item(), unit_distance(TWO, ONE).item()
    assert there == pytest.approx(2 - math.sqrt(2), abs=1e-9)
    assert there + back == pytest.approx(1.17157288, abs=1e-8)
    assert negative_cosine(ONE, TWO).item() == pytest.approx(-1 / math.sqrt(2), abs=1e-9)


def test_both_agree_with_a_loop() -> None:
    p, t = draw(0).numpy(), draw(1).numpy()
    pairs = [(a / np.linalg.norm(a), b / np.linalg.norm(b)) for a, b in zip(p, t, strict=True)]
    squares = [((a - b) ** 2).sum() for a, b in pairs]
    assert unit_distance(draw(0), draw(1)).item() == pytest.approx(np.mean(squares), abs=1e-12)
    assert negative_cosine(draw(0), draw(1)).item() == pytest.approx(-np.mean([a @ b for a, b in pairs]), abs=1e-12)


@pytest.mark.parametrize("loss", BOTH)
def test_targets_are_held_still(loss: object) -> None:
    predictions, targets = draw(0).requires_grad_(), draw(1).requires_grad_()
    loss(predictions, targets).backward()
    assert targets.grad is None
    assert predictions.grad.abs().sum() > 0


@pytest.mark.parametrize("loss", BOTH)
def test_order_and_length_do_not_matter(loss: object) -> None:
    order, lengths = torch.tensor([3, 1, 0, 2, 4]), torch.tensor([1.0, 2, 3, 4, 5])[:, None]
    changed = loss(lengths * draw(0)[order], draw(1)[order])
    assert changed.item() == pytest.approx(loss(draw(0), draw(1)).item(), abs=1e-12)


@pytest.mark.parametrize(("loss", "value"), [(negative_cosine, -1.0), (unit_distance, 0.0)])
def test_a_collapsed_batch_has_the_value_of_the_optimum(loss: object, value: float) -> None:
    ones = torch.ones(4, 8, requires_grad=True)
    made = loss(ones, torch.ones(4, 8))
    (gradient,) = torch.autograd.grad(made, ones)
    assert made.item() == pytest.approx(value, abs=1e-6)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("loss", BOTH)
def test_the_gradient_is_right(loss: object) -> None:
    assert torch.autograd.gradcheck(lambda p: loss(p, draw(1)), draw(0).requires_grad_())


def test_two_halves_are_the_whole() -> None:
    # A mean over images: gradient accumulation is exact here, unlike for contrastive losses.
    halves = [unit_distance(draw(0, 8)[rows], draw(1, 8)[rows]) for rows in (slice(0, 4), slice(4, 8))]
    assert sum(halves).item() / 2 == pytest.approx(unit_distance(draw(0, 8), draw(1, 8)).item(), abs=1e-12)


def test_lightly_has_the_same_negative_cosine() -> None:
    lightly = pytest.importorskip("lightly.loss", reason="compares with lightly")
    expected = lightly.NegativeCosineSimilarity()(draw(0, 32, 16), draw(1, 32, 16)).item()
    assert negative_cosine(draw(0, 32, 16), draw(1, 32, 16)).item() == pytest.approx(expected, rel=1e-5)
