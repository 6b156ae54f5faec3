"""A study from Python and from the command."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from iecl.arguments import speaks_python


@speaks_python
def study(
    source: str | Path | Mapping[str, Any],
    out: str | Path = "",
    *,
    workers: int = 1,
    threads: int = 1,
    retry: bool = False,
    keep: str = "weights",
    dry: bool = False,
    quiet: bool = False,
) -> dict[str, Any]:
    """Run the cells of a study that are not finished yet, and write what it found; see docs/guides/studies.md.

    Args:
        source: a TOML file with `[study]` and `[arms.NAME]`, or the same as tables.
        out: folder for records, runs and results; by default studies/<name>.
        workers: cells at a time, each in a process of its own; 0: in this process.
        threads: of each cell.
        retry: run cells again that failed.
        keep: what stays of a finished run: `none`, `weights` or `all`.
        dry: run nothing and write nothing, and say what is known.
        quiet: show warnings only.

    Returns:
        Means and paired differences (`rows`), every cell with its state (`cells`), the report as Markdown (`text`).
    """
    from iecl.studies.engine import look_at_cells, run_cells, seconds_left
    from iecl.studies.folder import StudyFolder
    from iecl.studies.report import report, write_report
    from iecl.studies.study import read_study

    asked = read_study(source)
    cells, folder = asked.cells(), StudyFolder(out or Path("studies") / asked.settings.name)
    how: dict[str, Any] = {"workers": workers, "threads": threads, "retry": retry, "keep": keep, "quiet": quiet}
    every = list(cells.values())
    found = look_at_cells(every, folder.path) if dry else run_cells(every, folder.path, **how)
    made = report(asked, dict(zip(cells, found, strict=True)))
    if not dry:
        made["files"] = write_report(made, folder.path)
    left = {"to_do": sum(one.state != "done" for one in found), "seconds_left": seconds_left(found, workers)}
    return made | left | {"folder": str(folder.path), "megabytes": round(folder.megabytes(), 1)}
