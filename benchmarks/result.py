"""Where results of this folder are kept; their form is that of `iecl bench`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.bench.report import write_result

RESULTS = Path(__file__).parent / "results"


def write(name: str, question: str, content: Mapping[str, Any]) -> Path:
    """Write results/<name>/<machine>.json."""
    path = write_result(RESULTS, name, question, content)
    print(f"{name}: {path.relative_to(RESULTS.parent.parent)}")
    return path
