"""Readings over training, from the metrics that runs wrote down."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from iecl.errors import UserError
from iecl.reproduction.plan import Wish
from iecl.reproduction.report import short
from iecl.runs.directory import RunDirectory
from iecl.studies.engine import CellStatus
from iecl.studies.report import paired
from iecl.studies.study import Place

POINTS = 100
"""Of a curve, each the mean of its part of the steps."""
ENDS = 0.1
"""Share of the readings at the start, and at the end, that their means are taken over."""


def curve_panels(wish: Wish, found: Mapping[tuple[str, Place], CellStatus], folder: Path) -> dict[str, Any]:
    """A panel for each reading, and the curves: by reading, row and seed, points of step and value."""
    panels, curves = [], dict[str, Any]()
    data = next(iter(found))[1].data
    for reading in wish.exhibit.readings:
        lines = _lines(reading["name"], found, folder)
        curves[reading["name"]] = {"axis": reading["axis"], "rows": lines}
        ends = {
            row: {seed: _taken(points, reading["take"]) for seed, points in own.items()} for row, own in lines.items()
        }
        rows = [_row(row.name, ends.get(row.name, {}), ends, wish, found) for row in wish.exhibit.rows]
        panels.append(
            {
                **{"title": reading["title"], "column": "", "data": short(data), "unit": "", "factor": 1},
                **{"is_claimed": True, "rows": rows},
            }
        )
    return {"panels": panels, "curves": curves}


def _lines(name: str, found: Mapping[tuple[str, Place], CellStatus], folder: Path) -> dict[str, Any]:
    lines: dict[str, dict[int, list[list[float]]]] = {}
    for (_, place), one in found.items():
        if one.state != "done" or one.names is None:
            continue
        run = RunDirectory(folder / "runs" / one.names.training)
        if not run.metrics.exists():
            do = "remove the record in cells/ to train it again"
            raise UserError(f"the run of {place.arm}, seed {place.seed} is gone", where=str(run.path), do=do)
        points = [(row["step"], row[name]) for row in run.read_metrics() if isinstance(row.get(name), int | float)]
        lines.setdefault(place.arm, {})[place.seed] = _thinned(points)
    return lines


def _thinned(points: Sequence[tuple[float, float]]) -> list[list[float]]:
    """At most `POINTS` points, each the mean of neighbors."""
    size = -(-len(points) // POINTS) or 1
    parts = [points[start : start + size] for start in range(0, len(points), size)]
    return [[round(mean(step for step, _ in part), 1), float(f"{mean(y for _, y in part):.5g}")] for part in parts]


def _taken(points: Sequence[Sequence[float]], what: str) -> float:
    """The mean of the last tenth, or how far it is from the mean of the first."""
    values = [y for _, y in points]
    size = max(1, round(ENDS * len(values)))
    end = mean(values[-size:])
    return end - mean(values[:size]) if what == "change" else end


def _row(
    name: str,
    values: Mapping[int, float],
    ends: Mapping[str, Mapping[int, float]],
    wish: Wish,
    found: Mapping[tuple[str, Place], CellStatus],
) -> dict[str, Any]:
    states = [one.state for (_, place), one in found.items() if place.arm == name and place.seed not in values]
    row: dict[str, Any] = {"row": name, "paper": None, "values": dict(values), "n": len(values), "protocols": ["log"]}
    row |= {"failed": states.count("failed"), "missing": len(states) - states.count("failed")}
    row |= {"mean": mean(values.values())} if values else {}
    row |= {"deviation": stdev(values.values())} if len(values) > 1 else {}
    return row | (paired(values, ends.get(wish.exhibit.reference, {})) if name != wish.exhibit.reference else {})
