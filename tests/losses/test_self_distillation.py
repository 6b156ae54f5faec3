"""DINO's loss: closed forms, a loop, lightly, what carries gradient."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from iecl.losses.self_distillation import self_distillation

ONE = torch.tensor([[0.9, 0.1, -0.2], [0.2, 0.8, 0.1], [-0.1, 0.3, 0.7], [0.6, 0.5, 0.1]], dtype=torch.float64)
TWO = torch.tensor([[0.8, 0, 0.1], [0.1, 0.9, -0.3], [0.2, 0.1, 0.6], [0.4, 0.7, 0]], dtype=torch.float64)
BOTH = torch.stack([ONE, TWO])
ZERO = torch.zeros(3, dtype=torch.float64)


def draw(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).uniform(-1, 1, size=shape))


@pytest.mark.parametrize(("count", "value"), [(5, 1.609437912), (4096, 8.317766), (65536, 11.090355)])
def test_flat_outputs_cost_the_log_of_their_length(count: int, value: float) -> None:
    flat = torch.zeros(2, 2, count, dtype=torch.float64)
    loss = self_distillation(flat, flat, torch.zeros(count, dtype=torch.float64), 0.1, 0.04).item()
    assert loss == pytest.approx(math.log(count), abs=1e-9)
    assert loss == pytest.approx(value, abs=1e-6)


def test_small_examples_have_their_known_values() -> None:
    def one_sided(center: Tensor) -> float:
        return self_distillation(BOTH, ONE[None], center, 0.1, 0.04).item()  # the student's first view is skipped

    assert one_sided(ZERO) == pytest.approx(0.71211460, abs=1e-8)
    assert one_sided(ONE.mean(0)) == pytest.approx(0.73844168, abs=1e-8)
    assert self_distillation(BOTH, BOTH, ZERO, 0.1, 0.04).item() == pytest.approx(0.523584481, abs=1e-9)


def test_loss_agrees_with_a_loop() -> None:
    students, teachers, center = draw(0, 4, 5, 3), draw(1, 2, 5, 3), draw(2, 3)
    terms = []
    for full in range(2):
        for view in range(4):
            for row in range(5):
                if view != full:
                    target = [math.exp((teachers[full, row, k] - center[k]) / 0.07) for k in range(3)]
                    guess = [math.exp(students[view, row, k] / 0.2) for k in range(3)]
                    terms.append(
                        -sum(t / sum(target) * math.log(g / sum(guess)) for t, g in zip(target, guess, strict=True))
                    )
    assert self_distillation(students, teachers, center, 0.2, 0.07).item() == pytest.approx(np.mean(terms))


def test_one_direction_that_always_wins_costs_nothing_unless_it_is_centerd_away() -> None:
    peak = torch.zeros(2, 4, 3, dtype=torch.float64)
    peak[..., 0] = 9
    assert self_distillation(peak, peak, ZERO, 0.1, 0.04).item() == pytest.approx(0, abs=1e-9)
    assert self_distillation(peak, peak, peak[0, 0], 0.1, 0.04).item() > 10


def test_the_order_of_rows_and_of_the_two_views_does_not_matter() -> None:
    order = torch.tensor([2, 0, 3, 1])
    changed = BOTH.flip(0)[:, order]
    assert self_distillation(changed, changed, ZERO, 0.1, 0.04).item() == pytest.approx(0.523584481, abs=1e-9)


def test_the_teacher_gets_no_gradient_and_the_students_is_right() -> None:
    teachers, students = draw(3, 2, 4, 3).requires_grad_(), draw(4, 3, 4, 3).requires_grad_()
    self_distillation(students, teachers, ZERO, 0.1, 0.04).backward()
    assert teachers.grad is None
    assert torch.autograd.gradcheck(lambda s: self_distillation(s, teachers, ZERO, 0.3, 0.1), (students,))


def test_autocast_and_short_inputs_do_not_shorten_the_logits() -> None:
    short, center = BOTH.half(), ZERO.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = self_distillation(short, short, center, 0.1, 0.04)
    assert inside.item() == self_distillation(short.float(), short.float(), center, 0.1, 0.04).item()
    whole = self_distillation(BOTH.float(), BOTH.float(), center, 0.1, 0.04).item()
    assert whole == pytest.approx(0.523584481, abs=1e-5)


@pytest.mark.parametrize("small", [0, 3])
def test_the_loss_equals_that_of_lightly(small: int) -> None:
    lightly = pytest.importorskip("lightly.loss", reason="compares with lightly")
    students, teachers, center = draw(5, 2 + small, 8, 6).float(), draw(6, 2, 8, 6).float(), draw(7, 6).float()
    theirs = lightly.DINOLoss(output_dim=6, teacher_temp=0.04, warmup_teacher_temp=0.04, student_temp=0.1)
    theirs.center.copy_(center.view_as(theirs.center))
    other = theirs(list(teachers), list(students), epoch=0).item()
    assert self_distillation(students, teachers, center, 0.1, 0.04).item() == pytest.approx(other, rel=1e-5)
