"""What only a clone of the repository has: the speed measurements of `iecl bench`. The wheel leaves them out."""

import sys
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
