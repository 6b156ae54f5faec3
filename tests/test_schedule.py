from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from iecl.names import current_protocol
from iecl.schedule import LR_SCHEDULES, Clock, Ramp, lr_factor


def at(step: int, steps: int = 100) -> Clock:
    return Clock(seed=0, step=step, steps=steps, epoch=0, epochs=1)


@pytest.mark.parametrize(
    ("share", "value"),
    [(0, 0.996), (25, 0.996586), (50, 0.998), (75, 0.999414), (100, 1.0)],  # 1 - 0.004 (cos(pi x) + 1) / 2
)
def test_a_cosine_ramp_follows_the_published_values(share: int, value: float) -> None:
    assert Ramp(start=0.996, end=1.0).at(at(share)) == pytest.approx(value, abs=1e-6)


def test_a_linear_ramp_is_half_way_at_half_time() -> None:
    assert Ramp(start=0.9, end=0.99, shape="linear").at(at(50)) == pytest.approx(0.945)


def test_a_constant_ramp_does_not_move() -> None:
    assert {Ramp.constant(0.9).at(at(step)) for step in (0, 33, 100)} == {0.9}


def test_the_first_step_of_warm_up_already_moves() -> None:
    assert [lr_factor(at(step), warmup=4) for step in range(5)] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])


def test_the_learning_rate_ends_at_its_floor() -> None:
    assert lr_factor(at(100), warmup=10, floor=0.1) == pytest.approx(0.1)
    assert lr_factor(at(55), warmup=10) == pytest.approx(0.5)  # half way between 10 and 100


@pytest.mark.parametrize("schedule", LR_SCHEDULES)
def test_learning_rates_rise_over_the_warmup_and_never_after_it(schedule: str) -> None:
    factors = [lr_factor(at(step, 48), schedule, warmup=4) for step in range(48)]
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0]
    assert all(after <= before for before, after in pairwise(factors[4:]))
    ends = {"constant": 1.0, "multistep": 0.01, "poly": (1 / 48) ** 0.9, "cosine": 0.0}
    assert factors[-1] == pytest.approx(ends[schedule], abs=2e-3)


@pytest.mark.parametrize(
    ("schedule", "theirs"),
    [
        ("cosine", lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 24)),
        ("multistep", lambda optimizer: torch.optim.lr_scheduler.MultiStepLR(optimizer, [18, 22])),
        ("poly", lambda optimizer: torch.optim.lr_scheduler.PolynomialLR(optimizer, 24, power=0.9)),
        ("constant", lambda optimizer: torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)),
    ],
)
def test_a_schedule_is_torchs_of_that_name(schedule: str, theirs: Callable[[Optimizer], LRScheduler]) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
    scheduler = theirs(optimizer)
    for step in range(24):
        assert 0.5 * lr_factor(at(step, 24), schedule) == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-9)
        optimizer.step()
        scheduler.step()


def test_results_with_the_first_name_of_a_schedule_are_read() -> None:
    assert current_protocol({"schedule": "steps", "rate": 0.1}) == {"schedule": "multistep", "lr": 0.1}
    assert current_protocol({"schedule": "poly"}) == {"schedule": "poly"}
