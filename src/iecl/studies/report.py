"""What a study found: means over seeds, paired differences with intervals, and what may be said of them."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from iecl.comparison.differences import CONFIDENCE, over_seeds
from iecl.console import counted, one_line, plain_table
from iecl.runs.directory import write_atomically, write_json
from iecl.studies.engine import Found
from iecl.studies.study import Place, Study

Cells = Mapping[Place, Found]


def report(study: Study, found: Cells) -> dict[str, Any]:
    """Everything that a study found, as plain values, and as Markdown under `text`."""
    rows = [
        _row(study, found, data, number, metric, arm)
        for data in study.settings.data
        for number, metric in _metrics(study, found, data)
        for arm in study.arms
    ]
    made = {
        "study": study.settings.name,
        "question": study.settings.question,
        "reference": study.settings.reference,
        "seeds": list(study.settings.seeds),
        "rows": rows,
        "cells": [_cell(place, one) for place, one in found.items()],
        "notes": _notes(study, found, rows),
    }
    return made | {"text": markdown(made)}


def _metrics(study: Study, found: Cells, data: str) -> list[tuple[int, str]]:
    """Numbers that some cell on these data has, each with the place of its evaluation."""
    names: dict[tuple[int, str], None] = {}
    for number, _ in enumerate(study.evaluations):
        measured = [_evaluation(one, number) for place, one in found.items() if place.data == data]
        names |= dict.fromkeys((number, name) for result in measured for name in result.get("numbers", {}))
        if not any(measured):
            names[number, ""] = None  # nothing yet: the arms are shown all the same
    return list(names)


def _evaluation(one: Found, number: int) -> dict[str, Any]:
    """What a cell's record says of an evaluation."""
    if one.names is None:
        return {}
    result: dict[str, Any] = one.record.get("evaluations", {}).get(one.names.evaluations[number], {})
    return result


def _row(study: Study, found: Cells, data: str, number: int, metric: str, arm: str) -> dict[str, Any]:
    """One arm: its values by seed, and their differences to the reference on the same seeds."""
    own, other = (
        {seed: _evaluation(found[Place(name, data, seed)], number) for seed in study.settings.seeds}
        for name in (arm, study.settings.reference)
    )
    values, base = (
        {seed: one["numbers"][metric] for seed, one in some.items() if metric in one.get("numbers", {})}
        for some in (own, other)
    )
    protocols = sorted({one["protocol_hash"] for one in (*own.values(), *other.values()) if one})
    states = [found[Place(arm, data, seed)].state for seed in study.settings.seeds if seed not in values]
    row: dict[str, Any] = {
        "data": data,
        "evaluation": study.evaluations[number].label,
        "metric": metric,
        "arm": arm,
        "values": values,
        "n": len(values),
        "failed": states.count("failed"),
        "missing": len(states) - states.count("failed"),
        "mean": mean(values.values()) if values else None,
        "deviation": stdev(values.values()) if len(values) > 1 else None,
        "protocols": protocols,
    }
    apart = [values[seed] - base[seed] for seed in study.settings.seeds if seed in values and seed in base]
    if arm == study.settings.reference or not apart or len(protocols) > 1:
        return row
    row |= {"difference": mean(apart), "pairs": len(apart)}
    if len(apart) > 1:
        sure = over_seeds(apart, is_resampled=study.settings.interval == "bootstrap")
        row |= {"low": sure.low, "high": sure.high, "way": sure.way, "is_significant": not sure.low <= 0 <= sure.high}
    return row


def _cell(place: Place, one: Found) -> dict[str, Any]:
    training = one.record.get("training", {})
    return {
        **vars(place),
        "name": one.names.training if one.names else "",
        "state": one.state,
        "error": one.record.get("error", ""),
        "verdict": training.get("verdict", ""),
        "seconds": training.get("seconds"),
        "images_per_second": training.get("images_per_second"),
        "code": one.record.get("code"),
        "environment": one.record.get("environment"),
    }


def _notes(study: Study, found: Cells, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a reader must know to take the table for what it is."""
    notes = []
    tested = [row for row in rows if "low" in row]
    if tested:
        percent = f"{100 * CONFIDENCE:.0f} %"
        chance = f"about {len(tested) * (1 - CONFIDENCE):.1f} of {len(tested)} would exclude 0 by chance alone"
        notes.append(f"{percent} intervals, {tested[0]['way'].rpartition(' over ')[0]} over seeds; {chance}")
    other = {row["arm"] for row in rows if len(row["protocols"]) > 1}
    if other:
        notes.append(
            f"measured by another protocol than {study.settings.reference}, so not compared: {', '.join(sorted(other))}"
        )
    names: dict[tuple[str, str], set[str]] = {}
    for place, one in found.items():
        if one.names is not None:
            names.setdefault((place.data, one.names.training), set()).add(place.arm)
    for arms in {tuple(sorted(some)) for some in names.values() if len(some) > 1}:
        notes.append(f"the same runs under several names: {', '.join(arms)}")
    for key, what in (("code", "versions of the code"), ("environment", "machines or precisions")):
        kinds = {str(one.record[key]) for one in found.values() if key in one.record}
        if len(kinds) > 1:
            notes.append(f"cells are from {len(kinds)} {what}: see the JSON")
    return notes


def markdown(made: Mapping[str, Any]) -> str:
    """The report for people. Bold is what is more than noise, and nothing else."""
    lines = [f"# {made['study']}", "", *([made["question"], ""] if made["question"] else [])]
    tables: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for row in made["rows"]:
        tables.setdefault((row["data"], row["evaluation"], row["metric"]), []).append(row)
    for (data, evaluation, metric), rows in tables.items():
        lines += [f"## {Path(data).name}: {evaluation} {metric.replace('_', ' ')}".rstrip(), ""]
        body = [[row["arm"], _seeds(row), _value(row), _apart(row, made["reference"])] for row in rows]
        head = ["arm", "seeds", "mean ± deviation, %", f"against {made['reference']}, points"]
        lines += [*plain_table(head, body).split("\n"), ""]
    failed = [cell for cell in made["cells"] if cell["state"] == "failed"]
    lines += [
        f"- failed: {cell['arm']}, {Path(cell['data']).name}, seed {cell['seed']}: {cell['error']}" for cell in failed
    ]
    lines += [f"- {note}" for note in made["notes"]]
    return "\n".join(map(one_line, lines)).rstrip() + "\n"


def _seeds(row: Mapping[str, Any]) -> str:
    lacks = [f"{row[key]} {key}" for key in ("failed", "missing") if row[key]]
    return ", ".join([str(row["n"]), *lacks])


def _value(row: Mapping[str, Any]) -> str:
    if row["mean"] is None:
        return ""
    spread = "" if row["deviation"] is None else f" ± {100 * row['deviation']:.2f}"
    return f"{100 * row['mean']:.2f}{spread}"


def _apart(row: Mapping[str, Any], reference: str) -> str:
    if row["arm"] == reference:
        return "reference"
    if "difference" not in row:
        return "another protocol" if len(row["protocols"]) > 1 else ""
    words = f"{100 * row['difference']:+.2f}"
    if "low" not in row:
        return f"{words} (one pair: no interval)"
    words += f" ({100 * row['low']:+.2f} to {100 * row['high']:+.2f}, {counted(row['pairs'], 'pair')})"
    return f"**{words}**" if row["is_significant"] else words


def write_report(made: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """`results.md`, `.csv` (one line for each number of each cell) and `.json`; returns their paths."""
    files = {kind: folder / f"results.{kind}" for kind in ("md", "csv", "json")}
    write_atomically(files["md"], made["text"])
    write_json(files["json"], {key: value for key, value in made.items() if key != "text"})
    table = io.StringIO()
    lines = csv.writer(table, lineterminator="\n")
    lines.writerow(["data", "evaluation", "metric", "arm", "seed", "value"])
    for row in made["rows"]:
        start = [row["data"], row["evaluation"], row["metric"], row["arm"]]
        lines.writerows([*map(one_line, start), seed, value] for seed, value in row["values"].items())
    write_atomically(files["csv"], table.getvalue())
    return {kind: str(file) for kind, file in files.items()}
