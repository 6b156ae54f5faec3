"""Every reader of a file returns or raises `UserError`, whatever the file holds, and never waits."""

import os
import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from benchmarks.faults.readers import mutated
from hypothesis import given, settings
from hypothesis import strategies as st

from iecl.comparison.results import read_result
from iecl.errors import UserError
from iecl.files import MOST_JSON, MOST_LINE, MOST_TOML, parse_json, parse_toml, read_json, read_lines, read_text
from iecl.runs.directory import RunDirectory, strict_json
from iecl.runs.records import read_metrics, read_summary
from iecl.settings import parse_assignment, read_toml
from iecl.training.config import config_from_values, make_config

SUMMARY = {"finished": True, "verdict": "healthy", "reasons": ["a"], "advice": "b", "last": {"loss": 1.5, "knn": "NaN"}}
METRICS = [{"step": step, "epoch": 0, "loss": 1 / step, "meter/alignment": float("nan")} for step in range(1, 9)]
RESULT = {
    "evaluation": "knn",
    "numbers": ["top1", "top5"],
    "top1": 0.625,
    "top5": 1.0,
    "by_seed": {"top1": [0.5, 0.75]},
    "n_train": 16,
    "n_test": 8,
    "hits": "ab",
    "protocol": {"k": 20, "checkpoint": "final"},
    "protocol_id": "knn/1 k=20",
    "data": "digits",
}
SETTINGS = make_config(flags={"data": {"name": "digits"}}).to_toml("for a test")


def plan_of(path: Path) -> Any:
    return config_from_values(read_toml(path)).values()


READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "summary": (strict_json(SUMMARY, indent=2), read_summary),
    "metrics": ("".join(strict_json(row) + "\n" for row in METRICS), lambda path: list(read_metrics(path))),
    "result": (strict_json(RESULT, indent=2), read_result),
    "settings": (SETTINGS, plan_of),
    "table": (strict_json(SUMMARY | RESULT), read_json),
    "lines": ("a.png\tempty file\n" * 9, lambda path: list(read_lines(path))),
}


@pytest.mark.parametrize("name", READERS)
def test_what_was_written_is_read(name: str, tmp_path: Path) -> None:
    text, read = READERS[name]
    (tmp_path / "file").write_text(text, encoding="utf-8")
    assert read(tmp_path / "file")


@pytest.mark.parametrize("name", READERS)
def test_a_mutated_file_is_read_or_refused(name: str, tmp_path: Path) -> None:
    text, read = READERS[name]
    drawn, refused, file = random.Random(name), 0, tmp_path / "file"
    for _ in range(200):
        file.write_bytes(mutated(text.encode(), drawn))
        try:
            strict_json(read(file))
        except UserError:
            refused += 1
    assert 10 < refused < 200  # the faults are no trifles, and not all of them are fatal


def test_any_bytes_are_read_or_refused(tmp_path: Path) -> None:
    @settings(derandomize=True, deadline=None, max_examples=60)
    @given(st.binary(max_size=60), st.sampled_from(sorted(READERS)))
    def attempt(raw: bytes, name: str) -> None:
        (tmp_path / "file").write_bytes(raw)
        with suppress(UserError):
            READERS[name][1](tmp_path / "file")

    attempt()


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["NaN", "top1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def test_values_of_other_kinds_are_read_or_refused(tmp_path: Path) -> None:
    @settings(derandomize=True, deadline=None, max_examples=150)
    @given(st.data())
    def attempt(data: st.DataObject) -> None:
        table, read = data.draw(st.sampled_from([(SUMMARY, read_summary), (RESULT, read_result)]))
        changed = dict(table)
        for key in data.draw(st.lists(st.sampled_from(sorted(table)), min_size=1, max_size=3)):
            changed[key] = data.draw(JSON_VALUES)
        file = tmp_path / "file"
        file.write_text(strict_json(changed), encoding="utf-8")
        with suppress(UserError):
            read(file)  # type: ignore[operator]

    attempt()


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("kind", ["folder", "pipe", "device", "loop", "dangling link", "unreadable"])
def test_what_is_no_plain_file_is_refused_at_once(name: str, kind: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    if kind == "folder":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    elif kind == "device":
        file.symlink_to("/dev/zero")
    elif kind == "loop":
        file.symlink_to(file)
    elif kind == "dangling link":
        file.symlink_to(tmp_path / "nothing")
    else:
        file.write_text(READERS[name][0], encoding="utf-8")
        file.chmod(0)
        if os.access(file, os.R_OK):
            pytest.skip("this user may read everything")
    with pytest.raises(UserError, match="cannot read"):
        READERS[name][1](file)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("summary", "[]", "is damaged: it holds no table"),
        ("summary", '{"reasons": 3}', "is damaged: reasons is not a list of text"),
        ("summary", '{"last": "x"}', "is damaged: last is not a table of a number"),
        ("summary", '{"finished": "yes"}', "is damaged: finished is not true or false"),
        ("metrics", '{"step": 1}\n{"loss": 1}\n', "line 2 is damaged: it has no step"),
        ("metrics", '{"step": "1"}\n', "line 1 is damaged: step is not a whole number"),
        ("metrics", '{"step": 1}\n{"step": 2, "loss": "low"}\n', "line 2 is damaged: loss is not a number"),
        ("metrics", '{"step": 1}\n{"st\n{"step": 3}\n', "line 2 is damaged: .*; remove or restore it"),
        ("metrics", '{"step": 1, "loss": ' + "9" * 5000 + "}\n", "line 1 is damaged: a number in it has too many"),
        ("result", strict_json(RESULT | {"top1": 1.5}), "top1 is not a share, from 0 to 1"),
        ("result", strict_json(RESULT | {"n_test": 9}), "its hits are not those of n_test images"),
        ("result", strict_json(RESULT | {"numbers": []}), "it has no number"),
        ("settings", SETTINGS.replace("[method]", "[x.method]"), "there is no section 'x'"),
        ("settings", "[training]\nepochs = 1", "there is no method.name"),
        ("settings", "[method]\nname = true", "no method is called True"),
        ("settings", "x = " + "9" * 5000, "a number has too many digits"),
        ("settings", "x = 0x" + "f" * 5000, "a number in it has too many digits"),
        ("settings", "x = " + "[" * 5000, "is not valid TOML: it is nested too deeply"),
        ("settings", "x" + ".x" * 1500 + " = 1", "is damaged: it is nested too deeply"),
        ("settings", "x" + ".x" * 100_000 + " = 1", "dots: these are no settings"),
        ("table", '{"a":' * 900 + "1" + "}" * 900, "is damaged: it is nested too deeply"),
        ("table", '{"a":' * 100_000, "is damaged: it is nested too deeply"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        READERS[name][1](tmp_path / "file")


@pytest.mark.parametrize(("most", "read"), [(MOST_TOML, read_toml), (MOST_JSON, read_json), (MOST_LINE, read_metrics)])
def test_a_file_without_end_is_not_read_to_its_end(most: int, read: Callable[[Path], Any], tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        file.truncate(100 * 2**30)  # without taking room on the disk
    with pytest.raises(UserError, match=r"too large: more than|more than .* bytes"):
        _exhausted(read(tmp_path / "file"))
    assert most < 2**25


def _exhausted(found: Iterable[Any]) -> None:
    list(found)


def test_a_last_line_that_was_cut_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(b'{"step": 1}\n{"step": 2, "loss": "NaN"}\n{"step": 3, "n\xc3')
    rows = list(read_metrics(file))
    assert [row["step"] for row in rows] == [1, 2]
    assert rows[1]["loss"] != rows[1]["loss"]


def test_a_number_that_is_not_finite_is_a_number_again(tmp_path: Path) -> None:
    """JSON has no word for it, so that it is written as text."""
    file = tmp_path / "summary.json"
    scores = {"trained": {"knn": "-Infinity"}}
    made = {"last": {"knn": "NaN"}, "untrained_knn": "Infinity", "outcome": {"images": 9, "scores": scores}}
    file.write_text(strict_json(made))
    found = read_summary(file)
    numbers = [found["last"]["knn"], found["untrained_knn"], found["outcome"]["scores"]["trained"]["knn"]]
    assert [f"{number:.1f}" for number in numbers] == ["nan", "inf", "-inf"]


@pytest.mark.parametrize("value", ["1979-05-27", "07:32:00", "1979-05-27T07:32:00Z", "[1, { a = [1979-05-27] }]"])
def test_a_date_that_toml_has_and_json_has_not_is_refused(value: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(f"a = {value}")
    with pytest.raises(UserError, match="file is damaged: a date or a time in it is not in quotes"):
        read_toml(tmp_path / "file")
    assert parse_assignment("data.root=1979-05-27") == {"data": {"root": "1979-05-27"}}


def test_what_is_not_there_yet_is_empty(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert (run.read_summary(), list(run.read_metrics()), read_json(run.forecast)) == ({}, [], {})


def test_a_value_that_is_no_toml_is_a_word() -> None:
    for text in ("[" * 5000, "9" * 5000, "a\x00b"):
        assert parse_assignment(f"data.name={text}") == {"data": {"name": text}}


def test_errors_name_the_file_not_its_content(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\xff")
    with pytest.raises(UserError, match="file is damaged: it is not text in UTF-8: invalid start byte at byte 0"):
        read_text(tmp_path / "file")
    with pytest.raises(UserError, match="here is damaged"):
        parse_json("{", "here")
    with pytest.raises(UserError, match="here is not valid TOML"):
        parse_toml("{", "here")
