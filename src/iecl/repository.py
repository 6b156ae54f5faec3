"""What only a clone of the repository has: the speed measurements of `iecl bench`. The wheel leaves them out."""

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from iecl.errors import UserError

ROOT = Path(__file__).parents[2]
"""The repository, where this is `src/iecl` of a clone."""


def bench_module(name: str = "") -> Any:
    """A module of `benchmarks/bench`, or the package itself.

    Raises:
        UserError: the package was installed without the repository.
    """
    if not (ROOT / "benchmarks" / "bench" / "__init__.py").is_file():
        raise UserError(
            "iecl bench works from a clone of the repository, and this is an installed package",
            do="git clone the repository, then: make setup && .venv/bin/iecl bench",
        )
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))  # before the working folder, which may have benchmarks of its own
    return import_module(f"benchmarks.bench.{name}" if name else "benchmarks.bench")


def bench(
    questions: Sequence[str] = (),
    out: str | Path = "bench",
    *,
    data: str | Path = "",
    quick: bool = False,
    rounds: int = 0,
    quiet: bool = True,
) -> dict[str, Any]:
    """Measure how fast this machine trains, beside other libraries where they are installed; from a clone only.

    Args:
        questions: names from `iecl bench --list`; by default all of them, which takes hours.
        out: a folder: `<question>/<machine>.json` holds every raw value, `bench.md` is a page made from all of them.
        data: a folder of images for questions that read some; by default they are made.
        quick: small sizes and few rounds, to see that everything runs: two minutes for all.
        rounds: how many rounds count; by default as many as a question finds right.
        quiet: show warnings only.

    Returns:
        The path of the page, and by question the file that was written and its rows.
    """
    options: dict[str, Any] = {"data": data, "quick": quick, "rounds": rounds, "quiet": quiet}
    found: dict[str, Any] = bench_module("running").bench(questions, out, **options)
    return found
