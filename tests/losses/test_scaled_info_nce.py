"""MoCo-v3's contrast: closed forms, a loop, its floor, and a gradient that keeps its size."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from iecl.losses.scaled_info_nce import scaled_info_nce

ONE = torch.tensor([[1, 0], [0, 1], [1, 1]], dtype=torch.float64)
TWO = torch.tensor([[1, 1], [-1, 1], [0, 1]], dtype=torch.float64)


def draw(seed: int, rows: int = 5, dim: int = 4) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(rows, dim)))


def both(first: Tensor, second: Tensor, temperature: float) -> float:
    """The sum of the two directions, as the method adds them, when each view's prediction is its key."""
    return (scaled_info_nce(first, second, temperature) + scaled_info_nce(second, first, temperature)).item()


@pytest.mark.parametrize(("batch", "temperature", "value"), [(4, 0.2, 1.10903549), (4096, 1.0, 33.271065)])
def test_collapse_costs_4t_times_the_log_of_the_batch(batch: int, temperature: float, value: float) -> None:
    ones = torch.ones(batch, 4, dtype=torch.float64)
    assert both(ones, ones, temperature) == pytest.approx(value, abs=1e-6)
    assert both(ones, ones, temperature) == pytest.approx(4 * temperature * math.log(batch), abs=1e-9)


@pytest.mark.parametrize(("temperature", "value"), [(1.0, 2.97467352), (0.2, 0.01600980)])
def test_orthonormal_images_cost_their_closed_form(temperature: float, value: float) -> None:
    unit = torch.eye(4, 8, dtype=torch.float64)
    assert both(unit, unit, temperature) == pytest.approx(value, abs=1e-8)


@pytest.mark.parametrize(("temperature", "value"), [(0.5, 1.80655072), (0.1, 0.80165363)])
def test_the_small_example_has_its_known_value(temperature: float, value: float) -> None:
    # Only the first direction twice: 2 · 2t · InfoNCE(one, two), as the closed form counts it.
    assert 2 * scaled_info_nce(ONE, TWO, temperature).item() == pytest.approx(value, abs=1e-8)


def test_it_agrees_with_a_loop_over_the_rows_of_one_process() -> None:
    p, k = (normalize(z, dim=1).numpy() for z in (draw(0, 2), draw(1, 6)))
    losses = []
    for i in range(2):
        logits = [p[i] @ k[j] / 0.3 for j in range(6)]
        losses.append(math.log(sum(map(math.exp, logits))) - logits[4 + i])
    made = scaled_info_nce(draw(0, 2), draw(1, 6), 0.3, first=4)
    assert made.item() == pytest.approx(0.6 * np.mean(losses), abs=1e-12)


@pytest.mark.parametrize("temperature", [0.2, 1.0])
def test_no_batch_lies_below_the_floor(temperature: float) -> None:
    floor = 2 * temperature * math.log(64) - 2
    for seed in range(5):
        z = draw(seed, 64, 2)
        assert scaled_info_nce(z, z, temperature).item() > floor


def test_without_the_factor_the_gradient_would_depend_on_the_temperature() -> None:
    sizes = []
    for temperature in (0.1, 0.2, 1.0):
        p = draw(0, 64, 32).requires_grad_()
        scaled_info_nce(p, draw(1, 64, 32), temperature).backward()
        sizes.append(p.grad.norm().item())
    assert max(sizes) < 1.5 * min(sizes)  # without it: ten times


def test_the_gradient_is_right() -> None:
    assert torch.autograd.gradcheck(lambda p: scaled_info_nce(p, draw(1), 0.3), draw(0).requires_grad_())
