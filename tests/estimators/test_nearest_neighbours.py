"""Nearest-neighbor estimators against closed forms, loops and known laws."""

import math

import numpy as np
import pytest
import torch
from scipy.special import digamma, gammaln

from iecl.errors import UserError
from iecl.estimators.nearest import nearest_divergence, nearest_entropy

STAIRS = torch.arange(8, dtype=torch.float64)[:, None]


def kth_distance(row: np.ndarray, others: np.ndarray, k: int) -> float:
    return sorted(float(np.sqrt(((row - other) ** 2).sum())) for other in others)[k - 1]


@pytest.mark.parametrize(("scale", "value"), [(1, 3.28600432), (10, 3.28600432 + math.log(10))])
def test_entropy_of_stairs_has_its_closed_form(scale: float, value: float) -> None:
    # Every nearest distance is `scale`: psi(8) - psi(1) + log 2 + log scale.
    assert nearest_entropy(scale * STAIRS, neighbors=1).item() == pytest.approx(value, abs=5e-9)


def test_divergence_of_shifted_stairs_has_its_closed_form() -> None:
    divergence = nearest_divergence(STAIRS[:4], STAIRS[:4] + 0.5, neighbors=1)
    assert divergence.item() == pytest.approx(math.log(2 / 3), abs=1e-9)


@pytest.mark.parametrize("neighbors", [1, 2, 5])
def test_entropy_agrees_with_a_loop(neighbors: int) -> None:
    z = np.random.default_rng(1).normal(size=(9, 3))
    radii = [kth_distance(z[i], np.delete(z, i, axis=0), neighbors) for i in range(9)]
    ball = 1.5 * math.log(math.pi) - gammaln(2.5)

    entropy = nearest_entropy(torch.from_numpy(z), neighbors)

    assert entropy.item() == pytest.approx(digamma(9) - digamma(neighbors) + ball + 3 * np.mean(np.log(radii)))


@pytest.mark.parametrize("neighbors", [1, 4])
def test_divergence_agrees_with_a_loop(neighbors: int) -> None:
    p, q = np.random.default_rng(1).normal(size=(9, 3)), np.random.default_rng(2).normal(size=(6, 3))
    logs = [
        math.log(kth_distance(p[i], q, neighbors) / kth_distance(p[i], np.delete(p, i, axis=0), neighbors))
        for i in range(9)
    ]

    divergence = nearest_divergence(torch.from_numpy(p), torch.from_numpy(q), neighbors)

    assert divergence.item() == pytest.approx(3 * np.mean(logs) + math.log(6 / 8))


@pytest.mark.parametrize(
    ("dim", "bias", "tolerance"), [(1, 0.02, 0.1), (8, 0.04, 0.3), (32, 3.4, 0.6), (64, 10.7, 0.8)]
)
def test_bias_for_normal_rows_is_the_declared_one(dim: int, bias: float, tolerance: float) -> None:
    z = torch.from_numpy(np.random.default_rng(0).normal(size=(512, dim)))
    truth = dim / 2 * math.log(2 * math.pi * math.e)
    # The sum of 512 x dim / 2 squared normals alone makes the entropy of one draw deviate by sqrt(dim / 1024).
    assert nearest_entropy(z).item() - truth == pytest.approx(bias, abs=tolerance)


def test_divergence_finds_the_shift_of_a_normal_law() -> None:
    rng = np.random.default_rng(0)
    p, q = (torch.from_numpy(rng.normal(size=(2000, 1))) for _ in range(2))
    # True value: shift^2 / 2 = 0.5; single neighbors scatter it by about 1.5 / sqrt(2000) = 0.03.
    assert nearest_divergence(p, q + 1).item() == pytest.approx(0.5, abs=0.12)


def test_near_neighbors_far_from_the_origin_keep_their_distance() -> None:
    # In float32, |a|^2 + |b|^2 - 2 a.b would lose a distance of 1 at 10,000.
    assert nearest_entropy(STAIRS.float() + 1e4, neighbors=1).item() == pytest.approx(3.286004, abs=1e-5)


def test_too_few_rows_for_the_neighbors_are_refused() -> None:
    with pytest.raises(UserError, match=r"entropy from 3 neighbors needs at least 4 rows .*\(3, 1\)"):
        nearest_entropy(STAIRS[:3])
    with pytest.raises(UserError, match=r"divergence from 3 neighbors needs at least 4 rows"):
        nearest_divergence(STAIRS[:3], STAIRS)
    with pytest.raises(UserError, match=r"divergence from 3 neighbors needs at least 3 rows"):
        nearest_divergence(STAIRS, STAIRS[:2])
