"""Heads side by side: each is trained as if it were alone."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from iecl import counter
from iecl.errors import UserError
from iecl.evaluation.features import Features
from iecl.evaluation.linear import LinearSettings
from iecl.evaluation.linear_heads import Hyperparameters, LinearHeads, train_heads
from made_features import clouds


def test_weights_are_those_of_sgd_written_out() -> None:
    data = clouds(10, seed=1, spread=1.0, classes=3, width=4)
    settings = LinearSettings(epochs=3, batch_size=4, momentum=0.8, seed=7)
    heads = LinearHeads.empty(2, 3, 4)
    train_heads(heads, lambda epoch: data, [Hyperparameters(0.01, 0.0), Hyperparameters(0.5, 0.1)], settings)

    x, y = data.values.double().numpy(), np.eye(3)[data.labels.numpy()]
    x = np.concatenate([x, np.ones((10, 1))], axis=1)  # the last column is the bias
    weights, velocity = np.zeros((3, 5)), np.zeros((3, 5))
    for step in range(9):  # 3 epochs of 4, 4 and 2 rows
        epoch, number = divmod(step, 3)
        order = counter.permutation(counter.key(7, "probe/order", epoch), 10).numpy()[4 * number : 4 * number + 4]
        raised = np.exp(x[order] @ weights.T)
        slope = (raised / raised.sum(axis=1, keepdims=True) - y[order]).T @ x[order] / len(order)
        velocity = 0.8 * velocity + slope + 0.1 * weights
        weights = weights - 0.5 * (1 + np.cos(np.pi * step / 9)) / 2 * velocity
    # Float32 against float64 over nine steps.
    np.testing.assert_allclose(heads.weight[1].numpy(), weights[:, :4], atol=1e-5)
    np.testing.assert_allclose(heads.bias[1].numpy(), weights[:, 4], atol=1e-5)


def test_a_head_learns_beside_others_what_it_learns_alone() -> None:
    data, settings = clouds(200, seed=2, spread=2.0), LinearSettings(epochs=2, batch_size=64)
    grid = [Hyperparameters(0.001, 0.0), Hyperparameters(0.1, 1e-2), Hyperparameters(1.0, 1e-5)]
    together = LinearHeads.empty(3, 5, 16)
    train_heads(together, lambda epoch: data, grid, settings)
    for number, one in enumerate(grid):
        alone = LinearHeads.empty(1, 5, 16)
        train_heads(alone, lambda epoch: data, [one], settings)
        torch.testing.assert_close(together.weight[number], alone.weight[0], atol=1e-5, rtol=1e-4)  # order of sums
        torch.testing.assert_close(together.bias[number], alone.bias[0], atol=1e-5, rtol=1e-4)


def test_heads_of_another_width_are_not_taken_over_from_a_checkpoint(tmp_path: Path) -> None:
    data, settings = clouds(50, seed=6, spread=2.0), LinearSettings(epochs=2, batch_size=8)
    train_heads(
        LinearHeads.empty(1, 5, 16), lambda epoch: data, [Hyperparameters(0.03, 1e-5)], settings, folder=tmp_path
    )
    with pytest.raises(UserError, match=r"weight is float32 \[1, 5, 16\], not float32 \[2, 5, 16\]"):
        train_heads(
            LinearHeads.empty(2, 5, 16),
            lambda epoch: data,
            [Hyperparameters(0.03, 1e-5)] * 2,
            settings,
            folder=tmp_path,
        )


def test_the_same_seed_gives_the_same_bits_and_another_one_does_not() -> None:
    data = clouds(50, seed=6, spread=2.0)
    heads = [LinearHeads.empty(1, 5, 16) for _ in range(3)]
    for head, seed in zip(heads, (1, 1, 2), strict=True):
        train_heads(
            head, lambda epoch: data, [Hyperparameters(0.03, 1e-5)], LinearSettings(epochs=2, batch_size=8, seed=seed)
        )
    assert torch.equal(heads[0].weight, heads[1].weight)
    assert not torch.equal(heads[0].weight, heads[2].weight)


def test_metrics_are_shares_of_right_answers_and_the_mean_loss() -> None:
    data = clouds(70, seed=3, spread=2.0)
    heads = LinearHeads(torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(4)), torch.zeros(2, 5))
    metrics = heads.evaluate(data)
    for found, weight in zip(metrics, heads.weight, strict=True):
        scores = data.values @ weight.T
        assert found.top1 == pytest.approx((scores.argmax(dim=1) == data.labels).double().mean().item())
        assert found.loss == pytest.approx(cross_entropy(scores, data.labels).item(), rel=1e-5)
        assert found.top5 == 1.0


def test_a_head_that_diverged_is_never_right_and_never_chosen() -> None:
    data = clouds(30, seed=5, spread=1.0)
    large = Features(data.values * 1e20, data.labels, data.index)
    heads = LinearHeads.empty(2, 5, 16)
    train_heads(
        heads,
        lambda epoch: large,
        [Hyperparameters(1e30, 0.0), Hyperparameters(1e-40, 0.0)],
        LinearSettings(epochs=3, batch_size=8),
    )
    diverged, fine = heads.evaluate(large)
    assert (diverged.top1, diverged.top5, diverged.loss) == (0.0, 0.0, math.inf)
    assert fine.loss < diverged.loss
