"""On what a run was made: versions, hardware, git commit. No environment variables: they hold secrets."""

import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = (
    "iecl",
    "torch",
    "torchvision",
    "lightning-fabric",
    "timm",
    "numpy",
    "numba",
    "pillow",
    "safetensors",
    "scikit-learn",
)


def describe_environment() -> dict[str, Any]:
    """Everything that a number may depend on and that the settings do not say."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "python": platform.python_version(),
        "packages": versions,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "git": git_commit(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def git_commit(folder: Path | None = None) -> str:
    """The commit of a folder, or of the one that the command was started in, with a mark if files had changed."""
    how: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 5, "check": True, "cwd": folder}
    try:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], **how)
        changed = subprocess.run(["git", "status", "--porcelain"], **how)
    except (OSError, subprocess.SubprocessError):
        return ""
    return str(commit.stdout.strip()) + (" with changes" if changed.stdout.strip() else "")
