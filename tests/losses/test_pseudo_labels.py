"""Cross-entropy with cluster labels: closed form, a loop, what has no label."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from iecl.losses.pseudo_labels import NO_LABEL, pseudo_label_loss

LABELS = torch.tensor([0, 2, 1, 2, 0])


def draw(seed: int, rows: int = 5, count: int = 3) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(rows, count)))


def test_own_centroids_cost_their_closed_form() -> None:
    loss = pseudo_label_loss(torch.eye(3, dtype=torch.float64) / 0.1, torch.arange(3)).item()
    assert loss == pytest.approx(math.log(1 + 2 * math.exp(-10)), abs=1e-12)
    assert loss == pytest.approx(0.000090796, abs=1e-9)


@pytest.mark.parametrize("count", [3, 3000])
def test_flat_logits_cost_the_log_of_the_clusters(count: int) -> None:
    assert pseudo_label_loss(torch.zeros(4, count), torch.arange(4) % 3).item() == pytest.approx(math.log(count))


def test_loss_agrees_with_a_loop() -> None:
    logits, weights = draw(0), torch.tensor([0.5, 2.0, 1.0, 2.0, 0.5])
    costs = [
        weight * (math.log(sum(math.exp(x) for x in row)) - row[label])
        for row, label, weight in zip(logits.tolist(), LABELS.tolist(), weights.tolist(), strict=True)
    ]
    assert pseudo_label_loss(logits, LABELS, weights).item() == pytest.approx(sum(costs) / 5)


def test_rows_without_a_label_cost_nothing_and_do_not_count() -> None:
    logits, labels = draw(1).requires_grad_(), LABELS.clone()
    labels[[1, 3]] = NO_LABEL
    loss = pseudo_label_loss(logits, labels)
    assert loss.item() == pytest.approx(pseudo_label_loss(logits[[0, 2, 4]], LABELS[[0, 2, 4]]).item())
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient[[1, 3]].abs().max() == 0


def test_a_batch_without_any_label_costs_zero_and_not_nan() -> None:
    logits = draw(2).requires_grad_()
    loss = pseudo_label_loss(logits, torch.full((5,), NO_LABEL), torch.ones(5))
    (gradient,) = torch.autograd.grad(loss, logits)
    assert (loss.item(), gradient.abs().max().item()) == (0, 0)


def test_halves_of_a_batch_average_to_the_whole() -> None:
    logits, labels = draw(3, rows=8), torch.arange(8) % 3
    weights = torch.linspace(0.1, 2, 8)
    halves = [pseudo_label_loss(logits[some], labels[some], weights[some]) for some in (slice(4), slice(4, 8))]
    assert torch.stack(halves).mean().item() == pytest.approx(pseudo_label_loss(logits, labels, weights).item())


def test_weighing_by_inverse_size_equals_drawing_clusters_first() -> None:
    logits, labels = draw(4, rows=6), torch.tensor([0, 0, 0, 0, 1, 2])
    sizes = labels.bincount()
    weighted = pseudo_label_loss(logits, labels, 6 / (3 * sizes[labels]))
    drawn = torch.stack([pseudo_label_loss(logits[labels == c], labels[labels == c]) for c in range(3)]).mean()
    assert weighted.item() == pytest.approx(drawn.item())


def test_autocast_does_not_shorten_the_logits() -> None:
    logits = draw(5).half()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = pseudo_label_loss(logits, LABELS)
    assert inside.item() == pseudo_label_loss(logits.float(), LABELS).item()
