"""What every row of the tables of entropies and divergences promises."""

import math
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from iecl.errors import UserError
from iecl.estimators import DIVERGENCES, ENTROPIES

SCALE_GAIN = {"gaussian-logdet": 4 * math.log(3), "knn": 4 * math.log(3), "renyi": 0, "uniformity": 0, "vmf-kde": 0}
"""What 3 z has more than z for rows of width 4; the coding rate has no such law and its own test."""

ZERO_FOR_ITSELF = ["gaussian-diag", "gaussian-full", "softmax", "mmd"]
ANY_BASIS = ["gaussian-full", "printed", "knn", "mmd"]
"""Columns mean nothing to these; the diagonal and the softmax KL read them one by one."""


def draw(seed: int, rows: int = 12, dim: int = 4) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(rows, dim)))


def rotation(dim: int = 4) -> Tensor:
    return torch.linalg.qr(draw(99, dim, dim)).Q


every_entropy = pytest.mark.parametrize("entropy", [row.load() for row in ENTROPIES.values()], ids=list(ENTROPIES))
every_divergence = pytest.mark.parametrize(
    "divergence", [row.load() for row in DIVERGENCES.values()], ids=list(DIVERGENCES)
)
Function = Callable[..., Tensor]


@every_entropy
@given(seed=st.integers(0, 10_000))
@settings(derandomize=True, deadline=None, max_examples=10)
def test_entropy_does_not_depend_on_order_or_basis(entropy: Function, seed: int) -> None:
    z = draw(seed)
    value = entropy(z).item()
    assert entropy(z.flip(0)).item() == pytest.approx(value, abs=1e-9)
    assert entropy(z @ rotation()).item() == pytest.approx(value, abs=1e-9)


@pytest.mark.parametrize(("name", "gain"), SCALE_GAIN.items())
def test_entropy_scales_as_declared(name: str, gain: float) -> None:
    entropy, z = ENTROPIES[name].load(), draw(0)
    # The floor of the log-determinant's covariance, 1e-6, is the only thing that breaks the law.
    assert (entropy(3 * z) - entropy(z)).item() == pytest.approx(gain, abs=1e-4)


@every_entropy
def test_spread_rows_have_more_entropy_than_crowded_ones(entropy: Function) -> None:
    crowded, spread = torch.ones(4, dtype=torch.float64) + 0.2 * draw(0), draw(0)
    unit = [rows / rows.norm(dim=1, keepdim=True) for rows in (crowded, spread)]
    assert entropy(unit[0]).item() < entropy(unit[1]).item()


@every_entropy
def test_entropy_of_one_row_is_refused(entropy: Function) -> None:
    with pytest.raises(UserError, match=r"needs at least \d rows \(embeddings of shape \(1, 4\)\); use a larger batch"):
        entropy(torch.ones(1, 4))


@every_entropy
def test_entropy_of_maps_is_refused(entropy: Function) -> None:
    with pytest.raises(UserError, match=r"needs a matrix, one row per image \(embeddings of shape \(8, 4, 2, 2\)\)"):
        entropy(torch.ones(8, 4, 2, 2))


@every_entropy
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("constant", [0.0, 1.0])
def test_collapsed_rows_give_a_finite_entropy_and_gradient(
    entropy: Function, constant: float, dtype: torch.dtype
) -> None:
    z = torch.full((8, 4), constant, dtype=dtype, requires_grad=True)
    value = entropy(z)
    (gradient,) = torch.autograd.grad(value, z)
    assert value.isfinite()
    assert gradient.isfinite().all()


@every_entropy
def test_entropy_in_single_precision_is_close(entropy: Function) -> None:
    z = draw(0, rows=64, dim=8)
    assert entropy(z.float()).item() == pytest.approx(entropy(z).item(), rel=1e-5, abs=1e-5)


@every_entropy
def test_entropy_is_not_shortened_by_autocast(entropy: Function) -> None:
    z = draw(0).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside, short = entropy(z), entropy(z.bfloat16())
    assert inside.item() == entropy(z).item()
    assert short.item() == entropy(z.bfloat16().float()).item()
    assert short.dtype == torch.float32


@every_entropy
def test_entropy_gradient_is_right(entropy: Function) -> None:
    assert torch.autograd.gradcheck(entropy, (draw(0, rows=6, dim=3).requires_grad_(),))


@every_entropy
def test_entropy_of_broken_rows_is_nan(entropy: Function) -> None:
    assert entropy(torch.full((8, 4), math.nan)).isnan()


@every_divergence
def test_divergence_does_not_depend_on_order(divergence: Function) -> None:
    p, q = draw(0), draw(1) + 1
    assert divergence(p.flip(0), q.flip(0)).item() == pytest.approx(divergence(p, q).item(), abs=1e-9)


@pytest.mark.parametrize("name", ANY_BASIS)
def test_divergence_does_not_depend_on_the_basis(name: str) -> None:
    divergence, p, q = DIVERGENCES[name].load(), draw(0), draw(1) + 1
    assert divergence(p @ rotation(), q @ rotation()).item() == pytest.approx(divergence(p, q).item(), abs=1e-9)


@pytest.mark.parametrize("name", ZERO_FOR_ITSELF)
@given(seed=st.integers(0, 10_000))
@settings(derandomize=True, deadline=None, max_examples=10)
def test_divergence_is_positive_and_zero_only_from_itself(name: str, seed: int) -> None:
    divergence, p, q = DIVERGENCES[name].load(), draw(seed), draw(seed + 1)
    assert divergence(p, p).item() == pytest.approx(0, abs=1e-9)
    assert divergence(p, q).item() > 1e-3


@pytest.mark.parametrize("name", ["gaussian-diag", "gaussian-full", "knn", "mmd"])
def test_divergence_ignores_a_common_scale(name: str) -> None:
    divergence, p, q = DIVERGENCES[name].load(), draw(0), draw(1) + 1
    assert divergence(3 * p, 3 * q).item() == pytest.approx(divergence(p, q).item(), abs=1e-4)  # the floor of 1e-6


def test_printed_divergence_follows_a_common_scale() -> None:
    divergence, p, q = DIVERGENCES["printed"].load(), draw(0), draw(1) + 1
    assert (divergence(3 * p, 3 * q) - divergence(p, q)).item() == pytest.approx(2 * 4 * math.log(3), abs=1e-4)


@pytest.mark.parametrize("name", sorted(set(DIVERGENCES) - {"mmd"}))
def test_swapping_changes_every_divergence(name: str) -> None:
    divergence, p, q = DIVERGENCES[name].load(), draw(0), 2 * draw(1) + 1
    assert abs(divergence(p, q) - divergence(q, p)).item() > 0.01


def test_swapping_leaves_the_mmd_alone() -> None:
    mmd, p, q = DIVERGENCES["mmd"].load(), draw(0), 2 * draw(1) + 1
    assert mmd(p, q).item() == pytest.approx(mmd(q, p).item(), abs=1e-12)


@pytest.mark.parametrize("name", sorted(set(DIVERGENCES) - {"softmax"}))
@pytest.mark.parametrize(("rows_p", "rows_q"), [(1, 8), (8, 1)])
def test_divergence_of_one_row_is_refused(name: str, rows_p: int, rows_q: int) -> None:
    with pytest.raises(UserError, match=r"needs at least \d rows \(embeddings of shape \(1, 4\)\)"):
        DIVERGENCES[name].load()(torch.ones(rows_p, 4), torch.ones(rows_q, 4))


@every_divergence
@pytest.mark.parametrize("constant", [0.0, 1.0])
def test_collapsed_sets_give_a_finite_divergence_and_gradient(divergence: Function, constant: float) -> None:
    p = torch.full((8, 4), constant, requires_grad=True)
    for q in (draw(1, rows=8).float(), torch.full((8, 4), constant)):
        value = divergence(p, q)
        (gradient,) = torch.autograd.grad(value, p)
        assert value.isfinite()
        assert gradient.isfinite().all()


@every_divergence
def test_divergence_in_single_precision_is_close(divergence: Function) -> None:
    p, q = draw(0, rows=64, dim=8), draw(1, rows=64, dim=8) + 1
    assert divergence(p.float(), q.float()).item() == pytest.approx(divergence(p, q).item(), rel=1e-5, abs=1e-5)


@every_divergence
def test_divergence_is_not_shortened_by_autocast(divergence: Function) -> None:
    p, q = draw(0).float(), draw(1).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside, short = divergence(p, q), divergence(p.bfloat16(), q=q.bfloat16())
    assert inside.item() == divergence(p, q).item()
    assert short.item() == divergence(p.bfloat16().float(), q.bfloat16().float()).item()


@pytest.mark.parametrize("name", sorted(set(DIVERGENCES) - {"mmd"}))
def test_divergence_gradient_is_right_on_both_sides(name: str) -> None:
    sides = draw(0, rows=6, dim=3).requires_grad_(), (draw(1, rows=6, dim=3) + 1).requires_grad_()
    assert torch.autograd.gradcheck(DIVERGENCES[name].load(), sides)


def test_mmd_gradient_is_right_on_both_sides() -> None:
    # At a fixed bandwidth: the median is a constant by declaration, and finite differences would see it move.
    mmd = DIVERGENCES["mmd"].load()
    sides = draw(0, rows=6, dim=3).requires_grad_(), (draw(1, rows=6, dim=3) + 1).requires_grad_()
    assert torch.autograd.gradcheck(lambda p, q: mmd(p, q, bandwidth_squared=2.0), sides)


def test_reading_the_tables_does_not_import_torch() -> None:
    question = "import sys, iecl.estimators; print('torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", question], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"
