"""Arms take turns, and are compared round by round."""

import pytest
from benchmarks.bench.effort import Effort
from benchmarks.bench.turns import ratios, seconds, summary, take_turns


def test_arms_take_turns_and_the_first_rounds_are_left_out() -> None:
    order: list[str] = []

    def arm(name: str) -> float:
        order.append(name)
        return float(len(order))

    found = take_turns({"a": lambda: arm("a"), "b": lambda: arm("b")}, rounds=2, warm=1)

    assert order == ["a", "b"] * 3
    assert found == {"a": [3.0, 5.0], "b": [4.0, 6.0]}


def test_without_a_warm_round_all_count() -> None:
    assert take_turns({"a": lambda: 1.0}, rounds=3, warm=0) == {"a": [1.0] * 3}


def test_ratios_are_taken_within_a_round() -> None:
    # A machine that is ten times slower in the second round changes no ratio.
    assert ratios({"host": [1.0, 10.0], "block": [2.0, 20.0]}, "host") == {"block": [2.0, 2.0]}


def test_ratios_of_different_numbers_of_rounds_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        ratios({"host": [1.0], "block": [2.0, 20.0]}, "host")


def test_a_summary_keeps_every_value() -> None:
    found = summary([3.0, 1.0, 2.0, 5.0, 4.0])
    assert found == {"median": 3.0, "quartiles": [1.5, 4.5], "values": [3.0, 1.0, 2.0, 5.0, 4.0]}
    assert summary([7.0]) == {"median": 7.0, "quartiles": [7.0, 7.0], "values": [7.0]}
    assert summary([1.0, 9.0])["quartiles"] == [1.0, 9.0]


def test_seconds_are_those_of_the_clock() -> None:
    ticks = iter([2.0, 5.0])
    assert seconds(lambda: None, lambda: next(ticks)) == 3.0


def test_rounds_are_as_asked_or_as_usual_or_few() -> None:
    assert Effort().rounds_of(7) == 7
    assert Effort(is_quick=True).rounds_of(7) == 2
    assert Effort(is_quick=True).rounds_of(7, quick=1) == 1
    assert Effort(is_quick=True, rounds=3).rounds_of(7) == 3


def test_rows_have_the_goals_that_name_them_and_a_quick_form_has_none() -> None:
    goals = {"a": "at least 2", "somewhere else": "at least 3"}
    rows = Effort().rows({"a": [1.0], "b": [1.0]}, goals)
    assert rows["a"]["goal"] == "at least 2"
    assert "goal" not in rows["b"]
    assert set(rows) == {"a", "b"}
    assert "goal" not in Effort(is_quick=True).rows({"a": [1.0]}, goals)["a"]


def test_what_is_left_out_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    effort = Effort()
    with caplog.at_level("INFO", "iecl.bench"):
        effort.leave_out("kornia", "not installed")
        effort.leave_out("kornia", "not installed")
    assert effort.left_out == ["kornia (not installed)"]
    assert caplog.messages == ["left out: kornia (not installed)"]
