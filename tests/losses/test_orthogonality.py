"""Regularizers of kernels: closed forms, singular values, and what they leave alone."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from iecl.errors import UserError
from iecl.losses.orthogonality import orthogonality, restricted_isometry, sigma_min_hinge


def draw(*shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).normal(size=shape))


def singular_values(weight: Tensor) -> np.ndarray:
    return np.linalg.svd(weight.reshape(len(weight), -1).numpy(), compute_uv=False)


@pytest.mark.parametrize("shape", [(4, 9), (9, 4), (5, 5)])
def test_orthonormal_rows_or_columns_cost_nothing(shape: tuple[int, int]) -> None:
    left, _, right = torch.linalg.svd(draw(*shape), full_matrices=False)
    assert orthogonality([left @ right]).item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("shape", [(6, 2, 3, 3), (6, 1, 2, 2), (3, 8), (8, 3)])
def test_penalty_is_that_of_the_reshaped_singular_values(shape: tuple[int, ...]) -> None:
    # |W W^T - I|_F^2 on the smaller side is the sum of (s^2 - 1)^2.
    weight = draw(*shape)
    assert orthogonality([weight]).item() == pytest.approx(np.mean((singular_values(weight) ** 2 - 1) ** 2))


@pytest.mark.parametrize("shape", [(6, 2, 3, 3), (3, 8), (8, 3)])
def test_the_isometry_penalty_is_the_farthest_squared_singular_value_from_one(shape: tuple[int, ...]) -> None:
    weight = draw(*shape)
    assert restricted_isometry([weight]).item() == pytest.approx(np.abs(singular_values(weight) ** 2 - 1).max())


def test_descending_the_isometry_penalty_brings_all_singular_values_to_one() -> None:
    weight = torch.diag(torch.tensor([0.3, 1.0, 1.8], dtype=torch.float64)).requires_grad_()
    for step in range(400):
        (gradient,) = torch.autograd.grad(restricted_isometry([weight]), weight)
        weight = (weight - 0.05 / (1 + step / 20) * gradient).detach().requires_grad_()
    assert singular_values(weight.detach()).tolist() == pytest.approx([1, 1, 1], abs=0.05)


def test_layers_count_alike_whatever_their_size() -> None:
    small, large = torch.zeros(2, 2), 2 * torch.eye(50)  # 1 and (4 - 1)^2 per row
    assert orthogonality(iter([small, large])).item() == pytest.approx(5.0)


@pytest.mark.parametrize(("shape", "floor"), [((6, 2, 3, 3), 3.0), ((3, 8), 2.5), ((8, 3), 2.0)])
def test_hinge_is_that_of_the_reshaped_singular_values(shape: tuple[int, ...], floor: float) -> None:
    weight = draw(*shape)
    expected = np.mean(np.maximum(0, floor - singular_values(weight)) ** 2)
    assert expected > 0
    assert sigma_min_hinge([weight], floor).item() == pytest.approx(expected)


def test_hinge_leaves_singular_values_above_the_floor_alone() -> None:
    weight = draw(3, 8).requires_grad_()
    (gradient,) = torch.autograd.grad(sigma_min_hinge([weight], floor=0.01), weight)
    assert gradient.abs().max().item() == 0


def test_descending_the_hinge_lifts_the_smallest_singular_value_and_keeps_the_largest() -> None:
    weight = torch.diag(torch.tensor([0.1, 5.0], dtype=torch.float64)).requires_grad_()
    for _ in range(40):
        (gradient,) = torch.autograd.grad(sigma_min_hinge([weight], floor=1.0), weight)
        weight = (weight - 0.3 * gradient).detach().requires_grad_()
    assert singular_values(weight.detach()).tolist() == pytest.approx([5.0, 1.0], abs=1e-3)


@pytest.mark.parametrize(
    "penalty", [orthogonality, restricted_isometry, lambda weights: sigma_min_hinge(weights, floor=3.0)]
)
def test_gradients_are_right(penalty: object) -> None:
    assert callable(penalty)
    weights = draw(4, 2, 2, 2).requires_grad_(), draw(3, 5).requires_grad_()
    assert torch.autograd.gradcheck(lambda *layers: penalty(layers), weights)


def test_autocast_does_not_shorten_the_gram_matrix() -> None:
    weight = draw(6, 2, 3, 3).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = orthogonality([weight]).item()
    assert inside == orthogonality([weight]).item()


def test_broken_weights_read_as_nan_instead_of_raising() -> None:
    broken = torch.full((3, 4), math.nan)
    assert orthogonality([broken]).isnan()
    assert sigma_min_hinge([broken], floor=1.0).isnan()
    assert restricted_isometry([broken]).isnan()


def test_no_layers_are_refused() -> None:
    with pytest.raises(UserError, match=r"no weight to regularize \(the list of layers\); switch the regularizer off"):
        orthogonality([])
