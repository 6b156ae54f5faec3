"""How a measurement is kept: raw values beside what they were made on, so that anyone can summarise them again."""

import json
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch

from iecl.runs.environment import describe_environment

RESULTS = Path(__file__).parent / "results"


def machine_name() -> str:
    """A short name for the machine, so that results of one kind of machine stand in one file."""
    cores = describe_environment()["cores"]
    return f"{platform.system().lower()}-{platform.machine()}-{cores}cores"


def summary(values: Sequence[float]) -> dict[str, Any]:
    """Median and quartiles beside the raw values."""
    low, _, high = quantiles(values, n=4) if len(values) > 1 else (values[0],) * 3
    digits = [float(f"{value:.5g}") for value in values]
    return {
        "median": float(f"{median(values):.5g}"),
        "quartiles": [float(f"{low:.5g}"), float(f"{high:.5g}")],
        "values": digits,
    }


def write(name: str, question: str, content: Mapping[str, Any]) -> Path:
    """Write results/<name>/<machine>.json."""
    environment = {key: value for key, value in describe_environment().items() if key != "command"}
    path = RESULTS / name / f"{machine_name()}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = {
        "question": question,
        "date": datetime.now(UTC).date().isoformat(),
        "environment": environment,
        "threads": torch.get_num_threads(),
        **content,
    }
    path.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    print(f"{name}: {path.relative_to(RESULTS.parent.parent)}")
    return path
