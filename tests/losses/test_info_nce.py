"""InfoNCE in both forms: closed forms, a loop, gathered keys, queues, precision."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from iecl.losses.info_nce import info_nce, info_nce_queue

EYE = torch.eye(4, 8, dtype=torch.float64)
ANCHORS = torch.tensor([[1, 0], [0, 1], [1, 1]], dtype=torch.float64)
KEYS = torch.tensor([[1, 1], [-1, 1], [0, 1]], dtype=torch.float64)


def draw(seed: int, rows: int = 6, dim: int = 5) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(rows, dim)))


def slow_info_nce(anchors: Tensor, candidates: Tensor, answers: list[int], temperature: float) -> float:
    losses = []
    for anchor, answer in zip(anchors.numpy(), answers, strict=True):
        cosines = [anchor @ key / np.linalg.norm(anchor) / np.linalg.norm(key) for key in candidates.numpy()]
        losses.append(math.log(sum(math.exp((c - cosines[answer]) / temperature) for c in cosines)))
    return float(np.mean(losses))


@pytest.mark.parametrize("temperature", [0.05, 0.2, 1.0])
@pytest.mark.parametrize("negatives", [0, 3])
def test_collapse_costs_the_log_of_the_candidates_at_any_temperature(temperature: float, negatives: int) -> None:
    ones = torch.ones(4, 8, dtype=torch.float64)
    loss = info_nce(ones, ones, temperature, negatives=torch.ones(negatives, 8, dtype=torch.float64))
    assert loss.item() == pytest.approx(math.log(4 + negatives), abs=1e-9)


@pytest.mark.parametrize("queue", [8, 4096])
def test_collapse_against_a_queue_costs_the_log_of_its_length_plus_one(queue: int) -> None:
    loss = info_nce_queue(torch.ones(2, 4), torch.ones(2, 4), torch.ones(queue, 4), temperature=0.2)
    assert loss.item() == pytest.approx(math.log(queue + 1), rel=1e-6)


@pytest.mark.parametrize(("temperature", "value"), [(1.0, 0.743668381), (0.2, 0.020012253), (0.1, 0.000136191)])
def test_orthonormal_rows_cost_their_closed_form(temperature: float, value: float) -> None:
    loss = info_nce(EYE, EYE, temperature).item()
    assert loss == pytest.approx(value, abs=1e-9)
    assert loss == pytest.approx(math.log(1 + 3 * math.exp(-1 / temperature)), abs=1e-12)


@pytest.mark.parametrize(("temperature", "value"), [(0.5, 0.90327536), (0.1, 2.00413408)])
def test_small_example_has_its_known_value(temperature: float, value: float) -> None:
    assert info_nce(ANCHORS, KEYS, temperature).item() == pytest.approx(value, abs=5e-9)


@pytest.mark.parametrize(
    ("anchors", "keys", "temperature", "value"),
    [
        (torch.ones(4, 8), torch.ones(4, 8), 0.2, 1.10903549),
        (EYE, EYE, 1.0, 2.97467352),
        (EYE, EYE, 0.2, 0.01600980),
        (ANCHORS, KEYS, 0.5, 1.80655072),
        (ANCHORS, KEYS, 0.1, 0.80165363),
    ],
)
def test_two_sided_form_of_moco_v3_has_its_known_values(
    anchors: Tensor, keys: Tensor, temperature: float, value: float
) -> None:
    anchors, keys = anchors.double(), keys.double()
    both = info_nce(anchors, keys, temperature) + info_nce(keys, anchors, temperature)
    assert 2 * temperature * both.item() == pytest.approx(value, abs=5e-9)


def test_queue_of_orthogonal_rows_costs_its_closed_form() -> None:
    unit = torch.eye(8, dtype=torch.float64)
    loss = info_nce_queue(unit[:2], unit[:2], unit[2:], temperature=0.2)
    assert loss.item() == pytest.approx(math.log(1 + 6 * math.exp(-5)), abs=1e-9)


@pytest.mark.parametrize(("temperature", "value"), [(0.2, 6.1898), (0.1, 1.6844), (0.07, 0.0865)])
def test_perfect_keys_against_a_random_queue_cost_what_theory_says(temperature: float, value: float) -> None:
    generator = torch.Generator().manual_seed(0)
    anchors, queue = torch.randn(8, 128, generator=generator), torch.randn(65536, 128, generator=generator)
    loss = info_nce_queue(anchors, anchors, queue, temperature)
    assert loss.item() == pytest.approx(value, rel=0.02)


def test_loss_agrees_with_a_loop() -> None:
    anchors, keys, negatives = draw(0, 3), draw(1, 6), draw(2, 4)
    loss = info_nce(anchors, keys, 0.3, negatives=negatives, first=2)
    assert loss.item() == pytest.approx(slow_info_nce(anchors, torch.cat([keys, negatives]), [2, 3, 4], 0.3))


def test_queue_loss_agrees_with_a_loop_over_single_anchors() -> None:
    anchors, keys, queue = draw(0, 3), draw(1, 3), draw(2, 7)
    losses = [slow_info_nce(anchors[[i]], torch.cat([keys[[i]], queue]), [0], 0.3) for i in range(3)]
    assert info_nce_queue(anchors, keys, queue, 0.3).item() == pytest.approx(np.mean(losses))


def test_processes_with_gathered_keys_average_to_the_whole_batch() -> None:
    anchors, keys = draw(0), draw(1)
    parts = [info_nce(anchors[first : first + 2], keys, 0.2, first=first).item() for first in (0, 2, 4)]
    assert np.mean(parts) == pytest.approx(info_nce(anchors, keys, 0.2).item(), abs=1e-12)


def test_order_and_length_of_rows_do_not_matter() -> None:
    anchors, keys = draw(0), draw(1)
    order, lengths = torch.tensor([3, 1, 5, 0, 2, 4]), torch.tensor([1.0, 2, 3, 4, 5, 6])[:, None]
    changed = info_nce(lengths * anchors[order], lengths.flip(0) * keys[order], 0.2)
    assert changed.item() == pytest.approx(info_nce(anchors, keys, 0.2).item(), abs=1e-12)


@pytest.mark.parametrize("temperature", [0.01, 0.2])
def test_autocast_and_short_inputs_do_not_shorten_the_logits(temperature: float) -> None:
    anchors, keys, queue = draw(0).float(), draw(1).float(), draw(2).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = info_nce(anchors, keys, temperature), info_nce_queue(anchors, keys, queue, temperature)
        short = info_nce(anchors.bfloat16(), keys.bfloat16(), temperature)
    assert inside[0].item() == info_nce(anchors, keys, temperature).item()
    assert inside[1].item() == info_nce_queue(anchors, keys, queue, temperature).item()
    assert short.item() == info_nce(anchors.bfloat16().float(), keys.bfloat16().float(), temperature).item()


def test_single_precision_is_close() -> None:
    whole, short = (info_nce(draw(0).to(kind), draw(1).to(kind), 0.1).item() for kind in (torch.float64, torch.float32))
    assert short == pytest.approx(whole, abs=1e-5)


def test_gradients_are_right() -> None:
    rows = [draw(seed).requires_grad_() for seed in range(3)]
    assert torch.autograd.gradcheck(lambda a, k, n: info_nce(a, k, 0.3, negatives=n), rows)
    assert torch.autograd.gradcheck(lambda a, k, n: info_nce_queue(a, k, n, 0.3), rows)


def test_queue_may_be_overwritten_before_the_backward_pass() -> None:
    anchors, keys, queue = draw(0).requires_grad_(), draw(1), draw(2)
    (kept,) = torch.autograd.grad(info_nce_queue(anchors, keys, queue, 0.2), anchors)

    loss = info_nce_queue(anchors, keys, queue, 0.2)
    queue.copy_(draw(3))
    (overwritten,) = torch.autograd.grad(loss, anchors)

    assert torch.equal(overwritten, kept)


def test_one_pair_gives_no_signal() -> None:
    anchor = draw(0, rows=1).requires_grad_()
    loss = info_nce(anchor, draw(1, rows=1), 0.2)
    (gradient,) = torch.autograd.grad(loss, anchor)
    assert loss.item() == 0
    assert gradient.abs().max().item() == 0


def test_gradient_is_finite_at_collapse() -> None:
    anchors = torch.ones(4, 8, requires_grad=True)
    (gradient,) = torch.autograd.grad(info_nce(anchors, torch.ones(4, 8), 0.1), anchors)
    assert gradient.isfinite().all()


def test_decoupled_the_right_answer_is_no_part_of_the_denominator() -> None:
    loss = info_nce(EYE, EYE, 0.2, decoupled=True).item()
    assert loss == pytest.approx(math.log(3) - 5, abs=1e-12)  # three others at cosine 0, itself at 1
    queued = info_nce_queue(EYE[:2], EYE[:2], EYE[2:], 0.2, decoupled=True).item()
    assert queued == pytest.approx(math.log(2) - 5, abs=1e-12)


@pytest.mark.parametrize("decoupled", [False, True])
def test_two_answers_against_a_loop(decoupled: bool) -> None:
    anchors, keys, more = draw(0, 4), draw(1, 4), draw(2, 3)
    partners, shares = torch.tensor([1, 0, 3, 2]), torch.tensor([0.7, 0.7, 1.0, 1.0], dtype=torch.float64)
    losses = []
    for i in range(4):
        unit = [row / row.norm() for row in (*keys, *more)]
        scores = [float(anchors[i] / anchors[i].norm() @ row) / 0.3 for row in unit]
        answers = {i: float(shares[i]), int(partners[i]): 1 - float(shares[i])}
        kept = [math.exp(s) for j, s in enumerate(scores) if not (decoupled and j in answers)]
        losses.append(math.log(sum(kept)) - sum(weight * scores[j] for j, weight in answers.items()))
    found = info_nce(anchors, keys, 0.3, more, decoupled=decoupled, partners=partners, shares=shares)
    assert found.item() == pytest.approx(float(np.mean(losses)), abs=1e-12)


def test_a_share_of_one_is_one_answer() -> None:
    anchors, keys = draw(3), draw(4)
    partners, shares = torch.arange(6).flip(0), torch.ones(6, dtype=torch.float64)
    assert info_nce(anchors, keys, 0.2, partners=partners, shares=shares).item() == pytest.approx(
        info_nce(anchors, keys, 0.2).item(), abs=1e-12
    )
