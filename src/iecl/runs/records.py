"""What the records of a run must hold for others to use them: its summary, and the rows of its metrics."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from iecl.files import check, number, parse_json, read_json, read_lines

SUMMARY: dict[str, Any] = {
    "finished": bool,
    "verdict": str,
    "reasons": list[str],
    "advice": str,
    "last": dict[str, float],
    "untrained_knn": float,
    "outcome": dict,
}
OUTCOME: dict[str, Any] = {"images": int, "scores": dict[str, dict[str, float]]}
"""Kinds of what is used of a summary; an older one may lack some of it."""


def read_summary(path: Path) -> dict[str, Any]:
    """What summary.json says; empty where there is none yet."""
    found = read_json(path)
    check(found, str(path), known=SUMMARY)
    if "plan" in found:  # its first name
        found["forecast"] = found.pop("plan")
    if "outcome" in found:
        check(found["outcome"], f"outcome in {path}", needed=OUTCOME)
        scores = found["outcome"]["scores"]
        found["outcome"]["scores"] = {
            row: {name: number(value) for name, value in table.items()} for row, table in scores.items()
        }
    if "last" in found:
        found["last"] = {name: number(value) for name, value in found["last"].items()}
    if "untrained_knn" in found:
        found["untrained_knn"] = number(found["untrained_knn"])
    return found


def has_labels(summary: Mapping[str, Any]) -> bool:
    """Whether a run knows classes of its images: it has then measured kNN along the way, or at its end."""
    scores = summary.get("outcome", {}).get("scores", {})
    return "knn" in summary.get("last", {}) or "knn" in scores.get("trained", {})


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of metrics.jsonl: a step, and numbers by name. A last line that a crash cut short is left out."""
    for where, line in read_lines(path):
        row = parse_json(line, where)
        if "rate" in row:  # its first name
            row["lr"] = row.pop("rate")
        if type(row.get("step")) is not int or not all(type(value) in (int, float) for value in row.values()):
            check(row, where, needed={"step": int}, known=dict.fromkeys(row, float))
            row = {name: number(value) for name, value in row.items()}
        yield row
