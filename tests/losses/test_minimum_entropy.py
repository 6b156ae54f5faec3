"""MinEnt's loss and targets: closed forms, a loop, ties."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from iecl.losses.minimum_entropy import minimum_entropy, nearest_one_hot

ONE = torch.tensor([[2, 0, 1], [0, 3, 1], [1, 1, 0], [0, 0, 4]], dtype=torch.float64)
TWO = torch.tensor([[1, 1, 0], [0, 2, 0], [2, 0, 1], [1, 0, 3]], dtype=torch.float64)


def draw(seed: int, rows: int = 6, dim: int = 4) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(rows, dim)))


def minent(first: Tensor, second: Tensor, temperature: float = 1.0) -> Tensor:
    return minimum_entropy(first, second, nearest_one_hot(first), nearest_one_hot(second), temperature)


def test_flat_outputs_cost_the_log_of_their_length() -> None:
    assert minent(torch.zeros(6, 5).double(), torch.zeros(6, 5).double()).item() == pytest.approx(1.609437912, abs=1e-9)


def test_certain_outputs_cost_next_to_nothing() -> None:
    sure = 10 * torch.eye(4, dtype=torch.float64)
    assert minent(sure, sure).item() == pytest.approx(math.log(1 + 3 * math.exp(-10)), abs=1e-12)
    assert minent(sure, sure).item() == pytest.approx(0.000136191, abs=1e-9)


def test_targets_come_from_standardized_columns_and_logits_do_not() -> None:
    assert nearest_one_hot(ONE).tolist() == [0, 1, 0, 2]
    assert nearest_one_hot(TWO).tolist() == [1, 1, 0, 2]  # as they are, the first row's largest entry would be 0
    assert minent(ONE, TWO).item() == pytest.approx(0.64430183, abs=1e-8)


def test_equal_rows_all_have_target_0_so_that_collapse_is_cheap() -> None:
    equal = torch.tensor([[5.0, 0, 0]], dtype=torch.float64).repeat(6, 1)
    assert nearest_one_hot(equal).tolist() == [0] * 6
    assert minent(equal, equal).item() == pytest.approx(0.013385902, abs=1e-9)


def test_loss_agrees_with_a_loop() -> None:
    first, second = draw(0).numpy(), draw(1).numpy()
    targets = [((g - g.mean(0)) / np.sqrt(g.var(0) + 1e-5)).argmax(1) for g in (first, second)]
    costs = []
    for logits, theirs in ((first, targets[1]), (second, targets[0])):
        for row, target in zip(logits, theirs, strict=True):
            costs.append(math.log(sum(math.exp(x / 0.5) for x in row)) - row[target] / 0.5)
    assert minent(draw(0), draw(1), 0.5).item() == pytest.approx(np.mean(costs))


def test_targets_are_those_of_a_batch_norm_in_training_mode() -> None:
    g = draw(2, rows=32, dim=8).float()
    assert torch.equal(nearest_one_hot(g), nn.BatchNorm1d(8)(g).argmax(1))


def test_views_and_order_do_not_matter() -> None:
    order = torch.tensor([3, 1, 0, 2])
    assert minent(TWO[order], ONE[order]).item() == pytest.approx(minent(ONE, TWO).item(), abs=1e-12)


def test_only_the_logits_carry_gradient() -> None:
    first, second = draw(3).requires_grad_(), draw(4).requires_grad_()
    (gradient,) = torch.autograd.grad(minent(first, second), first)
    wanted = (first.softmax(1) - nn.functional.one_hot(nearest_one_hot(second), 4)) / 12
    assert torch.allclose(gradient, wanted)


def test_autocast_and_short_inputs_do_not_shorten_the_logits() -> None:
    first, second = draw(5).half(), draw(6).half()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = minent(first, second, 0.1)
    assert inside.item() == minent(first.float(), second.float(), 0.1).item()


def test_similarities_to_their_own_centers_cost_their_known_value() -> None:
    same = torch.eye(4, dtype=torch.float64)  # features that are the centers, as in S3OC
    assert minent(same, same, temperature=0.1).item() == pytest.approx(0.000136191, abs=1e-9)
