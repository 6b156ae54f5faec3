"""The page on reproduction: a verdict for each table and figure, from benchmarks/results/reproduce/*/*.json."""

import json
import shutil
from pathlib import Path
from typing import Any

from measurements import RESULTS, table

from iecl.reproduction.exhibit import ORDER, find_exhibit
from iecl.reproduction.report import markdown

FOLDER = RESULTS / "reproduce"
NOT_RUN = "not run yet"


def found_of(name: str, folder: Path = FOLDER) -> list[tuple[Path, dict[str, Any]]]:
    """What was committed of an exhibit; a smoke test is no result."""
    files = sorted((folder / name).glob("*.json"))
    every = [(file, json.loads(file.read_text(encoding="utf-8"))) for file in files]
    return [(file, found) for file, found in every if found["scale"] != "smoke"]


def reproduction_part(out: Path, folder: Path = FOLDER) -> str:
    """A table of verdicts, then everything that was measured; figures are copied to `out`."""
    rows, parts = [], []
    for name in ORDER:
        exhibit = find_exhibit(name)
        found = found_of(name, folder)
        if not found:
            rows.append([name, exhibit.claim, NOT_RUN, "", f"`iecl reproduce {name}`"])
        for file, made in found:
            where = f"{made['scale']}, {', '.join(made['data'])}"
            verdict = f"**{made['verdict']}**"
            rows.append([name, exhibit.claim, verdict, f"{made['why']} ({where})", f"`{made['command']}`"])
            parts.append(_section(file, made, out))
    verdicts = table(["", "claim", "at this scale", "evidence", "command"], rows)
    return "\n\n".join([verdicts, *parts]) + "\n"


def _section(file: Path, made: dict[str, Any], out: Path) -> str:
    """The report of an exhibit under a smaller heading, with its figure."""
    title, _, rest = markdown(made).partition("\n")
    body = rest.strip().replace("\n## ", "\n#### ")
    figure = file.with_suffix(".svg")
    if figure.exists():
        copy = f"{made['exhibit']}-{figure.name}"
        shutil.copy(figure, out / copy)
        body = f"![{made['title']}](generated/{copy})\n\n{body}"
    where = made["environment"]
    on = ", ".join(str(where[key]) for key in ("processor", "device", "torch", "precision") if where.get(key))
    return f"### {title.lstrip('# ')} ({made['scale']}, {', '.join(made['data'])})\n\n{body}\n\n{made['date']}; {on}."
