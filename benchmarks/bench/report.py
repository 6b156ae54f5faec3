"""What was found, as files: one JSON for each question with every raw value, and one page made from all of them."""

import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.bench import QUESTIONS
from iecl.console import plain_table, visible
from iecl.errors import UserError
from iecl.files import read_json, write_atomically
from iecl.runs.directory import strict_json
from iecl.runs.environment import describe_environment

PEERS = ("lightly", "stable-pretraining", "kornia", "torchvision", "scikit-learn")
"""Whose versions stand beside a measurement."""
PAGE = "bench.md"
INTRODUCTION = (
    "Made by `iecl bench` from the JSON files beside it, which hold every raw value. Compare within one table only: "
    "machines differ, and shared ones are noisy. All arms of a comparison took turns in one run; medians and quartiles "
    "are over its rounds."
)


def machine_name() -> str:
    """A short name for the machine, so that results of one kind of machine stand in one file."""
    cores = describe_environment()["cores"]
    return f"{platform.system().lower()}-{platform.machine()}-{cores}cores"


def write_result(out: Path, name: str, question: str, content: Mapping[str, Any]) -> Path:
    """Write OUT/<name>/<machine>.json, whole or not at all: what was found, and on what."""
    import torch  # here: a page is made without it

    environment = {key: value for key, value in describe_environment().items() if key != "command"}
    whole = {
        "question": question,
        "date": datetime.now(UTC).date().isoformat(),
        "environment": environment,
        "peers": peers_here(),
        "threads": torch.get_num_threads(),
        **content,
    }
    path = out / name / f"{machine_name()}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, strict_json(whole, indent=1) + "\n")
    return path


def peers_here() -> dict[str, str]:
    """Versions of the other libraries that are installed."""
    found = {}
    for name in PEERS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def is_reached(row: Mapping[str, Any]) -> bool | None:
    """Whether a row's median reaches its goal; None: it has none.

    >>> is_reached({"median": 5.2, "goal": "at least 5"}), is_reached({"median": 1.2, "goal": "at most 1.05"})
    (True, False)
    """
    if not row.get("goal"):
        return None
    side, _, bound = str(row["goal"]).rpartition(" ")
    value = float(row["median"])
    return value >= float(bound) if side == "at least" else value <= float(bound)


def reached_in_words(row: Mapping[str, Any]) -> str:
    """`yes`, `no`, or nothing where there is no goal."""
    return {True: "yes", False: "no", None: ""}[is_reached(row)]


def shown(value: float) -> str:
    """A number for a table.

    >>> shown(0.12345), shown(12.345), shown(12345.6)
    ('0.123', '12.3', '12,346')
    """
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def results_table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """What, median, quartiles, goal, reached."""
    rows = [
        [
            name,
            shown(row["median"]),
            " to ".join(shown(value) for value in row["quartiles"]),
            str(row.get("goal", "")),
            reached_in_words(row),
        ]
        for name, row in results.items()
    ]
    return plain_table(["what", "median", "quartiles", "goal", "reached"], rows)


def made_on(found: Mapping[str, Any]) -> str:
    """What a measurement was made on, in one line."""
    made = found["environment"]
    names = [name for name in ("torch", "torchvision", "lightning-fabric") if name in made["packages"]]
    versions = [f"{name} {made['packages'][name]}" for name in names]
    versions += [f"{name} {version}" for name, version in found.get("peers", {}).items() if name not in names]
    words = "; ".join(fact for fact in (found.get("setting"), found.get("unit")) if fact)
    threads = "1 thread" if found["threads"] == 1 else f"{found['threads']} threads"
    load = f", load {found['load_before']:.1f} before" if "load_before" in found else ""
    return (
        f"{words + '. ' if words else ''}{made['processor']}, {made['cores']} cores, {threads}{load}; "
        f"Python {made['python']}, {', '.join(versions)}; {found['date']}."
    )


def _section(name: str, found: Mapping[str, Any]) -> str:
    parts = [f"## {name}", found["question"][:1].upper() + found["question"][1:]]
    if found.get("results"):
        parts.append(results_table(found["results"]))
    for title, rows in found.get("more", {}).items():
        parts += [f"{title}:", results_table(rows)]
    if found.get("is_quick"):
        parts.append("A quick form, too small to be judged.")
    if found.get("is_unfinished"):
        parts.append("Not finished: these are the rows that there are so far.")
    if found.get("left_out"):
        parts.append("Left out: " + "; ".join(found["left_out"]) + ".")
    return "\n\n".join([*parts, made_on(found)])


def _section_of(path: Path) -> str:
    found = read_json(path)
    try:
        return visible(_section(path.parent.name, found))
    except (LookupError, TypeError, ValueError, AttributeError) as problem:
        raise UserError(f"{path} is no result of iecl bench", where=str(path), do="remove it") from problem


def write_page(out: Path) -> Path:
    """Rebuild OUT/bench.md from every result of a known question in the folder."""
    files = [path for name in QUESTIONS for path in sorted((out / name).glob("*.json"))]
    parts = ["# How fast is it here?", INTRODUCTION]
    parts += [_section_of(path) for path in files]
    page = out / PAGE
    write_atomically(page, "\n\n".join(parts) + "\n")
    return page
