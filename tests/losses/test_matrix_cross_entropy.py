"""Matrix-SSL: closed forms, the exact logarithm, loops, where the series holds."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from iecl.losses.matrix_cross_entropy import matrix_alignment, matrix_cross_entropy, matrix_uniformity


def hadamard() -> Tensor:
    """Four columns of the 8×8 Sylvester matrix: mean 0, biased variance 1, uncorrelated."""
    two = torch.tensor([[1.0, 1], [1, -1]], dtype=torch.float64)
    return torch.kron(torch.kron(two, two), two)[:, 1:5]


ONES = torch.ones(8, 4, dtype=torch.float64)


def draw(seed: int, rows: int = 6, dim: int = 4) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(rows, dim)))


@pytest.mark.parametrize(
    ("size", "uniformity", "alignment", "exact_uniformity", "exact_alignment"),
    [
        (1.0, -0.89192708, -1.11490885, -0.89257421, -1.11571776),
        (0.5, 0.57486979, 0.86230469, 0.57536414, 0.86304622),
    ],
)
def test_uncorrelated_features_have_their_closed_form(
    size: float, uniformity: float, alignment: float, exact_uniformity: float, exact_alignment: float
) -> None:
    z = hadamard()
    for order, values in ((4, (uniformity, alignment)), (60, (exact_uniformity, exact_alignment))):
        assert matrix_uniformity(z, z, weight=size, ridge=size, order=order).item() == pytest.approx(
            values[0], abs=1e-8
        )
        assert matrix_alignment(z, z, ridge=size, order=order).item() == pytest.approx(values[1], abs=1e-8)


@pytest.mark.parametrize(("order", "value"), [(4, 1.36458333), (60, 1.38629436)])
def test_collapse_costs_the_log_of_the_ridge(order: int, value: float) -> None:
    assert matrix_uniformity(ONES, ONES, weight=0.5, ridge=0.5, order=order).item() == pytest.approx(value, abs=1e-8)
    assert matrix_alignment(ONES, ONES, ridge=0.5, order=order).item() == pytest.approx(value, abs=1e-8)


def test_collapse_costs_more_than_spread_features() -> None:
    for ridge in (0.5, 1.0):
        for loss in (matrix_uniformity, matrix_alignment):
            assert loss(ONES, ONES, ridge=ridge) > loss(hadamard(), hadamard(), ridge=ridge)
    assert matrix_uniformity(ONES, ONES).item() == 0


def test_losses_agree_with_a_loop_over_powers() -> None:
    k, z = (draw(seed).numpy() for seed in (0, 1))
    k, z = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (k, z))
    center = np.eye(6) - np.ones((6, 6)) / 6

    def entropy(p: np.ndarray, q: np.ndarray) -> float:
        x = q - np.eye(4)
        series = sum((-1) ** (n + 1) / n * np.linalg.matrix_power(x, n) for n in range(1, 5))
        return float(-np.trace(p @ series))

    cross, targets, online = (a.T @ center @ b / 6 for a, b in ((k, z), (k, k), (z, z)))
    eye = np.eye(4)
    uniformity = matrix_uniformity(draw(0), draw(1), weight=0.7, ridge=0.9).item()
    assert uniformity == pytest.approx(entropy(0.7 * eye, cross + 0.9 * eye))
    alignment = matrix_alignment(draw(0), draw(1), ridge=0.9).item()
    assert alignment == pytest.approx(entropy(targets + 0.9 * eye, online + 0.9 * eye))


def test_a_long_series_is_the_matrix_logarithm() -> None:
    z = draw(0)
    gram = z.T @ z / z.square().sum()  # eigenvalues between 0 and 1
    q = gram + 0.5 * torch.eye(4, dtype=torch.float64)
    values, vectors = torch.linalg.eigh(q)
    exact = -torch.trace(gram @ vectors @ values.log().diag() @ vectors.T).item()
    assert matrix_cross_entropy(gram, q, order=200).item() == pytest.approx(exact, abs=1e-9)


def test_with_a_ridge_up_to_one_the_series_holds_for_any_rows() -> None:
    one_direction = draw(0, 64, 1) @ draw(1, 1, 4)
    for ridge in (0.1, 0.5, 1.0):
        unit = one_direction / one_direction.norm(dim=1, keepdim=True)
        x = (unit - unit.mean(0)).T @ unit / 64 + (ridge - 1) * torch.eye(4)
        assert torch.linalg.eigvals(x).abs().max().item() <= 1 + 1e-9


def test_order_and_length_of_rows_do_not_matter_and_exchange_does() -> None:
    k, z, order = draw(0), draw(1), torch.tensor([3, 1, 0, 2, 5, 4])
    assert matrix_uniformity(2 * k[order], 3 * z[order]).item() == pytest.approx(matrix_uniformity(k, z).item())
    assert matrix_alignment(2 * k[order], 3 * z).item() == pytest.approx(matrix_alignment(k, z).item())
    assert matrix_alignment(z, k).item() != pytest.approx(matrix_alignment(k, z).item())


def test_one_row_is_collapse_without_gradient() -> None:
    z = draw(1, rows=1).requires_grad_()
    loss = matrix_uniformity(draw(0, rows=1), z, ridge=0.5, order=60)
    (gradient,) = torch.autograd.grad(loss, z)
    assert loss.item() == pytest.approx(-4 * math.log(0.5))
    assert gradient.abs().max().item() < 1e-12


def test_gradient_is_right() -> None:
    rows = draw(0).requires_grad_(), draw(1).requires_grad_()
    assert torch.autograd.gradcheck(lambda k, z: matrix_uniformity(k, z) + matrix_alignment(k, z), rows)


def test_autocast_does_not_shorten_the_powers() -> None:
    k, z = draw(0).float(), draw(1).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = matrix_alignment(k, z).item()
    assert inside == matrix_alignment(k, z).item()
    assert inside == pytest.approx(matrix_alignment(k.double(), z.double()).item(), rel=1e-5)
