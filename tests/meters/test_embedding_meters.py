"""Readings of embeddings: closed forms, a slow neighbor vote, and what collapse looks like."""

import math
from collections import defaultdict

import numpy as np
import pytest
import torch
from torch import Tensor

from iecl.errors import UserError
from iecl.meters.embedding import (
    alignment,
    effective_rank,
    entropy,
    feature_std,
    neighbor_accuracy,
    read_embedding,
    uniformity,
)


def draw(seed: int, rows: int, dim: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(rows, dim)))


def test_isotropic_features_have_a_deviation_of_one() -> None:
    # Unit rows in 64 dimensions deviate by 1/8 in each; 2,000 rows know it to about a thousandth.
    assert feature_std(7 * draw(0, 2000, 64)).item() == pytest.approx(1.0, abs=0.01)


def test_equal_features_have_no_deviation_and_one_direction() -> None:
    features = torch.tensor([0.3, 0.4, 1.2]).expand(6, 3) * torch.arange(1.0, 7)[:, None]  # lengths do not count
    assert feature_std(features).item() == pytest.approx(0, abs=1e-6)
    assert effective_rank(features).item() == pytest.approx(1, abs=1e-3)


def test_rounding_noise_around_one_point_is_not_a_spectrum() -> None:
    noisy = torch.ones(64, 16, dtype=torch.float64) + 1e-6 * draw(0, 64, 16)
    assert effective_rank(noisy).item() == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("directions", [2, 5])
def test_rank_counts_the_directions_in_which_images_differ_not_their_common_part(directions: int) -> None:
    # Images come in pairs on either side of a common point, along `directions` orthogonal axes away from it.
    axes = torch.eye(16, dtype=torch.float64)[1 : directions + 1]
    features = 10 * torch.eye(16, dtype=torch.float64)[0] + torch.cat([axes, -axes])
    assert effective_rank(features).item() == pytest.approx(directions, abs=1e-6)


@pytest.mark.parametrize(
    ("query", "value"), [(torch.eye(4), 0.0), (torch.eye(4).roll(1, 0), 2.0), (-torch.eye(4), 4.0)]
)
def test_alignment_is_the_squared_distance_of_directions(query: Tensor, value: float) -> None:
    assert alignment(3 * torch.eye(4), query).item() == pytest.approx(value, abs=1e-6)


def test_entropy_is_the_coding_rate_of_directions() -> None:
    # Orthonormal rows, epsilon = 1/2: 4/2 log(1 + 1 / 0.25); their lengths do not count.
    lengths = torch.tensor([1.0, 2, 3, 4])
    assert entropy(lengths.diag()).item() == pytest.approx(2 * math.log(5), rel=1e-6)


def test_uniformity_of_orthogonal_rows_is_minus_four() -> None:
    assert uniformity(torch.eye(5)).item() == pytest.approx(-4, abs=1e-6)


def slow_neighbor_accuracy(features: np.ndarray, labels: list[int], k: int, temperature: float) -> float:
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    right = 0
    for i in range(len(unit)):
        near = sorted((j for j in range(len(unit)) if j != i), key=lambda j: -unit[i] @ unit[j])[:k]
        votes: dict[int, float] = defaultdict(float)
        for j in near:
            votes[labels[j]] += math.exp(unit[i] @ unit[j] / temperature)
        right += max(votes, key=lambda label: votes[label]) == labels[i]
    return right / len(unit)


@pytest.mark.parametrize("chunk", [7, 1024])
@pytest.mark.parametrize(("k", "temperature"), [(1, 0.07), (5, 0.07), (20, 10.0)])
def test_neighbor_accuracy_agrees_with_a_loop(k: int, temperature: float, chunk: int) -> None:
    labels = [i % 3 for i in range(40)]
    features = draw(0, 40, 4) + 0.8 * torch.eye(4)[labels]

    accuracy = neighbor_accuracy(features, torch.tensor(labels), k, temperature, chunk)

    assert accuracy.item() == pytest.approx(slow_neighbor_accuracy(features.numpy(), labels, k, temperature), abs=1e-6)


def test_a_row_does_not_vote_for_itself() -> None:
    # Two pairs of twins with different labels: each is right only if it may see itself.
    features = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    assert neighbor_accuracy(features, torch.tensor([0, 1, 0, 1]), k=1).item() == 0


def test_unlabeled_rows_neither_vote_nor_count() -> None:
    features = torch.tensor([[1.0, 0.0], [1.0, 0.01], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    assert neighbor_accuracy(features, torch.tensor([0, -1, 0, 1, 1]), k=1).item() == 1


def test_tiny_temperatures_do_not_overflow() -> None:
    features = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    assert neighbor_accuracy(features, torch.tensor([0, 0, 1, 1]), k=2, temperature=1e-3).item() == 1


def test_more_neighbors_than_labeled_images_are_refused() -> None:
    with pytest.raises(UserError, match=r"20 neighbors need at least 21 labeled images, there are 3 .*fewer neighbors"):
        neighbor_accuracy(torch.eye(4), torch.tensor([0, 1, 2, -1]))


def test_readings_carry_no_gradient() -> None:
    z = draw(0, 8, 4).requires_grad_()
    assert not any(reading.requires_grad for reading in read_embedding(z, z, z).values())


def test_readings_look_at_the_first_1024_rows_only() -> None:
    features, anchor, query = (draw(seed, 1024, 4) for seed in range(3))
    strange = torch.full((5, 4), 1e3, dtype=torch.float64)

    kept = read_embedding(features, anchor, query)
    longer = read_embedding(*(torch.cat([rows, strange]) for rows in (features, anchor, query)))

    assert {name: value.item() for name, value in longer.items()} == {
        name: value.item() for name, value in kept.items()
    }


def test_each_reading_stands_under_its_own_name() -> None:
    features, anchor, query = (draw(seed, 16, 4) for seed in range(3))
    assert {name: value.item() for name, value in read_embedding(features, anchor, query).items()} == {
        "meter/effective_rank": effective_rank(features).item(),
        "meter/feature_std": feature_std(features).item(),
        "meter/alignment": alignment(anchor, query).item(),
        "meter/uniformity": uniformity(anchor).item(),
        "meter/entropy": entropy(anchor).item(),
    }


def test_broken_features_read_as_nan_instead_of_raising() -> None:
    broken = torch.full((8, 4), math.nan)
    assert all(reading.isnan() for reading in read_embedding(broken, broken, broken).values())


def test_readings_in_short_floats_are_those_of_the_widened_rows() -> None:
    z = draw(0, 16, 4).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        short = read_embedding(z, z, z)
    wide = read_embedding(z.float(), z.float(), z.float())
    assert {name: value.item() for name, value in short.items()} == {name: value.item() for name, value in wide.items()}
