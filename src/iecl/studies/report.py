"""What a study found: means over seeds, paired differences with intervals, and what may be said of them."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from iecl.comparison.differences import CONFIDENCE, over_seeds
from iecl.console import counted, one_line, plain_table
from iecl.files import write_atomically
from iecl.runs.directory import write_json
from iecl.studies.engine import CellStatus
from iecl.studies.study import Place, Study

Cells = Mapping[Place, CellStatus]
Row = Mapping[str, Any]


def report(study: Study, found: Cells) -> dict[str, Any]:
    """Everything that a study found, as plain values, and as Markdown under `text`."""
    rows = [
        _row(study, found, data, place, metric, arm)
        for data in study.settings.data
        for place, metric in _metrics(study, found, data)
        for arm in study.arms
    ]
    head = {"study": study.settings.name, "question": study.settings.question, "reference": study.settings.reference}
    cells = [_cell(place, one) for place, one in found.items()]
    made = head | {"rows": rows, "cells": cells, "notes": _notes(study, found, rows)}
    return made | {"text": markdown(made)}


def _metrics(study: Study, found: Cells, data: str) -> list[tuple[int, str]]:
    """Numbers that some cell on these data has, each with the place of its evaluation; an empty one: none yet.

    Top-5 follows top-1 and would double the comparisons, of which one in twenty misleads: it is in the records only.
    """
    names: dict[tuple[int, str], None] = {}
    for place in range(len(study.evaluations)):
        numbers = [_measured(one, place).get("numbers", {}) for at, one in found.items() if at.data == data]
        shown = [(place, name) for some in numbers for name in some if not name.endswith("top5")]
        names |= dict.fromkeys(shown or [(place, "")])
    return list(names)


def _measured(one: CellStatus, place: int) -> dict[str, Any]:
    """What a cell's record says of an evaluation."""
    evaluations: dict[str, dict[str, Any]] = one.record.get("evaluations", {})
    return evaluations.get(one.names.evaluations[place], {}) if one.names else {}


def _row(study: Study, found: Cells, data: str, place: int, metric: str, arm: str) -> dict[str, Any]:
    """One arm: its values by seed, and their differences to the reference on the same seeds."""
    seeds, reference = study.settings.seeds, study.settings.reference
    own, other = ({s: _measured(found[Place(name, data, s)], place) for s in seeds} for name in (arm, reference))
    numbers = ({s: one.get("numbers", {}).get(metric) for s, one in some.items()} for some in (own, other))
    values, base = ({s: x for s, x in some.items() if isinstance(x, int | float)} for some in numbers)  # "NaN" is none
    protocols = sorted({one["protocol_hash"] for one in (*own.values(), *other.values()) if one})
    states = [found[Place(arm, data, seed)].state for seed in seeds if seed not in values]
    row: dict[str, Any] = {"data": data, "evaluation": study.evaluations[place].label, "metric": metric, "arm": arm}
    row |= {"values": values, "n": len(values), "protocols": protocols}
    row |= {"failed": states.count("failed"), "missing": len(states) - states.count("failed")}
    row |= {"mean": mean(values.values())} if values else {}
    row |= {"deviation": stdev(values.values())} if len(values) > 1 else {}
    if arm == reference or len(protocols) > 1:
        return row
    return row | paired(values, base, is_resampled=study.settings.interval == "bootstrap")


def paired(values: Mapping[int, float], base: Mapping[int, float], *, is_resampled: bool = False) -> dict[str, Any]:
    """How far values lie above others with the same seed, with an interval if there are two pairs; empty: no pair.

    >>> found = paired({0: 0.5, 1: 0.7, 2: 0.6}, {0: 0.4, 1: 0.5})
    >>> round(found["difference"], 3), found["pairs"], found["is_significant"]
    (0.15, 2, False)
    """
    apart = [value - base[seed] for seed, value in values.items() if seed in base]
    if not apart:
        return {}
    found: dict[str, Any] = {"difference": mean(apart), "pairs": len(apart)}
    if len(apart) == 1:
        return found
    sure = over_seeds(apart, is_resampled=is_resampled)
    is_significant = sure.low > 0 or sure.high < 0
    return found | {"low": sure.low, "high": sure.high, "way": sure.way, "is_significant": is_significant}


def _cell(place: Place, one: CellStatus) -> dict[str, Any]:
    made = {**vars(place), "name": one.names.training if one.names else "", "state": one.state}
    made |= {key: one.record.get("training", {}).get(key) for key in ("verdict", "seconds", "images_per_second")}
    return made | {key: one.record.get(key) for key in ("error", "code", "environment")}


def _notes(study: Study, found: Cells, rows: Sequence[Row]) -> list[str]:
    """What a reader must know to take the table for what it is."""
    notes = []
    tested = [row for row in rows if "low" in row]
    if tested:
        chance = f"about {len(tested) * (1 - CONFIDENCE):.1f} of {len(tested)} would exclude 0 by chance alone"
        notes.append(
            f"{100 * CONFIDENCE:.0f} % intervals, {tested[0]['way'].rpartition(' over ')[0]} over seeds; {chance}"
        )
    others = sorted({row["arm"] for row in rows if len(row["protocols"]) > 1})
    if others:
        notes.append(
            f"not compared, since measured by another protocol than {study.settings.reference}: {', '.join(others)}"
        )
    names: dict[str, set[str]] = {}
    for place, one in found.items():
        names.setdefault(one.names.training if one.names else place.arm, set()).add(place.arm)
    for arms in {tuple(sorted(some)) for some in names.values() if len(some) > 1}:
        notes.append(f"the same runs under several names: {', '.join(arms)}")
    for key, what in (("code", "versions of the code"), ("environment", "machines or precisions")):
        kinds = {str(one.record[key]) for one in found.values() if key in one.record}
        notes += [f"cells are from {len(kinds)} {what}: see results.json"] if len(kinds) > 1 else []
    return notes


def markdown(made: Mapping[str, Any]) -> str:
    """The report for people. Bold is what is more than noise, and nothing else."""
    lines, reference = (
        [f"# {made['study']}", "", *([made["question"], ""] if made["question"] else [])],
        made["reference"],
    )
    tables: dict[str, list[Row]] = {}
    for row in made["rows"]:
        title = f"{Path(row['data']).name}: {row['evaluation']} {row['metric'].replace('_', ' ')}".rstrip()
        tables.setdefault(title, []).append(row)
    for title, rows in tables.items():
        body = [[row["arm"], *shown(row, row["arm"] == reference)] for row in rows]
        head = ["arm", "seeds", "mean ± deviation, %", f"against {reference}, points"]
        lines += [f"## {title}", "", *plain_table(head, body).split("\n"), ""]
    for cell in made["cells"]:
        if cell["state"] == "failed":
            where = f"{cell['arm']}, {Path(cell['data']).name}, seed {cell['seed']}"
            lines.append(f"- failed: {where}: {cell['error']}")
    lines += [f"- {note}" for note in made["notes"]]
    return "\n".join(map(one_line, lines)).rstrip() + "\n"


def shown(row: Row, is_reference: bool, factor: float = 100) -> list[str]:
    """Seeds, value and difference of an arm; `factor` makes percent of shares."""
    form = ".2f" if factor == 100 else ".3g"
    seeds = ", ".join([str(row["n"]), *(f"{row[key]} {key}" for key in ("failed", "missing") if row[key])])
    spread = f" ± {factor * row['deviation']:{form}}" if "deviation" in row else ""
    value = f"{factor * row['mean']:{form}}{spread}" if "mean" in row else ""
    if is_reference or "difference" not in row:
        return [seeds, value, "reference" if is_reference else "another protocol" if len(row["protocols"]) > 1 else ""]
    apart, low, high = (f"{factor * row[key]:+{form}}" if key in row else "" for key in ("difference", "low", "high"))
    if "low" not in row:
        return [seeds, value, f"{apart} (one pair: no interval)"]
    apart += f" ({low} to {high}, {counted(row['pairs'], 'pair')})"
    return [seeds, value, f"**{apart}**" if row["is_significant"] else apart]


def write_report(made: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """`results.md`, `.csv` (one line for each number of each cell) and `.json`; returns their paths."""
    files = {kind: folder / f"results.{kind}" for kind in ("md", "csv", "json")}
    write_atomically(files["md"], made["text"])
    write_json(files["json"], {key: value for key, value in made.items() if key != "text"})
    table = io.StringIO()
    lines = csv.writer(table, lineterminator="\n")
    lines.writerow([*(start := ("data", "evaluation", "metric", "arm")), "seed", "value"])
    for row in made["rows"]:
        lines.writerows([*(row[key] for key in start), *item] for item in row["values"].items())
    write_atomically(files["csv"], table.getvalue())
    return {kind: str(file) for kind, file in files.items()}
