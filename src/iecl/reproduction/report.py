"""What an exhibit gave: the paper's numbers beside ours, as plain values, Markdown and CSV."""

import csv
import io
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean
from typing import Any

from iecl.console import duration, one_line, plain_table
from iecl.files import write_atomically
from iecl.reproduction.exhibit import Variant
from iecl.reproduction.plan import Panel, Wish
from iecl.reproduction.verdict import judge
from iecl.runs.directory import write_json
from iecl.studies.engine import CellStatus
from iecl.studies.report import report as study_report
from iecl.studies.report import shown
from iecl.studies.study import Place

Found = Mapping[tuple[str, Place], CellStatus]
MEASURES = {"top1": "top-1", "miou": "mIoU", "map": "mAP"}


def accuracy_panels(wish: Wish, panels: Sequence[Panel], found: Found) -> dict[str, Any]:
    """Scores of cells: a panel for each column, dataset and number; every cell; notes."""
    made: dict[str, Any] = {"panels": [], "cells": [], "notes": []}
    for panel in panels:
        own = {place: one for (column, place), one in found.items() if column == panel.column}
        study = study_report(panel.study, own)
        made["cells"] += [cell | {"column": panel.column, "data": short(cell["data"])} for cell in study["cells"]]
        made["notes"] += [note for note in study["notes"] if note not in made["notes"]]
        tables: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
        for row in study["rows"]:
            tables.setdefault((row["data"], row["evaluation"], row["metric"]), []).append(row)
        first = panel.study.evaluations[0].label
        many = len({one.name for one in panel.study.evaluations}) > 1 and bool(wish.exhibit.needs)
        for (data, evaluation, metric), rows in tables.items():
            kind, seconds = evaluation.partition(" ")[0], _seconds(own, data)
            where = [panel.column] if panel.column else [short(data)] if len(panel.study.settings.data) > 1 else []
            names = (panel.column, short(data), kind, wish.exhibit.shown)
            made["panels"].append(
                {
                    "title": ", ".join([*where, f"{kind} {MEASURES.get(metric, metric.replace('_', ' '))}".strip()]),
                    **{"column": panel.column, "data": short(data), "unit": " %", "factor": 100},
                    "is_claimed": evaluation == first or many,
                    "rows": [_row(wish, row, names) | seconds[row["arm"]] for row in rows],
                }
            )
    return made


def short(data: str) -> str:
    """Images by their name, not by where they lie."""
    return Path(data).name or data


def _seconds(found: Mapping[Place, CellStatus], data: str) -> dict[str, dict[str, float]]:
    """Mean seconds of training by row."""
    times: dict[str, list[float]] = {}
    for place, one in found.items():
        taken = one.record.get("training", {}).get("seconds") if place.data == data else None
        times.setdefault(place.arm, []).extend([] if taken is None else [taken])
    return {arm: {"seconds": round(mean(some), 1)} if some else {} for arm, some in times.items()}


def _row(wish: Wish, row: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    line = next(one for one in wish.exhibit.rows if one.name == row["arm"])
    own = {key: value for key, value in row.items() if key not in ("data", "evaluation", "metric", "arm")}
    return {"row": row["arm"], "paper": printed(line, names)} | own


def printed(line: Variant, names: Sequence[str]) -> float | None:
    """The paper's number for a row: its only one, or that of the first of these names."""
    paper = line.paper
    return next((paper[name] for name in names if name in paper), None) if isinstance(paper, Mapping) else paper


def finished(wish: Wish, made: Mapping[str, Any], environment: Mapping[str, Any]) -> dict[str, Any]:
    """The whole report, from panels, cells and notes."""
    exhibit = wish.exhibit
    data = list(dict.fromkeys(panel["data"] for panel in made["panels"]))
    head: dict[str, Any] = {
        "exhibit": exhibit.name,
        "title": exhibit.title,
        "claim": exhibit.claim,
        "kind": exhibit.kind,
        "figure": exhibit.figure,
    }
    head |= {"scale": wish.scale, "data": data, "reference": exhibit.reference, "command": command(wish)}
    head |= {"date": datetime.now(UTC).date().isoformat(), "environment": dict(environment)}
    notes = [*made["notes"], *_notes(wish)]
    whole = head | {"cells": [], "curves": {}} | dict(made) | {"notes": notes}
    whole |= judge(exhibit, wish.scale, made["panels"])
    return whole | {"text": markdown(whole)}


def command(wish: Wish) -> str:
    """The command that makes this exhibit, without the paths of a machine."""
    words = ["iecl reproduce", wish.exhibit.name, "--scale", wish.scale]
    words += [f"--data {short(name)}{'/' * Path(name).is_dir()}" for name in wish.data]  # not a dataset of that name
    words += [f"--data {name}={short(place)}" for name, place in wish.places]
    words += [f"--seeds {wish.seeds}"] * bool(wish.seeds) + [f"--epochs {wish.epochs}"] * bool(wish.epochs)
    words += [f"--precision {wish.precision}"] * bool(wish.precision)
    return " ".join(words)


def _notes(wish: Wish) -> list[str]:
    """What rows are besides their names, and by which rules they were made."""
    exhibit, notes = wish.exhibit, list[str]()
    named = {
        row.name: row.note
        for column in exhibit.columns_at(wish.scale)
        for row in exhibit.rows_at(wish.scale, column.name)
    }
    notes += [f"{name}: {note}" for name, note in named.items() if note]
    if any(row.table.get("equal_time") for row in exhibit.rows):
        notes.append(
            "equal time: as many more epochs as a step with the block takes longer; compare the times of training"
        )
    if exhibit.kind in ("accuracy", "curves"):
        rule = exhibit.scales[wish.scale]["rule"]
        notes.append(f"hyper-parameters: {exhibit.rule or rule}")
    if wish.scale != "full":
        is_printed = any(row.paper is not None for row in exhibit.rows)
        words = f"`{wish.scale}` asks the question of small networks and small images"
        notes.append(words + "; the paper's numbers are of others" * is_printed)
    return notes


def markdown(made: Mapping[str, Any]) -> str:
    """The report for people. Bold is what is more than noise, and nothing else."""
    where = f"{made['scale']}, {', '.join(made['data'])}" if made["data"] else made["scale"]
    lines = [
        f"# {made['exhibit']}: {made['title']}",
        "",
        f"Claim: {made['claim']}",
        f"Here ({where}): {made['verdict']}; {made['why']}.",
        "",
    ]
    for panel in made["panels"]:
        lines += [f"## {panel['title']}", "", *_table(panel, made["reference"]).split("\n"), ""]
        lines += [panel["note"], ""] if "note" in panel else []
    for one in made["claims"]:
        lines.append(f"- {one['verdict']}: {one['claim']} ({one['panel']}): {one['evidence']}")
    for cell in made["cells"]:
        if cell["state"] == "failed":
            place = ", ".join(filter(None, (cell["arm"], cell["column"], cell["data"], f"seed {cell['seed']}")))
            lines.append(f"- failed: {place}: {cell['error']}")
    lines += [f"- {note}" for note in made["notes"]]
    return "\n".join(map(one_line, lines)).rstrip() + "\n"


def _table(panel: Mapping[str, Any], reference: str) -> str:
    """Columns that are empty throughout are left out."""
    rows, unit = panel["rows"], panel["unit"].strip()
    base = next((row["paper"] for row in rows if row["row"] == reference), None)
    against = f"here: against {reference}" + (f", {'points' if unit == '%' else unit}" if unit else "")
    head = ["row", "paper", f"here, {unit}".rstrip(", "), panel.get("count", "seeds"), f"paper: against {reference}"]
    head += [panel.get("against", against), "training"]
    body = []
    for row in rows:
        is_reference = row["row"] == reference
        seeds, value, apart = shown(row, is_reference, panel["factor"])
        if "ratio" in row:  # counted, not measured: there is no interval
            value, apart = f"{row['mean']:.3g}", f"{row['ratio']:.2f}"
        paper = "" if row["paper"] is None else f"{row['paper']:g}"
        gain = "" if None in (row["paper"], base) or is_reference else f"{row['paper'] - base:+.2f}"
        time = duration(row["seconds"]) if "seconds" in row else ""
        body.append([row["row"], paper, value, seeds, gain, apart, time])
    kept = [number for number in range(len(head)) if any(line[number] for line in body)]
    return plain_table([head[n] for n in kept], [[line[n] for n in kept] for line in body])


def write_reports(made: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """`results.md`, `.csv` (one line for each number) and `.json`; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {kind: folder / f"results.{kind}" for kind in ("md", "csv", "json")}
    write_atomically(files["md"], made["text"])
    write_json(files["json"], {key: value for key, value in made.items() if key != "text"})
    table = io.StringIO()
    lines = csv.writer(table, lineterminator="\n")
    lines.writerow(["panel", "row", "paper", "seed", "value"])
    for panel in made["panels"]:
        for row in panel["rows"]:
            paper = "" if row["paper"] is None else row["paper"]
            lines.writerows([panel["title"], row["row"], paper, *item] for item in row["values"].items())
    write_atomically(files["csv"], table.getvalue())
    return {kind: str(file) for kind, file in files.items()}
