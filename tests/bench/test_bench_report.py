"""What was found is kept as JSON, and shown on one page."""

import json
import math
from pathlib import Path

import pytest
from benchmarks.bench import report
from benchmarks.bench.report import is_reached, machine_name, write_page, write_result
from benchmarks.bench.turns import summary

from iecl.errors import UserError


def row(value: float, goal: str = "") -> dict[str, object]:
    return summary([value]) | ({"goal": goal} if goal else {})


def test_a_result_holds_question_environment_and_content(tmp_path: Path) -> None:
    path = write_result(tmp_path, "views", "what do views cost?", {"results": {"a": row(1.5)}, "load_before": 0.2})

    assert path == tmp_path / "views" / f"{machine_name()}.json"
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found["question"] == "what do views cost?"
    assert found["results"]["a"] == {"median": 1.5, "quartiles": [1.5, 1.5], "values": [1.5]}
    assert found["load_before"] == 0.2
    assert {"date", "environment", "peers", "threads"} <= set(found)
    assert "command" not in found["environment"]  # it may hold paths
    assert {"torchvision", "scikit-learn"} <= set(found["peers"])


def test_content_says_with_how_many_threads_where_the_process_has_others(tmp_path: Path) -> None:
    path = write_result(tmp_path, "views", "?", {"threads": 7})
    assert json.loads(path.read_text(encoding="utf-8"))["threads"] == 7


def test_a_number_that_is_not_finite_leaves_json_that_every_reader_takes(tmp_path: Path) -> None:
    path = write_result(tmp_path, "views", "?", {"results": {}, "odd": math.nan})
    assert json.loads(path.read_text(encoding="utf-8"))["odd"] == "NaN"


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_result(tmp_path, "views", "?", {"results": {"a": row(1)}})
    before = path.read_text(encoding="utf-8")

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space"):
        write_result(tmp_path, "views", "?", {"results": {"a": row(2)}})

    assert path.read_text(encoding="utf-8") == before
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("median", "goal", "reached"),
    [
        (5.0, "at least 5", True),
        (4.9, "at least 5", False),
        (1.05, "at most 1.05", True),
        (1.06, "at most 1.05", False),
        (3.0, "", None),
    ],
)
def test_goals(median: float, goal: str, reached: bool | None) -> None:
    assert is_reached(row(median, goal)) is reached


def test_the_page_is_made_from_all_known_results_of_the_folder(tmp_path: Path) -> None:
    goals = {"fast": row(6.2, "at least 5"), "slow": row(1.2, "at most 1.05"), "free": row(250)}
    write_result(tmp_path, "growth", "how does a step grow?", {"results": {"batch": row(0.9)}, "is_quick": True})
    write_result(tmp_path, "views", "what do views cost?", {"results": goals, "left_out": ["kornia (absent)"]})
    write_result(tmp_path, "cifar10", "not a question of the command", {"results": {"other": row(1)}})
    page = write_page(tmp_path)

    text = page.read_text(encoding="utf-8")
    assert page == tmp_path / report.PAGE
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    assert ["what", "median", "quartiles", "goal", "reached"] in cells
    assert ["fast", "6.2", "6.2 to 6.2", "at least 5", "yes"] in cells
    assert ["slow", "1.2", "1.2 to 1.2", "at most 1.05", "no"] in cells
    assert ["free", "250", "250 to 250", "", ""] in cells
    assert text.index("## views") < text.index("## growth")
    assert "Left out: kornia (absent)." in text
    assert "A quick form" in text
    assert "cifar10" not in text
    assert "torch " in text.splitlines()[-1]


def test_the_page_shows_results_that_were_written_before_there_were_peers(tmp_path: Path) -> None:
    path = write_result(tmp_path, "startup", "how long?", {"results": {"help": row(0.1)}})
    found = json.loads(path.read_text(encoding="utf-8"))
    del found["peers"]
    path.write_text(json.dumps(found), encoding="utf-8")
    assert "help" in write_page(tmp_path).read_text(encoding="utf-8")


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"question": 3}', '{"question": "x", "results": 3}'])
def test_a_file_that_is_no_result_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / "views").mkdir()
    (tmp_path / "views" / "here.json").write_text(content)
    with pytest.raises(UserError, match=r"here\.json is (damaged|no result of iecl bench)"):
        write_page(tmp_path)
