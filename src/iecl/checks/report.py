"""What was found as files: a table of all findings, a list of images to leave out, JSON, and a page to look at."""

import csv
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from iecl.checks.diagnosis import Diagnosis
from iecl.checks.findings import Finding
from iecl.checks.page import page
from iecl.checks.table import CHECKS
from iecl.data.exclusion import read_exclusion, written
from iecl.data.listing import printable
from iecl.errors import UserError
from iecl.files import write_atomically
from iecl.runs.directory import write_json

FILES = {"json": "doctor.json", "csv": "findings.csv", "html": "doctor.html", "exclude": "exclude.txt"}
COLUMNS = ("check", "sure", "path", "part", "label", "value", "note", "other", "group")


def check_place(out: Path, overwrite: bool) -> None:
    """Refuse a folder before the work is done: one that holds a report, whose list may have been edited."""
    there = [name for name in FILES.values() if (out / name).exists()]
    if there and not overwrite:
        raise UserError(
            f"{out / there[0]} is there already", where="--out", do="add --overwrite, or name another folder"
        )
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file", where="--out", do="name a folder")


def write_report(made: Diagnosis, result: dict[str, Any], out: Path) -> dict[str, str]:
    """Write all files; returns their paths by kind."""
    out.mkdir(parents=True, exist_ok=True)
    lines = list(excluded(made))
    write_atomically(out / FILES["csv"], _table(made))
    write_atomically(out / FILES["exclude"], "".join(f"{line}\n" for line in lines))
    write_atomically(out / FILES["html"], page(made, result, str((out / FILES["exclude"]).absolute())))
    write_json(out / FILES["json"], result)
    return {kind: str(out / name) for kind, name in FILES.items()}


def _table(made: Diagnosis) -> str:
    """All findings; a spreadsheet takes no cell of it for a formula."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    for one in made.findings:
        cells = as_row(made, one)
        table.writerow([_plain(cells[name]) for name in COLUMNS])
    return text.getvalue()


def _plain(cell: Any) -> Any:
    is_formula = isinstance(cell, str) and cell[:1] in ("=", "+", "-", "@")
    return f"'{cell}" if is_formula else "" if cell is None else cell


def as_row(made: Diagnosis, one: Finding) -> dict[str, Any]:
    """A finding as plain values."""
    scan = made.scan
    return {
        "check": one.check,
        "sure": CHECKS[one.check].sure,
        "path": scan.name(one.number),
        "part": scan.part(one.number).name,
        "label": scan.label(one.number),
        "value": one.value,
        "note": printable(os.fsencode(one.note)),
        "other": None if one.other is None else scan.name(one.other),
        "group": one.group,
    }


def excluded(made: Diagnosis) -> Iterator[str]:
    """The lines of the list; what an earlier list left out stays on it, so that one list is enough."""
    found, before = made.to_exclude(), made.facts["exclude"]
    yield f"# {len(found):,} of {len(made.scan):,} images to leave out: iecl pretrain --data ... --exclude this file"
    yield "# A line is a path below the folder of the data; remove a line to keep its image."
    for number, one in sorted(found.items()):
        why = f"{one.check}: {made.scan.name(one.other)}" if one.other is not None else one.check
        why += f" ({one.note})" if one.note not in ("", one.check) else ""
        yield f"{written(made.scan.relative(number))}\t{printable(os.fsencode(why))}"
    for path in read_exclusion(Path(before)) if before else ():
        yield f"{written(path)}\ton the list before"
