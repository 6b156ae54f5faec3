"""Light-MoCo's contrast: closed forms, a loop, the ways to spread the answer, and its bounds."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from iecl.errors import UserError
from iecl.losses.info_nce import info_nce_queue
from iecl.losses.smoothed_info_nce import SPREADS, neighbor_shares, smoothed_info_nce


def draw(seed: int, rows: int = 5, dim: int = 4) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(rows, dim)))


def with_cosines(*cosines: float) -> tuple[Tensor, Tensor]:
    """An anchor, and rows that have these cosines to it."""
    rows = torch.tensor([[c, math.sqrt(1 - c * c)] for c in cosines], dtype=torch.float64)
    return torch.tensor([[1.0, 0.0]], dtype=torch.float64), rows


@pytest.mark.parametrize(("mass", "value"), [(0.0, 0.10707082), (0.2, 0.75707082), (0.3, 1.08207082)])
def test_the_small_example_has_its_known_values(mass: float, value: float) -> None:
    anchor, queue = with_cosines(0.5, 0.2, -0.3, 0.1)
    made = smoothed_info_nce(anchor, anchor, queue, 0.2, neighbor_shares("equal", mass, 2))
    assert made.item() == pytest.approx(value, abs=1e-8)


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("mass", [0.0, 0.2, 0.9])
def test_collapse_costs_the_log_of_all_candidates_whatever_the_spread(spread: str, mass: float) -> None:
    ones = torch.ones(8, 4, dtype=torch.float64)
    made = smoothed_info_nce(ones, ones, ones, 0.2, neighbor_shares(spread, mass, 5))
    assert made.item() == pytest.approx(math.log(9), abs=1e-9)


def test_without_smoothing_it_is_mocos_contrast() -> None:
    given = draw(0), draw(1), draw(2, 12), 0.3
    assert smoothed_info_nce(*given, [0.0] * 3).item() == pytest.approx(info_nce_queue(*given).item(), abs=1e-12)


def test_it_agrees_with_a_loop() -> None:
    a, k, q = (normalize(z, dim=1).numpy() for z in (draw(0), draw(1), draw(2, 12)))
    shares, losses = [0.2, 0.1, 0.05], []
    for i in range(5):
        logits = np.array([a[i] @ k[i], *(a[i] @ row for row in q)]) / 0.3
        logs = logits - np.log(np.exp(logits).sum())
        answer = np.zeros(13)
        answer[0] = 1 - sum(shares)
        for share, place in zip(shares, np.argsort(-logits[1:]), strict=False):
            answer[1 + place] = share
        losses.append(-(answer * logs).sum())
    made = smoothed_info_nce(draw(0), draw(1), draw(2, 12), 0.3, shares)
    assert made.item() == pytest.approx(np.mean(losses), abs=1e-12)


@pytest.mark.parametrize(
    ("spread", "mass", "neighbors", "shares"),
    [
        ("equal", 0.2, 2, [0.1, 0.1]),
        ("equal", 0.5, 1, [0.5]),
        ("tiers", 0.4, 5, [0.2, 0.05, 0.05, 0.05, 0.05]),
        ("tiers", 0.4, 10, [0.2, *[0.1 / 3] * 3, *[0.1 / 6] * 6]),
        ("level-tiers", 0.3, 20, [*[0.05] * 2, *[0.1 / 6] * 6, *[0.1 / 12] * 12]),
        ("halving", 0.4, 11, [*(0.2 / 2**i for i in range(10)), 0.2 / 2**9]),
    ],
)
def test_spreads_are_those_of_the_authors(spread: str, mass: float, neighbors: int, shares: list[float]) -> None:
    assert neighbor_shares(spread, mass, neighbors) == pytest.approx(shares)


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("neighbors", [5, 10, 20, 30])
def test_shares_sum_to_the_mass_and_never_rise(spread: str, neighbors: int) -> None:
    shares = neighbor_shares(spread, 0.3, neighbors)
    assert len(shares) == neighbors
    assert sum(shares) == pytest.approx(0.3)
    assert all(first >= second - 1e-12 for first, second in pairwise(shares))


def test_a_number_without_tiers_is_an_error_that_offers_those_with() -> None:
    with pytest.raises(UserError, match=r"no tiers for 7 neighbors .*method.num_neighbors.*one of: 5, 10, 20, 30"):
        neighbor_shares("tiers", 0.2, 7)


def test_no_batch_lies_below_the_entropy_of_the_answer() -> None:
    shares = neighbor_shares("equal", 0.2, 2)
    entropy = -0.8 * math.log(0.8) - 2 * 0.1 * math.log(0.1)
    assert entropy == pytest.approx(0.639032, abs=1e-6)
    for temperature in (0.05, 0.2, 1.0):
        assert smoothed_info_nce(draw(0), draw(0), draw(2, 12), temperature, shares).item() > entropy


def test_order_and_length_do_not_matter() -> None:
    order, lengths = torch.tensor([3, 1, 0, 2, 4]), torch.tensor([1.0, 2, 3, 4, 5])[:, None]
    plain = smoothed_info_nce(draw(0), draw(1), draw(2, 12), 0.2, [0.1, 0.1])
    changed = smoothed_info_nce(lengths * draw(0)[order], draw(1)[order], 3 * draw(2, 12).flip(0), 0.2, [0.1, 0.1])
    assert changed.item() == pytest.approx(plain.item(), abs=1e-12)


def test_the_gradient_is_right() -> None:
    assert torch.autograd.gradcheck(
        lambda a: smoothed_info_nce(a, draw(1), draw(2, 12), 0.3, [0.2, 0.1]), draw(0).requires_grad_()
    )
