"""Measurements that need a process of their own, since what is asked is the most memory that a process ever held."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from iecl.errors import UserError
from iecl.runs.directory import strict_json


def peak_bytes() -> int:
    """The most memory that this process held so far."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def can_tell_memory() -> bool:
    """Whether the system keeps that record: Linux does."""
    return Path("/proc/self/status").is_file()


def answer(content: dict[str, Any]) -> None:
    """Tell the process that asked."""
    sys.stdout.write(strict_json(content) + "\n")


def ask(module: str, *words: str) -> dict[str, Any]:
    """Run a module of ours by itself; the last line that it prints is its answer."""
    command = [sys.executable, "-m", f"iecl.benching.{module}", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(f"measuring {' '.join(words)} ended with code {done.returncode}: {last}", where=module)
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found
