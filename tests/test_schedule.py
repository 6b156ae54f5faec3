import pytest

from iecl.schedule import Clock, Ramp, warm_cosine


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
    assert [warm_cosine(at(step), warmup=4) for step in range(5)] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])


def test_the_rate_ends_at_its_floor() -> None:
    assert warm_cosine(at(100), warmup=10, floor=0.1) == pytest.approx(0.1)
    assert warm_cosine(at(55), warmup=10) == pytest.approx(0.5)  # half way between 10 and 100
