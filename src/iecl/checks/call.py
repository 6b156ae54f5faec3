"""What notebooks and the command call. Everything heavy is imported inside the function."""

from pathlib import Path
from typing import Any

from iecl.arguments import speaks_python
from iecl.console import log_to_terminal


@speaks_python
def doctor(
    data: Any,
    run: str | Path = "",
    out: str | Path = "",
    *,
    plan: bool = False,
    overwrite: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Look for what is wrong with images: see `iecl.checks.doctor.diagnose`.

    Args:
        data: a folder, a list of paths, a pattern, or several of these.
        run: a run directory or a file of weights to look with, too.
        out: folder for the report; by default doctor/<data>.
        plan: try training steps for 20 seconds, for a forecast.
        overwrite: replace a report that is there.
        **options: `exclude`, `workers`, `device`, `quiet`, `settings` (thresholds), and which weights, as for `embed`.
    """
    from iecl.checks.doctor import examine_data

    names = (str(data),) if isinstance(data, str | Path) else tuple(map(str, data))
    place = Path(out or Path("doctor") / (Path(names[0]).name if names else ""))
    seconds = 20.0 if plan else 0.0
    with log_to_terminal(options.get("quiet", True)):
        return examine_data(names, str(run), place, overwrite=overwrite, plan_seconds=seconds, **options)
