from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iecl.errors import UserError
from iecl.schedule import Ramp
from iecl.settings import as_values, build, merge, parse_assignment, read_toml, setting, to_toml


@dataclass(frozen=True, kw_only=True)
class Example:
    temperature: float = setting(0.2, "divides the cosines", above=0)
    mode: str = setting("fast", "how", choices=("fast", "slow"))
    names: tuple[str, ...] = setting((), "some names")
    keep: Ramp = setting(Ramp.constant(0.99), "share kept")
    count: int = setting(3, "how many", low=1, high=9)
    is_on: bool = setting(False, "whether")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temprature": 0.1}, "[x] has no setting 'temprature' (here); did you mean temperature?"),
        ({"temperature": 0}, "x.temperature is 0.0, it must be above 0 (here); the default is 0.2"),
        ({"temperature": "warm"}, "x.temperature is 'warm', it must be a number (here)"),
        ({"mode": "fst"}, "x.mode is 'fst' (here); did you mean fast?"),
        ({"count": 10}, "x.count is 10, it must be at most 9 (here); the default is 3"),
        ({"count": 0}, "x.count is 0, it must be at least 1 (here); the default is 3"),
        ({"count": 2.5}, "x.count is 2.5, it must be a whole number (here)"),
        ({"count": True}, "x.count is True, it must be a whole number (here)"),
        ({"is_on": 1}, "x.is_on is 1, it must be true or false (here)"),
        ({"names": "a"}, "x.names is 'a', it must be a list in brackets (here)"),
        ({"keep": "a"}, "x.keep is 'a', it must be a number, or a table with start, end and shape (here)"),
        ({"keep": {"strat": 1.0}}, "[x.keep] has no setting 'strat' (here); did you mean start?"),
    ],
)
def test_a_wrong_value_is_named_with_what_would_be_right(values: dict[str, object], message: str) -> None:
    with pytest.raises(UserError) as caught:
        build(Example, values, "x", "here")
    assert str(caught.value) == message


def test_a_whole_number_is_a_float_where_one_is_wanted() -> None:
    assert build(Example, {"temperature": 1}, "x").temperature == 1.0


def test_a_ramp_may_be_one_number_or_a_table() -> None:
    assert build(Example, {"keep": 0.9}, "x").keep == Ramp.constant(0.9)
    assert build(Example, {"keep": {"start": 0.9, "end": 1.0}}, "x").keep == Ramp(start=0.9, end=1.0)


@settings(derandomize=True, deadline=None, max_examples=50)
@given(
    temperature=st.floats(1e-300, 1e300),
    names=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), max_size=3),
    start=st.floats(allow_nan=False),
    count=st.integers(1, 9),
    is_on=st.booleans(),
)
def test_settings_survive_the_way_through_toml(
    tmp_path_factory: pytest.TempPathFactory,
    temperature: float,
    names: list[str],
    start: float,
    count: int,
    is_on: bool,
) -> None:
    made = build(
        Example,
        {"temperature": temperature, "names": names, "keep": {"start": start}, "count": count, "is_on": is_on},
        "x",
    )
    path = tmp_path_factory.mktemp("toml") / "settings.toml"
    path.write_text(to_toml({"x": made}, "a header"), encoding="utf-8")
    assert build(Example, read_toml(path)["x"], "x") == made


def test_values_that_are_laid_on_top_win_key_by_key() -> None:
    assert merge({"a": {"x": 1, "y": 2}, "b": {"z": 3}}, {"a": {"y": 4}}) == {"a": {"x": 1, "y": 4}, "b": {"z": 3}}


@pytest.mark.parametrize(
    ("text", "value"),
    [("a.b=1e-3", 1e-3), ("a.b=true", True), ("a.b=word", "word"), ('a.b=["x"]', ["x"]), ("a.b=x=y", "x=y")],
)
def test_an_assignment_is_read_as_toml_or_as_a_word(text: str, value: object) -> None:
    assert parse_assignment(text) == {"a": {"b": value}}


@pytest.mark.parametrize("text", ["a.b", "=3", "a..b=3", "a.b="])
def test_an_assignment_that_says_nothing_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"write section.key=value"):
        parse_assignment(text)


def test_damaged_toml_is_named_with_the_place(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text("[a\nb = 1")
    with pytest.raises(UserError, match=r"bad.toml is not valid TOML.*line 1"):
        read_toml(path)


def test_values_of_settings_are_plain() -> None:
    assert as_values(Example())["keep"] == {"start": 0.99, "end": 0.99, "shape": "cosine"}
