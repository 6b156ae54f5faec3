"""The page on reproduction is made from committed results, and says which exhibits have none."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from iecl.reproduction.exhibit import ORDER, find_exhibit
from iecl.reproduction.figures import draw
from iecl.reproduction.plan import read_wish
from iecl.reproduction.report import finished, write_reports
from iecl.studies.report import paired


def result(scale: str = "mini") -> dict[str, Any]:
    """A result of T4 with made-up numbers."""
    values = {"one block": (0.60, 0.61, 0.62), "two blocks": (0.55, 0.57, 0.57), "three blocks": (0.60, 0.60, 0.63)}
    rows: list[dict[str, Any]] = []
    for name, paper in zip(values, (59.41, 58.62, 58.71), strict=True):
        numbers = dict(enumerate(values[name]))
        row = {"row": name, "paper": paper, "values": numbers, "n": 3, "failed": 0, "missing": 0, "protocols": ["a"]}
        row |= {"mean": sum(values[name]) / 3, "deviation": 0.01, "seconds": 61.0}
        rows.append(row | (paired(numbers, rows[0]["values"]) if rows else {}))
    head = {"title": "linear top-1", "column": "", "data": "digits", "unit": " %", "factor": 100, "is_claimed": True}
    panels = [head | {"rows": rows}]
    return finished(read_wish(find_exhibit("T4"), scale), {"panels": panels, "notes": []}, {"torch": "2.9"})


def test_a_result_has_a_verdict_its_evidence_and_its_command_and_others_were_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "docs"))
    from exhibits import reproduction_part  # type: ignore[import-not-found]

    made, place = result(), tmp_path / "results" / "T4"
    files = write_reports(made, place)
    Path(files["json"]).rename(place / "mini-digits.json")
    Path(draw(made, place)["svg"]).rename(place / "mini-digits.svg")
    write_reports(result("smoke"), place)  # which is no result
    (place / "results.json").rename(place / "smoke-digits.json")
    page = reproduction_part(tmp_path, tmp_path / "results")
    rows = [line for line in page.split("\n\n")[0].splitlines() if not line.startswith(("|  |", "| ---"))]
    assert len(rows) == len(ORDER)
    assert sum("not run yet" in line for line in rows) == len(ORDER) - 1
    (row,) = [line for line in rows if line.startswith("| T4 ")]
    assert "| **not testable here** | of 2 comparisons 1 hold, 1 cannot be told (mini, digits) |" in row
    assert "`iecl reproduce T4 --scale mini`" in row
    assert "### T4: One block, or several in a row (mini, digits)" in page
    assert "![One block, or several in a row](generated/T4-mini-digits.svg)" in page
    assert (tmp_path / "T4-mini-digits.svg").read_text().startswith("<?xml")
    for module in ("exhibits", "measurements"):
        sys.modules.pop(module, None)


def test_a_figure_is_the_same_each_time_and_missing_without_matplotlib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = result()
    first = Path(draw(made, tmp_path)["svg"]).read_bytes()
    assert Path(draw(made, tmp_path)["svg"]).read_bytes() == first
    monkeypatch.setattr("iecl.reproduction.figures.find_spec", lambda _: None)
    assert draw(made, tmp_path) == {}
    assert "a figure needs matplotlib, which is not installed" in caplog.text
    assert json.dumps({key: value for key, value in made.items() if key != "text"})


def test_pairs_of_operators_are_a_grid_of_scores_and_gains(tmp_path: Path) -> None:
    wish, panels = read_wish(find_exhibit("F6"), "mini"), []
    for number, panel in enumerate(wish.panels()):
        plain = {0: 0.40, 1: 0.41, 2: 0.42}
        rows: list[dict[str, Any]] = []
        for gain, name in zip((0.0, number / 100, -0.03), (row.name for row in wish.exhibit.rows), strict=True):
            values = {seed: one + gain + 0.001 * seed * bool(gain) for seed, one in plain.items()}
            row = {"row": name, "paper": None, "values": values, "n": 3, "failed": 0, "missing": 0, "protocols": ["a"]}
            row |= {"mean": sum(values.values()) / 3, "deviation": 0.01}
            rows.append(row | (paired(values, plain) if rows else {}))
        head = {"title": panel.column, "column": panel.column, "data": "digits", "unit": " %", "factor": 100}
        panels.append(head | {"is_claimed": True, "rows": rows})
    made = finished(wish, {"panels": panels, "notes": []}, {"torch": "2.9"})
    drawn = Path(draw(made, tmp_path)["svg"]).read_text()
    assert [drawn.count(f">{word}<") for word in ("41.0", "+5.1", "-2.9", "crop", "color", "blur")] == [
        6,
        1,
        6,
        4,
        4,
        4,
    ]
