"""Several runs side by side: names that tell them apart, settings that differ, differences of their results."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from iecl.comparison.results import result_files
from iecl.comparison.tables import compare
from iecl.errors import UserError
from iecl.runs.directory import RunDirectory

ABSENT = "–"


def labels(paths: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that are all different.

    >>> labels([Path("a/seed-0/run"), Path("a/seed-1/run")])
    ['seed-0/run', 'seed-1/run']
    """
    whole = [path.resolve() for path in paths]
    for count in range(1, max(len(path.parts) for path in whole) + 1):
        found = ["/".join(path.parts[-count:]) for path in whole]
        if len(set(found)) == len(found):
            return found
    return [f"{path.name} ({number})" for number, path in enumerate(whole, 1)]  # one of them was named twice


def differing(settings: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Each setting that is not the same in all runs, with its value in each.

    >>> differing([{"optimizer": {"lr": 0.1, "name": "sgd"}}, {"optimizer": {"lr": 0.2, "name": "sgd"}}])
    [['optimizer.lr', '0.1', '0.2']]
    """
    flat = [
        {f"{section}.{key}": str(value) for section, table in one.items() for key, value in table.items()}
        for one in settings
    ]
    names = list(dict.fromkeys(name for one in flat for name in one))
    rows = [[name, *(one.get(name, ABSENT)[:200] for one in flat)] for name in names]
    return [row for row in rows if len(set(row[1:])) > 1]


def paired(paths: Sequence[Path], names: Sequence[str]) -> dict[str, Any]:
    """What may be said of the runs' results: each beside the first of its evaluation."""
    measured = {path: name for path, name in zip(paths, names, strict=True) if result_files(RunDirectory(path))}
    if len(measured) < 2:
        return {"rows": [], "note": "Fewer than two of these runs were evaluated: there is nothing to compare."}
    try:
        found = compare([str(path) for path in measured], labels=list(measured.values()))
    except UserError as problem:
        return {"rows": [], "note": f"The results cannot be compared: {problem.what}"}
    kept = ("evaluation", "first", "second", "is_comparable", "points", "is_noise", "intervals", "reasons")
    rows = [{name: pair.get(name) for name in kept} for pair in found["comparisons"]]
    return {"rows": rows, "note": "" if rows else "No two of these runs have a result of the same evaluation."}
